"""`kafkasse config`: print the effective settings and the source of each, with secrets masked. It opens no connection."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from kafkasse.commands.table import print_table
from kafkasse.config import Config

EPILOG = """\b
Examples:
  kafkasse config kafkasse.yaml
  kafkasse config --json
"""


@click.command(epilog=EPILOG)
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(file: Path | None, as_json: bool) -> None:
    """Print the effective settings and where each comes from.

    FILE is a YAML file of settings; without it, the file that KAFKASSE_CONFIG names. The source of a setting is a line of
    the file, an environment variable, or the default. Passwords and other secrets are masked.
    """
    settings = list(Config.load(os.environ, file).effective())
    if as_json:
        shown = {name: {"value": value, "source": source} for name, value, source in settings}
        click.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    print_table([(name, json.dumps(value, ensure_ascii=False), source) for name, value, source in settings])
