"""The tables of the docs whose first columns come from the code.

`python -m docs.site.tables` updates the schema of the configuration, and then the pages.
The other columns are written by hand. A new row lacks them, so add them after the update.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

from docs.site import config_schema
from kafkasse import errors
from kafkasse.records.frame import FORMATS

ROOT = Path(__file__).parents[2]


class Table(NamedTuple):
    """A table: its page, the first cells of its head, the first cells of its rows, and the column that identifies a row."""

    page: str
    head: str
    rows: Callable[[], Iterator[tuple[str, ...]]]
    key: int = 0


def _settings() -> Iterator[tuple[str, ...]]:
    for name, setting in config_schema.schema()["properties"].items():
        yield f"`{name}`", f"`{json.dumps(setting['default'])}`"


def _errors() -> Iterator[tuple[str, ...]]:
    """Yield the errors that a client can receive."""
    for error in errors.documented():
        if error is not errors.CommandError:
            yield str(error.status), f"`{error.name}`"


def _formats() -> Iterator[tuple[str, ...]]:
    yield from ((f"`{name}`",) for name in FORMATS)


def _dependencies() -> Iterator[tuple[str, ...]]:
    """Yield each package with its range, such as `2.0 or newer, below 4` for `>=2.0,<4`."""
    words = {">=": "{} or newer", "<": "below {}"}
    for requirement in map(Requirement, _project()["dependencies"]):
        bounds = sorted(requirement.specifier, key=lambda bound: bound.operator, reverse=True)
        yield requirement.name, ", ".join(words[bound.operator].format(bound.version) for bound in bounds)


def _extras() -> Iterator[tuple[str, ...]]:
    """Yield each extra except `dev`, with the exact or the lowest version of each package."""
    for extra, lines in _project()["optional-dependencies"].items():
        if extra != "dev":
            yield f"`{extra}`", ", ".join(_lowest(Requirement(line)) for line in lines)


def _lowest(requirement: Requirement) -> str:
    return f"{requirement.name} {next(each.version for each in requirement.specifier if each.operator != '<')}"


def _project() -> dict[str, dict[str, list[str]]]:
    project: dict[str, dict[str, list[str]]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


TABLES = [
    Table("docs/configuration.md", "setting | default | purpose", _settings),
    Table("docs/wire.md", "status | name", _errors, key=1),
    Table("docs/wire.md", "format", _formats),
    Table("docs/install.md", "package | supported versions", _dependencies),
    Table("docs/install.md", "extra | packages", _extras),
]
PAGES = [*dict.fromkeys(table.page for table in TABLES)]


def updated(page: str) -> str:
    """Return the text of a page with tables that agree with the code. Rows keep their order."""
    text = (ROOT / page).read_text()
    for table in TABLES:
        if table.page == page:
            pattern = re.compile(rf"(^\| {re.escape(table.head)} \|.*\n\| -.*\n)((?:\|.*\n)+)", re.M)
            head, body = pattern.search(text).groups()  # type: ignore[union-attr]
            text = text.replace(head + body, head + _rows(table, body))
    return text


def _rows(table: Table, body: str) -> str:
    generated = {cells[table.key]: cells for cells in table.rows()}
    count = len(next(iter(generated.values())))
    written = {}
    for line in body.splitlines():
        *cells, rest = line.removeprefix("| ").split(" | ", count)
        written[cells[table.key]] = rest
    keys = [*(key for key in written if key in generated), *(key for key in generated if key not in written)]
    return "".join(f"| {' | '.join([*generated[key], written.get(key, '|')])}\n" for key in keys)


if __name__ == "__main__":
    config_schema.FILE.write_text(config_schema.text(), "utf-8")
    for page in PAGES:
        if (text := updated(page)) != (ROOT / page).read_text():
            (ROOT / page).write_text(text)
            sys.stdout.write(f"Updated {page}. Complete its new rows by hand.\n")
