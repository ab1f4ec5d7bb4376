"""`kafkasse pipeline run` as a process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.commands.run import process
from tests.pipelines.topics import Topics

EXIT_TIMEOUT_S = 120


@contextmanager
def pipeline(*words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run `kafkasse pipeline …` in its own process group, as a shell does."""
    with process("pipeline", *words, env=os.environ | environment, process_group=0) as started:
        try:
            yield started
        finally:
            started.kill()
            started.communicate()


def run_words(topics: Topics, *more: str, name: str = "topn") -> list[str]:
    servers = topics.kafka["bootstrap.servers"]
    return ["run", name, "--bootstrap-servers", servers, "--source", topics.source, "--sink", topics.sink, *more]
