"""Kafka with TLS and passwords, configured by the variables that a platform sets."""

from __future__ import annotations

from contextlib import closing

import pytest

from kafkasse.tools.broker import EmbeddedBroker
from tests.support.certificates import Authority, heroku_variables
from tests.support.client import Client, fetch, numbers
from tests.support.kafka import Cluster
from tests.support.ports import HOST
from tests.support.server import Server


@pytest.fixture(scope="module")
def topic(broker: EmbeddedBroker) -> str:
    """A topic with a prefix and one record. Returns the name without the prefix."""
    with closing(Cluster(broker.bootstrap_servers)) as cluster:
        cluster.send(cluster.create("wabash-1.orders"), b'{"n":1}')
    return "orders"


def heroku(authority: Authority, port: int) -> dict[str, str]:
    return heroku_variables(authority, "wabash-1.", f"{HOST}:{port}", f"localhost:{port}")


def test_connects_with_herokus_variables(authority, ports, topic):
    """KAFKA_URL and the certificates in the environment give TLS both ways. Clients see topics without their prefix."""
    with Server(**heroku(authority, ports["SSL"])) as server, Client(server.port, f"/{topic}?timestamp=0") as stream:
        [event] = stream.events(1)
        assert 404 == fetch(server.port, f"/wabash-1.{topic}").status

    assert [1] == numbers([event])
    assert "wabash-1." not in stream.body.decode()
    assert f'"topic":"{topic}"' in event.data


def test_untrusted_broker_is_a_configuration_error(authority, ports, topic):
    """A broker's certificate from another authority: the log gives the reason, and the client gets a 500 without it."""
    variables = heroku(authority, ports["SSL"]) | {"KAFKA_TRUSTED_CERT": Authority().certificate}

    with Server(**variables) as server:
        server.expect("The broker's certificate is not trusted")
        answer = fetch(server.port, f"/{topic}")

    assert (500, False) == (answer.status, "retry-after" in answer.headers)
    assert b"certificate" not in answer.body.lower()
    assert "KAFKA_TRUSTED_CERT" in server.log
