"""The documentation site, without Sphinx: the navigation, the links between pages, and the checks of the built pages."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator

import pytest

pytest.importorskip("pygments")  # a dependency of Sphinx, and of other packages for development
import kafkasse
import kafkasse_client
from docs.site import check, pages, reference
from docs.site.animation.apng import animated
from kafkasse import errors, schemas


def test_every_page_is_in_the_navigation_once():
    """The lists of links on the start page name each page once."""
    links = re.findall(r"^- \[[^\]]+\]\(([^)#]+)\)", (pages.ROOT / "docs" / pages.HOME).read_text(), re.M)
    listed = Counter(pages.files()[posixpath.normpath(f"docs/{link}")] for link in links)

    expected = dict.fromkeys(set(pages.files().values()) - {pages.HOME}, 1)
    assert expected == listed, "Link each page once in the lists of docs/index.md."


def test_each_problem_type_has_a_page():
    generated = reference.pages()

    assert {f"problems/{name}.md" for name in errors.pages()} == {name for name in generated if "/" in name}


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("docs/wire.md", "[the path](../ARCHITECTURE.md#fetching)", "[the path](architecture.md#fetching)"),
        ("docs/wire.md", "[schema](../schemas/problem.schema.json)", "[schema](source/schemas/problem.schema.json.md)"),
        ("ARCHITECTURE.md", "[settings](docs/configuration.md)", "[settings](configuration.md)"),
        ("ARCHITECTURE.md", "see [docs/wire.md](docs/wire.md#errors)", "see [Wire protocol](wire.md#errors)"),
        ("docs/wire.md", "`[x](../README.md)` and [x](../README.md)", "`[x](../README.md)` and [x](index.md)"),
        ("docs/wire.md", "```\n[x](../README.md)\n```", "```\n[x](../README.md)\n```"),
        ("docs/wire.md", "[x](https://example.org/a.md)", "[x](https://example.org/a.md)"),
    ],
)
def test_a_link_leads_to_a_page_of_the_site(path, text, expected):
    """Links to pages, to files of the repository and to the README have targets on the site; code stays unchanged."""
    assert expected == pages.rewrite(text, path, {})


def test_the_reference_contains_every_command_and_setting():
    """The generated pages contain the options of a subcommand, and each setting, those within other settings included."""
    generated = reference.pages()
    headings = re.findall(r"^### `(.+)`$", generated["settings.md"], re.M)
    names = {name.rpartition(".")[2] for name in headings}

    assert "--last-event-id" in generated["commands.md"]
    assert "\n### kafkasse pipeline run\n" in generated["commands.md"]
    assert len(headings) == len(set(headings))
    assert {"heartbeat_s", "routes.NAME.where.key", "guards.NAME.jwt.issuer", "kafka.ssl_cafile"} <= set(headings)
    assert set() == set(_settings(schemas.read("config"))) - names


def test_the_reference_contains_each_public_name():
    page = reference.pages()["api.md"]

    for module in (kafkasse, kafkasse_client):
        names = {name for name in module.__all__ if name != "__version__"}
        assert names == set(re.findall(rf"^\.\. auto\w+:: {module.__name__}\.(\w+)$", page, re.M))


def _settings(schema: object) -> Iterator[str]:
    """Yield the name of each setting in a part of the schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for part in schema.values():
            yield from _settings(part)


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ('<a href="b/">', "the link b/ has no target"),
        ('<a href="#nowhere">', "the link #nowhere has no target"),
        ('<a href="a/#nowhere">', "the link a/#nowhere has no target"),
        ('<img src="missing.png">', "missing.png does not exist"),
        ('<script src="https://cdn.example/x.js"></script>', "loads https://cdn.example/x.js from another origin"),
        ('<link rel="stylesheet" href="//fonts.example/x.css">', "loads //fonts.example/x.css from another origin"),
    ],
)
def test_the_check_finds_broken_links_and_other_origins(tmp_path, html, problem):
    """A page with one defect has one problem."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/index.html").write_text('<p id="here">')
    (tmp_path / "index.html").write_text(f'<a href="a/#here">{html}<a href="https://example.org/">')

    assert [f"index.html: {problem}"] == list(check.problems(tmp_path))


def test_the_check_finds_fonts_of_other_origins(tmp_path):
    """A style sheet may load only files of the site."""
    (tmp_path / "x.css").write_text(
        "@font-face { src: url(https://fonts.example/x.woff2) } p { background: url(x.png) }"
    )

    assert ["x.css: loads https://fonts.example/x.woff2 from another origin"] == list(check.problems(tmp_path))


def test_the_check_finds_pages_that_the_search_does_not_know(tmp_path):
    (tmp_path / "searchindex.js").write_text('Search.setIndex({"docnames": ["a", "b/c"]})')

    assert ["the search does not find d"] == list(check.unsearchable(tmp_path, ["a", "b/c", "d"]))


def test_every_diagram_has_a_source_and_dark_colors():
    """Each SVG in docs/images is drawn from a file in docs/diagrams, and has colors for dark pages."""
    images = [*pages.ROOT.glob("docs/images/*.svg")]
    drawn = {image.stem for image in images}

    assert all("prefers-color-scheme:dark" in image.read_text() for image in images)
    assert {source.stem for source in pages.ROOT.glob("docs/diagrams/*.d2")} == drawn


def test_the_animation_shows_each_picture_once():
    """Pictures that are equal become one frame. The frames and their parts are numbered in one sequence.

    The picture for programs without animations is the last one, and not a frame.
    """
    first, second = (_picture(part) for part in (b"1", b"2"))

    chunks = _chunks(animated([first, first, second], pause_s=0.2, last_s=2))

    assert [b"IHDR", b"acTL", b"IDAT", b"fcTL", b"fdAT", b"fcTL", b"fdAT", b"IEND"] == [kind for kind, _ in chunks]
    contents = [content for kind, content in chunks if kind in (b"fcTL", b"fdAT")]
    assert b"2" == dict(chunks)[b"IDAT"]
    assert [0, 1, 2, 3] == [int.from_bytes(content[:4]) for content in contents]
    assert [400, 2000] == [int.from_bytes(content[20:22]) for kind, content in chunks if kind == b"fcTL"]


def test_the_animation_of_the_readme_is_small():
    chunks = _chunks((pages.ROOT / "docs/images/restart.png").read_bytes())

    assert sum(kind == b"fcTL" for kind, _ in chunks) > 20
    assert sum(len(content) for _, content in chunks) < 1_000_000


def _picture(data: bytes) -> bytes:
    """Return a file with the chunks of a PNG."""
    chunks = ((b"IHDR", b"size8bytxxxxx"), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(len(part).to_bytes(4) + kind + part + bytes(4) for kind, part in chunks)


def _chunks(picture: bytes) -> list[tuple[bytes, bytes]]:
    at, chunks = 8, []
    while at < len(picture):
        size = int.from_bytes(picture[at : at + 4])
        chunks.append((picture[at + 4 : at + 8], picture[at + 8 : at + 8 + size]))
        at += 12 + size
    return chunks
