"""The pages of the docs, and the code blocks in them."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.support.server import ROOT

_PATTERNS = (
    "*.md",
    "docs/**/*.md",
    "kafkasse_client/*.md",
    "tests/*.md",
    "tests/*/README.md",
    "bench/*.md",
    "bench/soak/*.md",
)
PAGES = sorted(page.relative_to(ROOT).as_posix() for pattern in _PATTERNS for page in ROOT.glob(pattern))
_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.M | re.S)


class Block(NamedTuple):
    """A fenced code block: its page, its language and code, and the block with its fences."""

    page: str
    language: str
    code: str
    text: str


def read(page: str) -> str:
    """Return the text of a page, such as `docs/wire.md`."""
    return (ROOT / page).read_text()


def blocks(page: str) -> list[Block]:
    """Return the code blocks of a page."""
    return [Block(page, match[1], match[2], match[0]) for match in _BLOCK.finditer(read(page))]


def code(page: str, *languages: str) -> list[str]:
    """Return the code in these languages."""
    return [block.code for block in blocks(page) if block.language in languages]


def example(page: str, part: str) -> str:
    """Return the only code block that contains `part`."""
    [sample] = [block.code for block in blocks(page) if part in block.code]
    return sample
