"""docs/proxies.md shows the files that the tests run."""

from __future__ import annotations

import re

from tests.proxies.proxies import DIRECTORY
from tests.support.server import ROOT


def test_the_docs_show_the_tested_files() -> None:
    page = (ROOT / "docs/proxies.md").read_text()
    shown = re.findall(r"^\[deploy/proxies/(\S+)\].*?\n```\w*\n(.*?)^```", page, re.MULTILINE | re.DOTALL)

    assert {file.name: file.read_text() for file in DIRECTORY.iterdir()} == dict(shown)
