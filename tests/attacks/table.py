"""Generates the requests, records and tokens in README.md: `python -m tests.attacks.table` updates the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.attacks.kit import Case
from tests.attacks.records import FORMATS, OUTCOMES, RECORDS, Hostile
from tests.attacks.requests import TABLES
from tests.attacks.tokens import TOKENS

PAGE = Path(__file__).with_name("README.md")
SECTION = re.compile(r"(<!-- generated -->\n).*(<!-- /generated -->)", re.DOTALL)
MAX_SENT_CHARS = 60
SIZE_SHOWN_ABOVE = 1_000
HARMLESS = b'{"a":1}'
SMUGGLED_LINE = b"GET /hidden HTTP/1.1"
NOTES = {
    "Last-Event-ID": "The `Last-Event-ID` header of `GET /attacked`, unless more is shown.",
    "Header fields": "Added to `GET /attacked`. In an answer, *for* names the origin whose pages may read the stream.",
    "Request smuggling": "Unless shown, the request is `GET /attacked` or `GET /unknown`. `GET /hidden` follows.",
}
TOKENS_HEAD = """\
## Tokens

A guard accepts RS256, ES256 and EdDSA with the keys of one issuer, and API keys.
`attacks/test_guards.py::test_hostile_tokens` sends each of these tokens in the `Authorization` header of `GET /t`.
No token may appear in the log.

| kind | token | answer |
| --- | --- | --- |"""


def updated(page: str) -> str:
    """Replace the generated section of the page."""
    requests, tokens = (sum(map(len, tables.values())) for tables in (TABLES, TOKENS))
    count = f"{requests} requests, {len(RECORDS)} records in {len(FORMATS)} formats, and {tokens} tokens.\n"
    section = "\n".join([count, *_requests(), *_records(), *_tokens()])
    changed, sections = SECTION.subn(lambda match: f"{match[1]}{section}\n{match[2]}", page)
    assert sections == 1
    return changed


def _requests() -> Iterator[str]:
    for table, cases in TABLES.items():
        yield f"## {table}\n"
        yield from [NOTES[table], ""] if table in NOTES else []
        for answers in dict.fromkeys(case.answers for case in cases):
            yield f"**{', then '.join(answers)}**\n"
            yield from (f"- {_cell(case.name)}: {_sent(case)}" for case in cases if case.answers == answers)
            yield ""


def _sent(case: Case) -> str:
    """Return the parts of a request that differ from a normal one, shortened, as Markdown code."""
    if case.request.startswith(b"\r\n"):
        return _code(case.request)
    lines = [line for line in case.request.split(b"\r\n") if line not in (b"", b"Host: x")]
    if len(lines) > 1 and lines[0] in (b"GET /attacked HTTP/1.1", b"GET /unknown HTTP/1.1"):
        del lines[0]
    if len(lines) > 1 and lines[-1] == SMUGGLED_LINE:
        del lines[-1]
    if len(lines) == 1:
        lines = [lines[0].removeprefix(b"Last-Event-ID: ").removesuffix(b" HTTP/1.1")]
    return _code(*lines, size=len(case.request))


def _stored(record: Hostile) -> str:
    """Return the parts of a record that are not harmless, shortened, as Markdown code."""
    parts = [] if record.value in (None, HARMLESS) else [_code(record.value)]
    parts += [] if record.key is None else [f"key {_code(record.key)}"]
    headers = [b"%b: %b" % (name.encode(), value) for name, value in record.headers]
    return ", ".join([*parts, f"header {_code(*headers)}"] if headers else parts)


def _code(*lines: bytes, size: int | None = None) -> str:
    text = " ⏎ ".join(_printable(line) for line in lines)
    if not text:
        return "*nothing*"
    suffix = ""
    if len(text) > MAX_SENT_CHARS:
        size = size or sum(map(len, lines))
        suffix = f" *({size:,} bytes)*" if size > SIZE_SHOWN_ABOVE else ""
        text = text[: MAX_SENT_CHARS - 1] + "…"
    quote = "``" if "`" in text else "`"
    return f"{quote}{text}{quote}{suffix}".replace("|", "\\|")


def _printable(line: bytes) -> str:
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}" for byte in line)


def _records() -> Iterator[str]:
    yield "## Records\n\nThe outcome of a record in each format: one event of this type, or nothing (skipped).\n"
    types = {outcome: name for name, outcome in OUTCOMES.items()}
    yield f"| type | {' | '.join(f'`{name}`' for name in FORMATS)} |\n| --- {'| --- ' * len(FORMATS)}|"
    yield from (f"| {name} | {' | '.join(outcome)} |" for name, outcome in OUTCOMES.items())
    yield "\n| a record with | sent | type |\n| --- | --- | --- |"
    yield from (f"| {_cell(record.name)} | {_stored(record)} | {types[record.outcome]} |" for record in RECORDS)
    yield ""


def _tokens() -> Iterator[str]:
    yield TOKENS_HEAD
    for where, cases in TOKENS.items():
        for answer in dict.fromkeys(case.answer for case in cases):
            names = (_cell(case.name) for case in cases if case.answer == answer)
            yield from (f"| {where} | {name} | {answer} |" for name in names)
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;").replace("_", "\\_")


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
