"""docs/errors.md, generated from the classes in errors.py: `python -m docs.site.errors > docs/errors.md`."""

from __future__ import annotations

import sys

from kafkasse.errors import KafkasseError, pages

HEAD = """\
# Errors

The errors that a server can send. A server serves the same texts at `/-/problems/…`; the `type` of an error is the path of
its page. To find out in a program which error it is, compare `name`: the `type` contains the prefix of the blueprint.
[The wire protocol](wire.md#errors) describes the body of an error, and says which ones a client should retry.

<!-- Generated from kafkasse/errors.py: python -m docs.site.errors > docs/errors.md -->

| name, status | cause | fix |
| --- | --- | --- |
"""


def markdown() -> str:
    """Return the text of docs/errors.md."""
    return HEAD + "".join(map(_row, pages().values()))


def _row(error: type[KafkasseError]) -> str:
    return f"| `{error.name}`, {error.status} | {error.cause} | {error.fix} |\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
