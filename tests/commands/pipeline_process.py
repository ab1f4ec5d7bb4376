"""`kafkasse pipeline run` as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.pipelines.topics import Topics

EXIT_TIMEOUT_S = 120


@contextmanager
def pipeline(*words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run `kafkasse pipeline …` in its own process group, as a shell does."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kafkasse", "pipeline", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        process_group=0,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run_words(topics: Topics, *more: str, name: str = "topn") -> list[str]:
    """The arguments that run a pipeline with these topics."""
    servers = topics.kafka["bootstrap.servers"]
    return ["run", name, "--bootstrap-servers", servers, "--source", topics.source, "--sink", topics.sink, *more]
