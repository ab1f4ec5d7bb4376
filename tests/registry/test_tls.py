"""A registry that serves HTTPS and requires client certificates (mutual TLS)."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkasse.errors import RegistryUnavailable
from kafkasse.records.registry import lookup
from kafkasse.records.registry.client import RegistryClient
from kafkasse.records.registry.lookup import SchemaRegistry
from kafkasse.settings import SchemaRegistrySettings
from tests.support.certificates import Authority
from tests.support.registry import Registry
from tests.support.waiting import TIMEOUT_S


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificates of the authority, the registry and kafkasse, and those of another authority."""
    folder, authority, other = tmp_path_factory.mktemp("tls"), Authority(), Authority()
    for name, certificate, key in (
        ("authority", authority.certificate, ""),
        ("registry", *authority.issue("registry", "127.0.0.1")),
        ("kafkasse", *authority.issue("kafkasse")),
        ("stranger", *other.issue("kafkasse")),
        ("other", other.certificate, ""),
    ):
        (folder / f"{name}.crt").write_text(certificate)
        (folder / f"{name}.key").write_text(key)
        (folder / f"{name}.pem").write_text(certificate + key)
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[Registry]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "authority.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / "registry.crt", folder / "registry.key")
    server = Registry(context)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call waits for the result even on a busy machine."""
    monkeypatch.setattr(lookup, "MAX_WAIT_S", TIMEOUT_S)


def decoded(server: Registry, folder: Path, **files: str) -> object:
    """Return a value that is decoded with a schema of the registry."""
    paths = {name: str(folder / file) for name, file in files.items()}
    settings = SchemaRegistrySettings(url=server.url, timeout_s=TIMEOUT_S, **paths)
    registry = SchemaRegistry(RegistryClient(settings), TIMEOUT_S, logging.getLogger("registry"))
    return registry.schema(server.register("n", "long")).decode(b"\2")


@pytest.mark.parametrize(
    "files", [{"cert_file": "kafkasse.crt", "key_file": "kafkasse.key"}, {"cert_file": "kafkasse.pem"}]
)
def test_logs_in_with_a_client_certificate(server, folder, files, monkeypatch):
    """The key is in a file of its own, or in that of the certificate. A variable does not override ca_file."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(folder / "other.crt"))

    assert 1 == decoded(server, folder, ca_file="authority.crt", **files)


@pytest.mark.parametrize(
    "files",
    [
        {"ca_file": "authority.crt"},
        {"ca_file": "authority.crt", "cert_file": "stranger.pem"},
        {"ca_file": "authority.crt", "cert_file": "kafkasse.crt", "key_file": "stranger.key"},
        {"ca_file": "authority.crt", "cert_file": "kafkasse.crt", "key_file": "no-such-file"},
        {"ca_file": "other.crt", "cert_file": "kafkasse.pem"},
        {"cert_file": "kafkasse.pem"},
    ],
    ids=lambda files: " ".join(files.values()),
)
def test_a_rejected_certificate_is_an_error_that_names_the_settings(server, folder, files, lines):
    """It is not retried, because only an operator can correct it."""
    with pytest.raises(RegistryUnavailable):
        decoded(server, folder, **files)

    (line,) = lines()
    assert line.startswith(f"The schema registry {server.url} rejects requests")
    assert "cert" in line or "key file" in line
    assert [] == server.requests
