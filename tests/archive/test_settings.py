"""The settings archive and archives."""

from __future__ import annotations

import sys

import pytest

from kafkasse.app import create_app
from kafkasse.config import Config
from kafkasse.errors import ConfigurationError
from kafkasse.log.memory import MemoryLog

BROKER = {"bootstrap_servers": ["kafka-eu.example:9093"]}


def test_each_cluster_has_its_own_archive():
    """A cluster without an archive does not use that of the setting `kafka`."""
    clusters = {"eu": BROKER, "us": BROKER}
    config = Config(archive="/srv/archive", archives={"eu": "/srv/eu"}, clusters=clusters)

    assert ["/srv/archive", "/srv/eu", ""] == [config.archive(cluster) for cluster in ("", "eu", "us")]


def test_the_cluster_of_an_archive_must_exist():
    with pytest.raises(ConfigurationError, match=r"archives\.ue is the archive of an unknown cluster"):
        Config(archives={"ue": "/srv/eu"}, clusters={"eu": BROKER})


def test_an_archive_needs_pyarrow(tmp_path, monkeypatch):
    for name in [
        module for module in sys.modules if module.split(".")[0] == "pyarrow" or module.startswith("kafkasse.archive.")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(ConfigurationError, match=r'pip install "kafkasse\[archive\]"'):
        create_app(Config(allowed_topics=["t"], public=True, archive=str(tmp_path)), MemoryLog())
