"""`make mutants`: change one expression or statement of kafkasse at a time, and list the changes that no fast test notices.

    collect the fast tests ─▶ record which test executes which lines ─▶ for each change: fork, replace the code of the
                                                                        function, run the tests that execute its line

pytest starts once, because collecting the tests takes 10 s. A forked process replaces the code of functions that the tests
have already imported. The only way to do so is the attribute `__code__`; tools such as mutmut change the files, and start
pytest for each mutant. Survivors are not all defects: some changes make no difference. Only the bodies of functions are
changed. Code that runs only during an import is reported as not executed.

Each run tries the same changes in the same order, with the same examples of Hypothesis. The exit code is 1 if the tests
notice a smaller share of them than kill_rate.toml says, by more than the error of a sample of this size.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from pathlib import Path, PurePath
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import gevent.os
import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / ".mutants.jsonl"
KILL_RATE = Path(__file__).with_name("kill_rate.toml")
SEED = 1
ERRORS = 2  # a sample's rate may be lower by this many standard errors
# The modules of each part of kill_rate.toml, as patterns.
PARTS: dict[str, tuple[str, ...]] = {
    "kafkasse/feed": ("kafkasse/feed/*.py",),
    "kafkasse/feed/core": ("kafkasse/feed/core/*.py",),
    "kafkasse/kafka": ("kafkasse/kafka/*.py",),
    "finite reads": (
        "kafkasse/feed/chunks.py",
        "kafkasse/feed/core/chunk*.py",
        "kafkasse/feed/shared_chunks.py",
        "kafkasse/records/position/stream_offset.py",
        "kafkasse/web/finite_reads.py",
        "kafkasse/web/open_read.py",
    ),
}
TESTS = (
    "tests/feed",
    "tests/kafka",
    "tests/position",
    "tests/web/test_finite_reads.py",
    "tests/history/test_delivery.py",
    "tests/history/test_worlds.py",
)
OPTIONS = ("-m", "not processes", "-p", "no:cacheprovider", "-p", "no:timeout", "-qq")
PROCESSES = 2
NICENESS = 15
MAX_MEMORY = 4 * 1024**3
KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
CRASHED, NOT_EXECUTED = "crashed the test run", "not executed by a fast test"
NOTICED = {KILLED, TIMED_OUT}
SLOW_S = 1.0  # slower tests run only for changes of their own module; those of the whole delivery always run
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add,
}  # fmt: skip
REMOVED = (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete)


class Change(NamedTuple):
    """One possible change of a module's tree."""

    statement: int  # the line of the statement that contains it
    line: int
    column: int
    what: str
    apply: Callable[[], object]


class Mutant(NamedTuple):
    """The change with this number in a module. The fields before the number identify it in the results."""

    module: str
    line: int
    column: int
    what: str
    number: int
    statement: int


class Profile(NamedTuple):
    """What one test did without a change."""

    seconds: float
    executed: frozenset[tuple[str, int]]  # the modules and lines of the statements


def changes(node: ast.AST, statement: int = 0, in_function: bool = False) -> Iterator[Change]:
    if in_function:
        statement = node.lineno if isinstance(node, ast.stmt) else statement
        for at, what, apply in _changes_of(node):
            yield Change(at.lineno if isinstance(at, ast.stmt) else statement, at.lineno, at.col_offset, what, apply)
    function = isinstance(node, ast.FunctionDef)
    for child in node.body if function else ast.iter_child_nodes(node):
        yield from changes(child, statement, in_function or function)


def _changes_of(node: ast.AST) -> Iterator[tuple[Any, str, Callable[[], object]]]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        yield node, f"compare {type(node.ops[0]).__name__}: {ast.unparse(node)}", lambda: _swap_operator(node)
    elif isinstance(node, (ast.BoolOp, ast.BinOp)) and type(node.op) in SWAPPED:
        yield node, f"swap {type(node.op).__name__}: {ast.unparse(node)}", lambda: _swap(node)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield node, f"one more: {node.value}", lambda: setattr(node, "value", node.value + 1)
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield node, f"negate: {ast.unparse(node.test)}", lambda: _negate(node)
    for statements in _blocks(node):
        for at, statement in enumerate(statements):
            if isinstance(statement, REMOVED) and not _is_docstring(statement):
                what = f"remove: {ast.unparse(statement)[:100]}"
                yield statement, what, lambda at=at, to=statements: _remove(to, at)


def _blocks(node: ast.AST) -> list[list[ast.stmt]]:
    fields = (getattr(node, name, None) for name in ("body", "orelse", "finalbody"))
    return [field for field in fields if isinstance(field, list)]


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _swap(node: ast.BoolOp | ast.BinOp) -> None:
    node.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]


def _swap_operator(node: ast.Compare) -> None:
    node.ops[0] = SWAPPED[type(node.ops[0])]()  # type: ignore[call-overload]


def _negate(node: ast.If | ast.While | ast.IfExp) -> None:
    node.test = ast.UnaryOp(ast.Not(), node.test)


def _remove(statements: list[ast.stmt], at: int) -> None:
    """Disable a statement. It stays in the tree, because a function's variables must stay the same."""
    statements[at] = ast.If(ast.Constant(False), [statements[at]], [])


def _record_lines(node: ast.AST, module: str) -> None:
    """Insert code before each statement that adds its line to `executed`. A trace function would miss some greenlets."""
    for function in ast.walk(node):
        if isinstance(function, ast.FunctionDef):
            for inner in list(ast.walk(function)):
                for statements in _blocks(inner):
                    lines = (statement.lineno for statement in statements)
                    records = (ast.parse(f"executed.add(({module!r}, {line}))").body[0] for line in lines)
                    statements[:] = [statement for pair in zip(records, statements, strict=True) for statement in pair]


def _replace_code(functions: list[FunctionType], module: str, tree: ast.Module) -> None:
    """Give the functions of a module the code of a changed tree."""
    path = str(ROOT / module)
    codes = {_key(code): code for code in _codes(compile(ast.fix_missing_locations(tree), path, "exec"))}
    for function in functions:
        if function.__code__.co_filename == path:
            function.__code__ = codes[_key(function.__code__)]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _is_ours(code: CodeType) -> bool:
    """Return whether this is a function of kafkasse. Lambdas in one line share a key, so they do not count."""
    return code.co_filename.startswith(str(ROOT / "kafkasse")) and code.co_name != "<lambda>"


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


class Mutation:
    """A pytest plugin that runs the collected tests once for each mutant, instead of once."""

    def __init__(self, sources: dict[str, str], mutants: list[Mutant], seconds: float, directory: Path) -> None:
        self._sources = sources  # as the tests have imported them
        self._mutants = mutants
        self._seconds = seconds
        self._profiles_path = directory / "profiles"
        self._functions: list[FunctionType] = []
        self._running: dict[int, Mutant] = {}
        self.left_out: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Stop hypothesis from shrinking a failing example, because the first failure is enough."""
        phases = (Phase.explicit, Phase.generate)
        fast = settings.get_profile("fast")
        settings.register_profile(
            "fast", fast, phases=phases, database=None, derandomize=True, report_multiple_bugs=False
        )
        settings.load_profile("fast")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        session.config.pluginmanager.unregister(name="terminalreporter")  # a failing test has noticed the mutant
        gc.unfreeze()  # get_objects() leaves out what tests/conftest.py has frozen
        functions = [candidate for candidate in gc.get_objects() if isinstance(candidate, FunctionType)]
        self._functions = [function for function in functions if _is_ours(function.__code__)]
        profiles = self._profiles(session)
        until = time.monotonic() + self._seconds
        for mutant in self._mutants:
            if time.monotonic() > until:
                break
            if tests := _tests_of(mutant, session.items, profiles):
                if len(self._running) == PROCESSES:
                    self._wait()
                self._running[self._fork(lambda m=mutant, t=tests: self._try(session, m, t, profiles))] = mutant
            else:
                _append(mutant, NOT_EXECUTED)
        while self._running:
            self._wait()
        return True

    def _profiles(self, session: pytest.Session) -> dict[str, Profile]:
        """Run all tests without a change, in another process."""
        os.waitpid(self._fork(lambda: self._write_profiles(session)), 0)
        lines = [json.loads(line) for line in self._profiles_path.read_text().splitlines()]
        self.left_out = [name for name, passed, _, _ in lines if not passed]
        session.items = [item for item in session.items if item.nodeid not in self.left_out]
        return {name: Profile(seconds, frozenset(map(tuple, executed))) for name, _, seconds, executed in lines}

    def _write_profiles(self, session: pytest.Session) -> None:
        executed: set[tuple[str, int]] = set()
        for module, source in self._sources.items():
            tree = ast.parse(source)
            _record_lines(tree, module)
            _replace_code(self._functions, module, tree)
        for function in self._functions:
            function.__globals__["executed"] = executed
        with self._profiles_path.open("w") as file:
            for item, following in zip(session.items, [*session.items[1:], None], strict=True):
                failed, start = session.testsfailed, time.monotonic()
                executed.clear()
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                passed, seconds = session.testsfailed == failed, time.monotonic() - start
                file.write(json.dumps([item.nodeid, passed, seconds, sorted(executed)]) + "\n")

    def _try(
        self, session: pytest.Session, mutant: Mutant, tests: list[pytest.Item], profiles: dict[str, Profile]
    ) -> None:
        """Run tests with the mutant until one fails."""
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
        tree = ast.parse(self._sources[mutant.module])
        list(changes(tree))[mutant.number].apply()
        _replace_code(self._functions, mutant.module, tree)
        for item, following in zip(tests, [*tests[1:], None], strict=True):
            # SIGPROF limits the CPU time, and SIGALRM the time, which is longer on a busy machine. Both end the process.
            signal.setitimer(signal.ITIMER_PROF, 5 + 5 * profiles[item.nodeid].seconds)
            signal.setitimer(signal.ITIMER_REAL, 30 + 5 * profiles[item.nodeid].seconds)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                os._exit(1)

    def _fork(self, work: Callable[[], None]) -> int:
        if pid := gevent.os.fork():
            return pid
        try:
            work()
        except BaseException:  # noqa: BLE001 - the child must not continue as a second parent
            traceback.print_exc()
            os._exit(2)
        os._exit(0)

    def _wait(self) -> None:
        pid, status = os.wait()
        results = {0: SURVIVED, 1: KILLED, -signal.SIGALRM: TIMED_OUT, -signal.SIGPROF: TIMED_OUT}
        _append(self._running.pop(pid), results.get(os.waitstatus_to_exitcode(status), CRASHED))


def _tests_of(mutant: Mutant, items: list[pytest.Item], profiles: dict[str, Profile]) -> list[pytest.Item]:
    """Return the tests that execute the mutant, the fastest first."""
    even_if_slow = (f"test_{Path(mutant.module).name}", "test_delivery.py", "test_worlds.py")
    executing = [item for item in items if (mutant.module, mutant.statement) in profiles[item.nodeid].executed]
    tests = [item for item in executing if profiles[item.nodeid].seconds < SLOW_S or item.path.name in even_if_slow]
    return sorted(tests, key=lambda item: profiles[item.nodeid].seconds)


def _append(mutant: Mutant, result: str) -> None:
    with RESULTS.open("a") as results:
        results.write(json.dumps([*mutant[:4], result]) + "\n")


def _sources() -> dict[str, str]:
    patterns = (pattern for part in PARTS.values() for pattern in part)
    paths = dict.fromkeys(path for pattern in patterns for path in sorted(ROOT.glob(pattern)))
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=600, help="how long to try changes, after one run of all tests"
    )
    parser.add_argument("--changes", type=int, help="try so many changes at most; their number decides the sample")
    parser.add_argument("--module", default="", help="only modules whose path contains this text")
    parser.add_argument("--part", choices=PARTS, help="only modules of this part of kill_rate.toml")
    parser.add_argument("--seed", type=int, default=SEED, help="the seed of the order of the changes")
    parser.add_argument("--resume", action="store_true", help="continue where the last run with this seed stopped")
    args = parser.parse_args()
    if not args.resume:
        RESULTS.unlink(missing_ok=True)
    sources = _sources()
    every = [
        Mutant(module, change.line, change.column, change.what, number, change.statement)
        for module, source in sources.items()
        if args.module in module and (args.part is None or _is_in(module, args.part))
        for number, change in enumerate(changes(ast.parse(source)))
    ]
    random.Random(args.seed).shuffle(every)  # noqa: S311 - a short run is a sample of all modules, always the same one
    done = _results()
    todo = [mutant for mutant in every[: args.changes] if mutant[:4] not in done]
    os.nice(NICENESS)
    with tempfile.TemporaryDirectory(prefix="kafkasse-mutants-") as directory:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = directory
        mutation = Mutation(sources, todo, args.seconds, Path(directory))
        pytest.main([*OPTIONS, *TESTS], plugins=[mutation])
    for name in mutation.left_out:
        print(f"{name} was left out: it fails without a change")
    results = _results()
    _report(every, results)
    if args.module:
        print(f"--module: the rates are not compared with {KILL_RATE.name}")
        return 0
    expected = tomllib.loads(KILL_RATE.read_text())
    too_low = [part for part, rate in expected.items() if _is_too_low(part, rate["percent"], rate["changes"], results)]
    return 1 if too_low else 0


def _results() -> dict[tuple[str, int, int, str], str]:
    lines = map(json.loads, RESULTS.read_text().splitlines()) if RESULTS.exists() else ()
    return {tuple(mutant): result for *mutant, result in lines}


def _report(every: Sequence[Mutant], results: dict[tuple[str, int, int, str], str]) -> None:
    tried = [(mutant, result) for mutant in sorted(every) if (result := results.get(mutant[:4]))]
    for mutant, result in tried:
        if result != KILLED:
            print(f"{mutant.module}:{mutant.line}:{mutant.column}: {mutant.what} ({result})")
    print(f"{len(tried)} of {len(every)} changes tried: {dict(Counter(result for _, result in tried))}")


def _is_in(module: str, part: str) -> bool:
    return any(PurePath(module).match(pattern) for pattern in PARTS[part])


def _is_too_low(part: str, percent: float, changes: int, results: dict[tuple[str, int, int, str], str]) -> bool:
    """Print the rate of a part, and return whether it is lower than expected, by more than the error of both samples."""
    of_part = [result in NOTICED for (module, *_), result in results.items() if _is_in(module, part)]
    if not of_part:
        print(f"{part}: no change tried")
        return False
    measured, share = 100 * sum(of_part) / len(of_part), percent / 100
    error = ERRORS * 100 * sqrt(share * (1 - share) * (1 / len(of_part) + 1 / changes))
    is_too_low = measured < percent - error
    verdict = f"below the {percent}% in {KILL_RATE.name}" if is_too_low else f"expected {percent}%"
    print(
        f"{part}: the tests noticed {measured:.1f}% of {len(of_part)} changes, {verdict} (sampling error {error:.1f})"
    )
    return is_too_low


if __name__ == "__main__":
    sys.exit(main())
