"""A pipeline is found by its name, or by its module and attribute."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline
from kafkasse.pipelines.catalog import TOPN, find

MODULE = """
from kafkasse.pipelines import Pipeline

def query(rows):
    return rows

large_orders = Pipeline("large-orders", source="orders", query=query, sink="large-orders")
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_name: str) -> Iterator[Path]:
    """A module with a pipeline in the current directory, which is not on the path of an installed command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    path = tmp_path / f"{fresh_name.replace('-', '_')}.py"
    path.write_text(MODULE)
    yield path
    sys.modules.pop(path.stem, None)


def message(name: str) -> str:
    with pytest.raises(CommandError) as error:
        find(name)
    return error.value.detail


def test_finds_a_pipeline_of_kafkasse_by_its_name() -> None:
    assert find("topn") is TOPN


def test_finds_a_pipeline_in_a_module(shop: Path) -> None:
    found = find(f"{shop.stem}:large_orders")

    assert isinstance(found, Pipeline)
    assert found.name == "large-orders"


def test_finds_a_pipeline_of_an_installed_package(shop: Path) -> None:
    """A package registers its pipelines as entry points."""
    metadata = shop.parent / "shop-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: shop\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[kafkasse.pipelines]\nlarge = {shop.stem}:large_orders\n")
    sys.path.insert(0, str(shop.parent))

    assert find("large").name == "large-orders"
    assert message("larg") == "there is no pipeline larg (did you mean large?); choose one of: topn, large"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("top-n", "there is no pipeline top-n (did you mean topn?); choose one of: topn"),
        ("no_shop.pipelines:x", "there is no module no_shop in this directory or in the installed packages"),
        *(
            (name, f"{name} is not written package.module:attribute, such as shop.pipelines:large_orders")
            for name in ("shop:", ":x", "shop/pipelines.py:x", "shop:x()")
        ),
    ],
)
def test_an_unknown_name_is_an_error(name: str, expected: str) -> None:
    """Nothing is imported. The error suggests the most similar name."""
    assert expected == message(name)


def test_an_attribute_that_is_not_a_pipeline_is_an_error(shop: Path) -> None:
    """Only pipelines are suggested. The query alone has no topics."""
    name = shop.stem

    assert f"{name} has no large_order (did you mean large_orders?)" == message(f"{name}:large_order")
    assert f"{name}:query is a function, not a kafkasse.pipelines.Pipeline" == message(f"{name}:query")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("source=", "sources=", r"cannot import {stem}: TypeError: .*'sources'.* \({path}:7\)"),
        # The message of the check is sufficient.
        ('"large-orders", source', '"large orders", source', "Pipeline: the name 'large orders' is invalid.*"),
        ("kafkasse.pipelines", "no_such_package", "{stem} imports no_such_package, which is not installed"),
    ],
)
def test_an_error_in_the_module_is_reported(shop: Path, old: str, new: str, expected: str) -> None:
    """The error of Python code names its line."""
    shop.write_text(MODULE.replace(old, new))

    assert re.fullmatch(expected.format(stem=shop.stem, path=shop), message(f"{shop.stem}:x"), re.S)
