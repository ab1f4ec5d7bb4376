"""The command line: the group `kafkasse` and its error handling.

Each command is a module of this package that defines one click command named `command`; the other modules help them. A
module is imported only to run its command, so that `kafkasse cat` imports neither Spark nor Flask, and `kafkasse serve`
starts gunicorn quickly.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from kafkasse import __version__
from kafkasse.errors import KafkasseError

# A module name in this package and the command's line in `kafkasse --help`, in the order in which a newcomer needs them.
SUMMARIES = {
    "demo": "Try everything: Kafka, Spark and a live web page on this machine.",
    "init": "Write a commented configuration for your Kafka.",
    "serve": "Stream topics over HTTP.",
    "topics": "List the topics that exist and those that are served, or create topics.",
    "check": "Check the configuration and list what would be served.",
    "streams": "List the open streams of a running server, or end one.",
    "config": "Print the effective settings and their sources.",
    "key": "Create API keys.",
    "cat": "Print a stream in the terminal.",
    "load": "Write a CSV or JSON lines file to a topic.",
    "pipeline": "Run a Spark pipeline.",
    "archive": "Keep records for longer than Kafka does.",
    "broker": "Run a Kafka broker for development.",
}
# What pip installs from the source of kafkasse for the commands that need more packages than the server.
INSTALLS = {
    "archive": "'.[archive,pipelines]'",
    "broker": "'.[broker]'",
    "cat": "'./kafkasse_client[requests]'",
    "demo": "'.[pipelines]'",
    "pipeline": "'.[pipelines]'",
}

EPILOG = """\b
Exit codes: 0 success, 1 a failure whose reason is on stderr, 2 wrong usage, 130 Ctrl-C.

\b
To complete commands and options with the Tab key in bash (in zsh: zsh_source):
  eval "$(_KAFKASSE_COMPLETE=bash_source kafkasse)"
"""


class _LazyGroup(click.Group):
    """Lists, suggests and completes commands from SUMMARIES; imports the module of a command only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # click sorts by name

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name:
            ctx.invoked_subcommand = name  # for the error messages of invoke(), even if the import fails
            command = import_module(f"{__name__}.{name}").command
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KafkasseError as error:
            problem = error.detail
        except ImportError as error:
            installs = INSTALLS.get(ctx.invoked_subcommand or "", ".")
            package = (error.name or "").partition(".")[0]
            if package == "kafkasse":
                raise
            problem = f"needs {package}; run pip install {installs} in kafkasse's folder"
        click.echo(f"kafkasse {ctx.invoked_subcommand}: {problem}", err=True)
        return ctx.exit(1)


@click.group(
    cls=_LazyGroup,
    commands={name: click.Command(name, short_help=summary) for name, summary in SUMMARIES.items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EPILOG,
)
@click.version_option(__version__, message="kafkasse %(version)s")
def _kafkasse() -> None:
    """Stream Kafka topics to browsers and scripts as Server-Sent Events.

    \b
    Start here:
      kafkasse demo            see everything work, without any configuration
      kafkasse init            write a configuration for your own Kafka
      kafkasse COMMAND --help  the options of a command, and an example
    """


def _exit(*_: object) -> None:
    sys.exit(0)


def stop_at_signals(handler: Callable[..., None] = _exit) -> None:
    """Let SIGTERM or SIGHUP (a closed terminal) end a command that runs until it is stopped, by default with exit code 0."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, handler)


def main(args: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0 for success, 1 for a failure whose reason is on stderr, 2 for wrong usage, 130 after Ctrl-C.
    """
    if sys.stderr is None:  # closed with `2>&-`; otherwise, the next socket would become the file descriptor 2
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
    try:
        return int(_kafkasse.main(args, prog_name="kafkasse", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    except OSError as error:
        if not _is_of_echo(error):
            raise
        discard_stdout()
        click.echo(f"kafkasse: cannot write to stdout: {error.strerror}", err=True)
        return 1


def _is_of_echo(error: OSError) -> bool:
    return traceback.extract_tb(error.__traceback__)[-1].filename == click.utils.__file__


def discard_stdout() -> None:
    """Discard the text in stdout's buffer, which Python would otherwise fail to write at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
