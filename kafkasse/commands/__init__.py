"""The command line: one small program for each part, useful by itself.

Each command is a module with `arguments(parser)` and `run(args) -> int`. A module is imported only when its command is
asked for, so that `kafkasse cat` needs neither Spark nor Java, and `kafkasse serve` can patch before anything imports
sockets.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from kafkasse import __version__
from kafkasse.errors import KafkasseError

COMMANDS = {
    "serve": ("kafkasse.commands.serve", "stream topics over HTTP: gunicorn with this project's configuration"),
    "broker": ("kafkasse.commands.broker", "run the embedded Kafka broker in the foreground"),
    "load": ("kafkasse.commands.load", "put a CSV or JSON-lines file into a topic"),
    "pipeline": ("kafkasse.commands.pipeline", "run a Spark pipeline in the foreground"),
    "cat": ("kafkasse.commands.cat", "read a stream in the terminal, resuming by itself"),
    "demo": (
        "kafkasse.commands.demo",
        "all of it: broker, countries, pipeline, server, and a page that shows the Top 3 live",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code: 0 done, 1 it could not (one sentence says why), 2 wrong usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="kafkasse", description="Kafka topics as Server-Sent Events.")
    parser.add_argument("--version", action="version", version=f"kafkasse {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name in words[:1]:
            import_module(module).arguments(command)
    args = parser.parse_args(words)
    try:
        return int(import_module(COMMANDS[args.command][0]).run(args))
    except KafkasseError as error:
        print(f"kafkasse {args.command}: {error.detail}", file=sys.stderr)
        return 1
    except ImportError as error:
        extra = _extra_for(args.command)
        if extra is None or (error.name or "").startswith("kafkasse"):
            raise
        print(f"kafkasse {args.command}: needs {error.name}; run: pip install 'kafkasse[{extra}]'", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _extra_for(command: str) -> str | None:
    return {"broker": "broker", "pipeline": "pipelines", "demo": "pipelines"}.get(command)
