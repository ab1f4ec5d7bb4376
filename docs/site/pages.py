"""The pages of the site: copies of the Markdown files, whose links lead to pages of the site, and the generated pages.

The files in docs/ are plain Markdown without directives, so that they are readable on GitHub. The navigation comes from the
lists of links in docs/index.md.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from bench import results
from docs.site import reference

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HOME = "index.md"
# Files outside of docs/ that are pages of the site.
OTHERS = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "COMPATIBILITY.md": "compatibility.md",
    "CONTRIBUTING.md": "contributing.md",
    "DECISIONS.md": "decisions.md",
    "RELEASING.md": "releasing.md",
    "SECURITY.md": "reporting.md",
    "bench/README.md": "results.md",
    "bench/soak/README.md": "soak.md",
    "tests/attacks/README.md": "attacks.md",
    "tests/chaos/README.md": "fault-tests.md",
    "tests/evidence.md": "evidence.md",
    "tests/history/README.md": "delivery-tests.md",
}
LINK = re.compile(r"(\]\()(?!https?:|mailto:)([^)#\s]+)")
NAME = re.compile(r"\[[\w/-]+\.md\]\(([\w-]+)\.md([#)])")  # a link whose text is the name of a file
FENCE = re.compile(r"(^```.*?^```[^\n]*$|`[^`\n]+`)", re.M | re.S)
ENTRY = re.compile(r"^- \[([^\]]+)\]\(([\w-]+)\.md\)", re.M)
IMAGES = (".png", ".svg")


def files() -> dict[str, str]:
    """Return the Markdown files of the site: from the path in the repository to the name of the page."""
    docs = {page.relative_to(ROOT).as_posix(): page.name for page in sorted(ROOT.glob("docs/*.md"))}
    return docs | OTHERS


def write(folder: Path) -> None:
    """Write the source of the site for Sphinx into a folder."""
    generated = reference.pages()
    linked: dict[str, None] = {}
    for path, page in files().items():
        if page == "results.md":
            text, pictures = results.page()
            for name, picture in pictures.items():
                _write(folder / name, picture)
        else:
            text = rewrite((ROOT / path).read_text(), path, linked)
        if page == HOME:
            text += "\n" + reference.LIST
            text += "".join(toctree(heading, entries) for heading, entries in entries_of(text))
        _write(folder / page, text)
    for name, text in generated.items():
        _write(folder / name, text)
    _write_linked(folder, linked)


def entries_of(text: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the headings of the start page, each with the titles and names of the pages below it."""
    start, *rest = re.split(r"^## (.+)$", text, flags=re.M)
    for heading, part in [("", start), *zip(rest[::2], rest[1::2], strict=True)]:
        if entries := ENTRY.findall(part):
            yield heading, entries


def toctree(caption: str, entries: list[tuple[str, str]]) -> str:
    """Return the hidden directive that puts pages into the navigation."""
    lines = [f"{title} <{name}>" for title, name in entries]
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *lines, "```", ""])


def rewrite(text: str, path: str, linked: dict[str, None]) -> str:
    """Let the links in a file lead to pages of the site. Adds the other files that they name to `linked`."""

    def target(match: re.Match[str]) -> str:
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[2]))
        if file in files():
            return f"{match[1]}{files()[file]}"
        if file == "README.md":
            return f"{match[1]}index.md"
        linked[file] = None
        return f"{match[1]}{page_of(file)}"

    return _outside_code(text, lambda part: NAME.sub(_title, LINK.sub(target, part)))


@cache
def titles() -> dict[str, str]:
    """Return the titles in the navigation by the names of the pages."""
    links = re.findall(r"^- \[([^\]]+)\]\(([^)]+)\)", (ROOT / "docs" / HOME).read_text(), re.M)
    return {files()[posixpath.normpath(f"docs/{target}")].removesuffix(".md"): title for title, target in links}


def _title(match: re.Match[str]) -> str:
    return f"[{titles().get(match[1], match[1])}]({match[1]}.md{match[2]}"


def page_of(file: str) -> str:
    """Return the page, or the image, that stands for a file or a folder of the repository."""
    if file.endswith(IMAGES):
        return f"images/{posixpath.basename(file)}"
    return f"source/{file}.md"


def _write_linked(folder: Path, linked: dict[str, None]) -> None:
    for file in list(linked):
        if (ROOT / file).is_dir():
            linked |= dict.fromkeys(reference.files_in(ROOT, file))
    for file in linked:
        target = folder / page_of(file)
        if file.endswith(IMAGES):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, target)
        else:
            _write(target, reference.source_page(ROOT, file))


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change the parts of a text that are not code. Links in code are samples."""
    return "".join(part if FENCE.fullmatch(part) else change(part) for part in FENCE.split(text))


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
