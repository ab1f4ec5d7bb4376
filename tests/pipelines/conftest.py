"""The tests in this folder do not use the Spark session of `spark/`, so that any process can run them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipelines.topics import topics
from tests.support.certificates import Authority
from tests.support.registry import Registry

__all__ = ["topics"]


@pytest.fixture(autouse=True)
def starts_no_spark() -> Iterator[None]:
    """Fail if the test starts Spark in this process. Only one process of `make test` should have a Spark session."""
    before = SparkSession.getActiveSession()
    yield
    assert before or SparkSession.getActiveSession() is None, "move the test to tests/pipelines/spark"


@pytest.fixture
def registry() -> Iterator[Registry]:
    with closing(Registry()) as registry:
        yield registry


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Registry]:
    """A registry that serves HTTPS. The certificate of its authority is in ca.pem, together with another one."""
    authority = Authority()
    certificate, key = authority.issue("registry", "127.0.0.1")
    (tmp_path / "registry.pem").write_text(certificate + key)
    (tmp_path / "ca.pem").write_text("The authority:\n" + Authority().certificate + authority.certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "registry.pem")
    with closing(Registry(context)) as registry:
        yield registry
