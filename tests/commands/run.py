"""Runs commands: in this process, which is faster, or in a new one."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import gevent
import pytest

from kafkasse.commands import main
from tests.pipelines.topics import Topics

TIMEOUT_S = EXIT_TIMEOUT_S = 120  # only a hang takes so long
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}


class Done(NamedTuple):
    """The exit code of a command, and what it has written to stdout and stderr."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs the command line in this process, with only these environment variables."""

    def run(*words: str, **variables: str) -> Done:
        with (
            mock.patch.dict(os.environ, ENVIRONMENT | variables, clear=True),
            mock.patch("signal.signal"),  # the command would change the handlers of this process
            mock.patch("urllib.request._opener", None),  # it remembers the proxies of an earlier environment
            gevent.Timeout(TIMEOUT_S),
        ):
            code = main(words)
        return Done(code, *capsys.readouterr())

    loggers = logging.getLogger("kafka"), logging.getLogger("kafkasse")
    before = [(each.level, each.handlers[:]) for each in loggers]
    yield run
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers  # a command logs to the stderr of its test


@contextmanager
def process(*words: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run `kafkasse` in a new process, with pipes for stdout and stderr. It is killed when the block ends."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": ENVIRONMENT}
    with subprocess.Popen([sys.executable, "-m", "kafkasse", *words], **pipes | options) as started:
        try:
            yield started
        finally:
            started.kill()


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
