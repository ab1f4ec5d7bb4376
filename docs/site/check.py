"""Checks of the built site: every link has a target, nothing is loaded from another origin, and the search is complete."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Elements and attributes that make a browser load something at once. An `a` element does not.
LOADED = {"src", "srcset", "poster", "data"}
STATIC = "_static"  # its HTML files are templates of the theme
IN_CSS = re.compile(r"""url\(\s*['"]?((?:https?:)?//[^)'"]+)|@import\s+['"]((?:https?:)?//[^'"]+)""")


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if not value:
                continue
            if name == "id":
                self.ids.add(value)
            elif name == "href" and tag == "a":
                self.links.append(value)
            elif name in LOADED or (name == "href" and tag == "link"):
                self.loaded.append(value)


@cache
def _parse(file: Path) -> _Page:
    page = _Page()
    page.feed(file.read_text())
    return page


def problems(site: Path) -> Iterator[str]:
    """Yield a sentence for each broken link, and for each file that a page would load from another origin."""
    files = [each for each in sorted(site.rglob("*")) if each.is_file()]  # the name of a folder may end with .html
    for file in (each for each in files if each.suffix == ".html" and STATIC not in each.parts):
        page, name = _parse(file), file.relative_to(site)
        yield from (
            f"{name}: the link {link} has no target" for link in page.links if not _has_target(site, file, link)
        )
        for url in page.loaded:
            if urlsplit(url).netloc:
                yield f"{name}: loads {url} from another origin"
            elif not url.startswith("data:") and not _has_target(site, file, url):
                yield f"{name}: {url} does not exist"
    for file in (each for each in files if each.suffix == ".css"):
        for match in IN_CSS.finditer(file.read_text()):
            yield f"{file.relative_to(site)}: loads {match[1] or match[2]} from another origin"


def unsearchable(site: Path, pages: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each page that the search of the site does not know. The index is a call in JavaScript."""
    index = (site / "searchindex.js").read_text()
    indexed = json.loads(index[index.index("{") : index.rindex("}") + 1])["docnames"]
    yield from (f"the search does not find {page}" for page in pages if page not in indexed)


def _has_target(site: Path, file: Path, link: str) -> bool:
    url = urlsplit(link)
    if url.scheme or url.netloc:
        return True
    path = unquote(url.path)
    target = (site / path.lstrip("/") if path.startswith("/") else file.parent / path).resolve() if path else file
    if target.is_dir():
        target /= "index.html"
    return target.exists() and (
        not url.fragment or target.suffix != ".html" or unquote(url.fragment) in _parse(target).ids
    )
