"""`make mutants`: change one expression or statement of kafkasse at a time, and list the changes that no fast test notices.

    module ─▶ places ─▶ one changed copy of the project ─▶ the fast tests of that part ─▶ killed, or survived

The copy is in a temporary directory, so the sources stay as they are. Results are appended to a file, and a run continues
where an earlier one stopped. A test run that takes too long counts as killed, because many changes cause endless loops.
Survivors are not all defects: some changes make no difference.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / ".mutants.jsonl"
TIMEOUT_S = 120
TESTS = {
    "kafkasse/feed": ["tests/feed", "tests/history/test_delivery.py"],
    "kafkasse/kafka": ["tests/kafka"],
}
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add,
}  # fmt: skip


def changed(source: str, number: int) -> str:
    """Return the source with one of its possible changes."""
    tree = ast.parse(source)
    _, _, apply = list(_changes(tree))[number]
    apply()
    return ast.unparse(ast.fix_missing_locations(tree))


def _changes(tree: ast.Module) -> Iterator[tuple[int, str, Callable[[], object]]]:
    """Yield the line, a description and a function that changes the tree, for each place in functions."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                yield from _changes_of(node)


def _changes_of(node: ast.AST) -> Iterator[tuple[int, str, Callable[[], object]]]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        yield node.lineno, f"compare {type(node.ops[0]).__name__}: {ast.unparse(node)}", lambda: _swap_operator(node)
    elif isinstance(node, (ast.BoolOp, ast.BinOp)) and type(node.op) in SWAPPED:
        yield node.lineno, f"swap {type(node.op).__name__}: {ast.unparse(node)}", lambda: _swap(node)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield node.lineno, f"one more: {node.value}", lambda: setattr(node, "value", node.value + 1)
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield node.lineno, f"negate: {ast.unparse(node.test)}", lambda: _negate(node)
    for name in ("body", "orelse", "finalbody"):
        statements = getattr(node, name, None)
        for at, statement in enumerate(statements if isinstance(statements, list) else ()):
            if isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete)) and not _is_docstring(
                statement
            ):
                what = f"remove: {ast.unparse(statement)[:100]}"
                yield statement.lineno, what, lambda at=at, to=statements: to.__setitem__(at, ast.Pass())


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _swap(node: ast.BoolOp | ast.BinOp) -> None:
    node.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]


def _swap_operator(node: ast.Compare) -> None:
    node.ops[0] = SWAPPED[type(node.ops[0])]()  # type: ignore[call-overload]


def _negate(node: ast.If | ast.While | ast.IfExp) -> None:
    node.test = ast.UnaryOp(ast.Not(), node.test)


def survives(copy: Path, module: str, source: str, tests: list[str]) -> bool:
    """Return whether all tests pass with this source of the module."""
    path = copy / module
    before = path.read_text()
    path.write_text(source)
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not processes", *tests]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HISTORY_SEED": "1"}
    try:
        options = {"cwd": copy, "env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        words += ["--hypothesis-profile=fast", f"--timeout={TIMEOUT_S}"]
        return subprocess.run(words, timeout=TIMEOUT_S, check=False, **options).returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        path.write_text(before)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long to run")
    parser.add_argument("--module", default="", help="only modules whose path contains this text")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")
    args = parser.parse_args()
    if args.fresh:
        RESULTS.unlink(missing_ok=True)
    done = {tuple(json.loads(line)[:3]) for line in RESULTS.read_text().splitlines()} if RESULTS.exists() else set()
    with tempfile.TemporaryDirectory(prefix="kafkasse-mutants-") as directory:
        copy = Path(directory) / "project"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__"))
        every = [
            (module, line, what, number, tests)
            for part, tests in TESTS.items()
            for path in sorted((copy / part).glob("*.py"))
            if args.module in (module := str(path.relative_to(copy)))
            for number, (line, what, _) in enumerate(_changes(ast.parse(path.read_text())))
        ]
        todo = [each for each in every if each[:3] not in done]
        random.shuffle(todo)  # a short run is a sample of all modules
        for part, tests in TESTS.items():
            init = f"{part}/__init__.py"
            if args.module in part and not survives(copy, init, (copy / init).read_text(), tests):
                sys.exit(f"{' '.join(tests)} fail without a change.")
        until = time.monotonic() + args.seconds
        for module, line, what, number, tests in todo:
            if time.monotonic() > until:
                break
            survived = survives(copy, module, changed((copy / module).read_text(), number), tests)
            with RESULTS.open("a") as results:
                results.write(json.dumps([module, line, what, survived]) + "\n")
    _report(len(every))
    return 0


def _report(count: int) -> None:
    found = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    survivors = sorted(each[:3] for each in found if each[3])
    for module, line, what in survivors:
        print(f"{module}:{line}: {what}")
    print(f"{len(found)} of {count} changes tried, {len(survivors)} survived")


if __name__ == "__main__":
    sys.exit(main())
