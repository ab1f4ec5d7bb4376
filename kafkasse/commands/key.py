"""`kafkasse key`: create API keys. It stores nothing and opens no connection."""

from __future__ import annotations

import click

from kafkasse.access.api_keys import create_key
from kafkasse.errors import CommandError

EPILOG = """\b
Example:
  kafkasse key create partner-1
"""


@click.group(epilog=EPILOG)
def command() -> None:
    """Create API keys for guards with api_keys."""


@command.command
@click.argument("name", metavar="NAME")
def create(name: str) -> None:
    """Print a new API key for NAME, and the line to add to the file of the guard.

    The key is shown only once. The file contains its hash, from which nobody can find the key.
    """
    try:
        key, line = create_key(name)
    except ValueError as error:
        raise CommandError(str(error)) from None
    click.echo(f"API key, for the client:\n{key}\n\nLine for the file of the guard:\n{line}")
