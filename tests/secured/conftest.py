"""A Kafka broker with TLS and passwords, for tests of settings that it accepts and rejects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkasse.tools.broker import EmbeddedBroker
from tests.support.certificates import Authority
from tests.support.ports import reserved_ports
from tests.support.secured_broker import LISTENERS, secured_broker


@pytest.fixture(scope="package")
def authority() -> Authority:
    """The authority that signed the certificates of the broker and of its clients."""
    return Authority()


@pytest.fixture(scope="package")
def ports() -> Iterator[dict[str, int]]:
    with reserved_ports(*LISTENERS) as ports:
        yield ports


@pytest.fixture(scope="package")
def broker(processes: None, authority: Authority, ports: dict[str, int]) -> Iterator[EmbeddedBroker]:
    """Replaces the broker that all other tests share."""
    with secured_broker(authority, ports) as running:
        yield running


@pytest.fixture
def files(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with files of a trusted and of an unknown client, and the certificates of their authorities."""
    for name, issuer in {"trusted": authority, "unknown": Authority()}.items():
        certificate, key = issuer.issue(name)
        (tmp_path / f"{name}.ca").write_text(issuer.certificate)
        (tmp_path / f"{name}.pem").write_text(certificate)
        (tmp_path / f"{name}.key").write_text(key)
    monkeypatch.chdir(tmp_path)
    return tmp_path
