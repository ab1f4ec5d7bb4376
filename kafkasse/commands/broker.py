"""`kafkasse broker`: the embedded broker in the foreground."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import Any

from kafkasse.broker.embedded import EmbeddedBroker
from kafkasse.errors import CommandError
from kafkasse.progress import say

DEFAULT_PORT = 9092


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="where clients connect; 0: any free port")
    parser.add_argument("--dir", type=Path, help="keep the data there; without it they are thrown away at the end")


def run(args: argparse.Namespace) -> int:
    """Run a broker until Ctrl-C or SIGTERM, which end it cleanly."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with EmbeddedBroker(args.port, args.dir) as broker:
            say(f"kafkasse broker: ready at {broker.bootstrap_servers}")
            say(f"data: {args.dir.absolute() if args.dir else 'thrown away at the end'}; Ctrl-C ends it")
            code = broker.wait()
    except KeyboardInterrupt:
        return 0
    raise CommandError(f"the broker ended by itself (exit code {code})")


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
