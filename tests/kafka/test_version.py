"""kafka-python's version is checked at startup."""

from __future__ import annotations

import re
import tomllib

import pytest

import kafkasse
from kafkasse.errors import ConfigurationError
from kafkasse.kafka import version
from kafkasse.log.memory import MemoryLog
from tests.support.server import ROOT


@pytest.mark.parametrize("installed", ["2.3.3", "3.0.0", "3.0.6", "3.0.7"])
def test_an_app_does_not_start_with_a_version_that_does_not_work(installed, monkeypatch):
    """The message names the installed version and the command that replaces it. With a log of its own, the app starts."""
    monkeypatch.setattr("importlib.metadata.version", lambda _: installed)

    expected = re.escape(f"kafka-python {installed} is installed") + ".*" + re.escape(f"'{version.REQUIREMENT}'")
    with pytest.raises(ConfigurationError, match=expected):
        kafkasse.blueprint(kafkasse.Config(public=True, allowed_topics=["*"]))
    kafkasse.blueprint(kafkasse.Config(public=True, allowed_topics=["*"]), MemoryLog())


@pytest.mark.parametrize("installed", ["3.0.8", "3.0.12", "3.0.13.dev1", "3.1"])
def test_newer_versions_are_accepted(installed, monkeypatch):
    """pip checks the upper end of the range."""
    monkeypatch.setattr("importlib.metadata.version", lambda _: installed)

    version.check_version()


def test_the_message_names_the_range_of_pyproject():
    """The command installs a version that pip accepts next to kafkasse."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]

    assert version.REQUIREMENT in dependencies
