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
    """An empty module in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield tmp_path / f"{fresh_name.replace('-', '_')}.py"
    sys.modules.pop(fresh_name.replace("-", "_"), None)


def message(name: str) -> str:
    """The error for the name of a pipeline."""
    with pytest.raises(CommandError) as error:
        find(name)
    return error.value.detail


def test_finds_a_pipeline_of_kafkasse_by_its_name() -> None:
    """These need no module."""
    assert find("topn") is TOPN


def test_suggests_the_most_similar_name() -> None:
    """A typo is corrected by reading the error."""
    assert message("top-n") == "there is no pipeline top-n (did you mean topn?); choose one of: topn"


def test_finds_a_pipeline_in_a_module(shop: Path) -> None:
    """The module is in the current directory, which is not on the path of an installed command."""
    shop.write_text(MODULE)

    found = find(f"{shop.stem}:large_orders")

    assert isinstance(found, Pipeline)
    assert found.name == "large-orders"


def test_finds_a_pipeline_of_an_installed_package(shop: Path) -> None:
    """A package registers its pipelines as entry points."""
    shop.write_text(MODULE)
    metadata = shop.parent / "shop-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: shop\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[kafkasse.pipelines]\nlarge = {shop.stem}:large_orders\n")
    sys.path.insert(0, str(shop.parent))

    assert find("large").name == "large-orders"
    assert message("larg") == "there is no pipeline larg (did you mean large?); choose one of: topn, large"


def test_suggests_the_most_similar_attribute(shop: Path) -> None:
    """Only pipelines are suggested."""
    shop.write_text(MODULE)

    assert f"{shop.stem} has no large_order (did you mean large_orders?)" == message(f"{shop.stem}:large_order")


def test_an_attribute_that_is_not_a_pipeline_is_an_error(shop: Path) -> None:
    """The query alone has no topics."""
    shop.write_text(MODULE)

    assert f"{shop.stem}:query is a function, not a kafkasse.pipelines.Pipeline" == message(f"{shop.stem}:query")


def test_an_error_in_the_module_names_its_line(shop: Path) -> None:
    """A misspelled argument is a TypeError of Python."""
    shop.write_text(MODULE.replace("source=", "sources="))

    assert re.fullmatch(rf"cannot import {shop.stem}: TypeError: .*'sources'.* \({shop}:7\)", message(f"{shop.stem}:x"))


def test_an_invalid_argument_in_the_module_is_reported_as_it_is(shop: Path) -> None:
    """The message of the check is sufficient."""
    shop.write_text(MODULE.replace('"large-orders", source', '"large orders", source'))

    assert message(f"{shop.stem}:x").startswith("Pipeline: the name 'large orders' is invalid")


def test_a_missing_module_is_an_error() -> None:
    """A module that the module imports is another error."""
    assert message("no_shop.pipelines:x") == "there is no module no_shop in this directory or in the installed packages"


def test_a_missing_import_of_the_module_is_named(shop: Path) -> None:
    """The user must install it."""
    shop.write_text("import no_such_package")

    assert f"{shop.stem} imports no_such_package, which is not installed" == message(f"{shop.stem}:x")


@pytest.mark.parametrize("name", ["shop:", ":x", "shop/pipelines.py:x", "shop:x()"])
def test_a_name_that_is_not_a_module_and_an_attribute_is_an_error(name: str) -> None:
    """Nothing is imported."""
    assert message(name) == f"{name} is not written package.module:attribute, such as shop.pipelines:large_orders"
