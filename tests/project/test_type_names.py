"""Each type of kafkasse has a name of its own, so that a search for the name finds one type."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator


def type_names(module: ast.Module) -> Iterator[str]:
    """Yield the classes and type aliases of a module. Type variables do not count: they belong to a function or class."""
    for node in module.body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(ast.Name(id=name), value=value):
                is_variable = isinstance(value, ast.Call) and ast.unparse(value.func) in ("TypeVar", "ParamSpec")
                if name.lstrip("_")[:1].isupper() and not name.isupper() and not is_variable:
                    yield name


def test_no_two_types_have_the_same_name(root):
    """A reader who searches for the name could find the wrong one."""
    modules = defaultdict(list)
    for path in sorted((root / "kafkasse").rglob("*.py")):
        for name in type_names(ast.parse(path.read_text())):
            modules[name].append(str(path.relative_to(root)))

    assert len(modules) > 400
    assert {} == {name: paths for name, paths in modules.items() if len(paths) > 1}
