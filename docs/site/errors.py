"""docs/errors.md, generated from the classes in errors.py: `python -m docs.site.errors > docs/errors.md`."""

from __future__ import annotations

import sys

from kafkasse.errors import KafkasseError, page_name, pages

HEAD = """\
# Errors

This reference is for developers of clients. It has a section for each error that a server can send. A server serves the same
texts at `/-/problems/…`; the `type` of an error is the URL path of its page. [wire.md](wire.md#errors) describes the body of
an error, and says which errors a client should retry.

To find out in a program which error it is, compare `name`. The `type` contains the prefix of the blueprint, which differs
between servers. Its last part is the same everywhere.

<!-- Generated from kafkasse/errors.py: python -m docs.site.errors > docs/errors.md -->
"""


def markdown() -> str:
    """Return the text of docs/errors.md."""
    return HEAD + "".join(map(_section, pages().values()))


def _section(error: type[KafkasseError]) -> str:
    return f"""
## {error.title}

`{page_name(error)}`, status {error.status}, name `{error.name}`

- **Cause:** {error.cause}
- **Fix:** {error.fix}
"""


if __name__ == "__main__":
    sys.stdout.write(markdown())
