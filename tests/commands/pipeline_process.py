"""`kafkasse pipeline run` as a process."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def recorded_programs(directory: Path, *names: str) -> str:
    """A PATH with programs that write their names and arguments to `directory/calls`, and then run the real program."""
    for name in names:
        program = directory / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {directory}/calls\nexec {shutil.which(name)} "$@"\n')
        program.chmod(0o700)
    return f"{directory}:{os.environ['PATH']}"
