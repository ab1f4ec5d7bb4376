"""Private names of PySpark are used in one module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import kafkasse.pipelines

PACKAGE = Path(kafkasse.pipelines.__path__[0])
OWNER = PACKAGE / "private_spark.py"
PRIVATE = {"_gateway", "_jc", "_jdf", "_jgd", "_jsc", "_jsparkSession", "_jsq", "_jvm"}


def private_names(path: Path) -> Iterator[str]:
    """Yield each use of a private attribute of PySpark. An attribute of `self` belongs to kafkasse."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE:
            owner = node.value
            if not (isinstance(owner, ast.Name) and owner.id == "self"):
                yield f"{path.name}:{node.lineno}: {ast.unparse(node)}"


def test_only_one_module_uses_private_names_of_pyspark() -> None:
    """A new version of PySpark can change them."""
    modules = [path for path in PACKAGE.rglob("*.py") if path != OWNER]

    assert [] == [name for path in modules for name in private_names(path)]
    assert list(private_names(OWNER))
