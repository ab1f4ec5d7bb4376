"""Limits on the number of open streams, per worker and per client."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from kafkasse.feed.feeds import Feeds, OpenRequest
from kafkasse.feed.reader import Reader
from kafkasse.log.memory import MemoryLog
from kafkasse.process.limits import MAX_FORWARDED, StreamLimits, TrustedProxies
from tests.web import clients


def client_of(**settings: object) -> FlaskClient:
    log = MemoryLog()
    log.create("t")
    return clients.client_of(log, None, **settings)


def open_stream(client: FlaskClient, opened: ExitStack, forwarded: str = "", peer: str = "10.0.0.1") -> TestResponse:
    headers = {"X-Forwarded-For": forwarded} if forwarded else {}
    response = client.get("/t", headers=headers, environ_base={"REMOTE_ADDR": peer}, buffered=False)
    opened.callback(response.close)
    return response


def test_a_full_worker_answers_503_with_retry_after(opened):
    """max_streams applies to all clients together. A stream that was closed before it was read does not count."""
    client = client_of(max_streams=2)
    open_stream(client, opened)
    for _ in range(3):
        open_stream(client, opened).close()
    assert 200 == open_stream(client, opened).status_code

    rejected = open_stream(client, opened)

    assert (503, "ServerFullError") == (rejected.status_code, rejected.json["name"])
    assert "Retry-After" in rejected.headers


def test_a_failed_request_is_not_counted(opened):
    """An invalid position fails only after the stream was counted."""
    client = client_of(max_streams=1)
    invalid = {"Last-Event-ID": '[{"topic":"t","partition":9,"offset":0}]'}
    assert [400] * 3 == [client.get("/t", headers=invalid).status_code for _ in range(3)]

    assert 200 == open_stream(client, opened).status_code


def test_a_client_without_streams_takes_no_memory():
    """Any number of addresses may come and go."""
    limits = StreamLimits(2, 2)

    for client in ("10.0.0.1", "10.0.0.2"):
        limits.enter(client)
        limits.leave(client)

    assert {} == limits._open


def test_the_limits_apply_to_head(opened):
    """A HEAD request is rejected if a GET request would be. It does not count as a stream itself."""
    client = client_of(max_streams=2, max_streams_per_client=1)

    assert [200, 200] == [client.head("/t").status_code for _ in range(2)]
    open_stream(client, opened, peer="127.0.0.1")
    assert 429 == client.head("/t").status_code
    open_stream(client, opened)
    assert 503 == client.head("/t").status_code


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("10.0.0.1", "9.9.9.9, 192.0.2.1", "192.0.2.1"),
        ("10.0.0.1", "9.9.9.9, 192.0.2.1, 10.0.0.2, [fd00::3]:80", "192.0.2.1"),
        ("::ffff:10.0.0.1", "192.0.2.1", "192.0.2.1"),
        ("10.0.0.1", "10.0.0.4, 10.0.0.2", "10.0.0.4"),
        ("10.0.0.1", "9.9.9.9, unknown, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("192.0.2.7", "9.9.9.9", "192.0.2.7"),
        ("::ffff:192.0.2.7", "", "192.0.2.7"),  # an IPv4 peer of a server that listens on `::`
        ("", "9.9.9.9, 192.0.2.1", "192.0.2.1"),  # a Unix socket of gunicorn
        ("localhost", "9.9.9.9, 192.0.2.1", "192.0.2.1"),  # a Unix socket of waitress
        ("fe80::1%br-4f0c", "9.9.9.9", "fe80::1"),  # a link-local address at a bridge
        ("fe80::1%eth0.100", "9.9.9.9", "fe80::1"),  # at a VLAN
    ],
)
def test_uses_the_last_address_outside_the_trusted_networks(peer, forwarded, expected):
    """Only a trusted proxy could record it. A client can forge the addresses before it."""
    proxies = TrustedProxies(("10.0.0.0/8", "fd00::/8"))

    assert expected == proxies.client(peer, forwarded)


def test_ignores_x_forwarded_for_without_trusted_proxies(opened):
    """A client cannot get around the limit with a forged header."""
    client = client_of(max_streams_per_client=1)
    open_stream(client, opened, forwarded="1.1.1.1")

    assert 429 == open_stream(client, opened, forwarded="2.2.2.2").status_code


@pytest.mark.parametrize(
    ("spellings", "count"),
    [
        (["2001:db8::1", "2001:DB8:0:0::1", "[2001:db8::1]", "[2001:db8::1]:4711", '"[2001:db8::1]:4711"'], 1),
        (["192.0.2.1", "192.0.2.1:4711", "::ffff:192.0.2.1", "[::ffff:c000:201]:1", '"192.0.2.1"'], 1),
        (["fe80::1%eth0", "[fe80::1%25eth0]:80", "fe80::1"], 1),
        (["unknown", "x" * 5_000, "010.0.0.1", "[::1", "::1]", '"::1', "1.2.3.4:x", "1.2.3", "10.0.0.1"], 1),
        (["192.0.2.1", "192.0.2.2", "2001:db8::1", "_secret"], 4),
        (["2001:db8::1", "2001:db8::ffff:0:0:1", "2001:db8:0:1::1"], 2),  # a subscriber has a network of 64 bits
        (["1.1.1.1, 2.2.2.2", "9.9.9.9, 2.2.2.2"], 1),  # the trusted proxy wrote the last address
        (["1.1.1.1, 2.2.2.2", "1.1.1.1, 3.3.3.3"], 2),
    ],
)
def test_spellings_of_one_address_are_one_client(opened, spellings, count):
    """Text that is not an address counts under the address of the peer, 10.0.0.1."""
    client = client_of(max_streams_per_client=1, trusted_proxies=1)

    statuses = [open_stream(client, opened, forwarded=spelling).status_code for spelling in spellings]

    assert count == statuses.count(200)


def test_a_long_list_of_proxies_is_not_read_completely():
    """Each address in X-Forwarded-For takes time, and any client can send many."""
    proxies = TrustedProxies(("10.0.0.0/8",))

    assert "1.1.1.1" == proxies.client("10.0.0.1", "1.1.1.1" + ",10.0.0.2" * (MAX_FORWARDED - 1))
    assert "10.0.0.2" == proxies.client("10.0.0.1", "1.1.1.1" + ",10.0.0.2" * MAX_FORWARDED)


def test_the_feeds_receive_the_address_of_the_client(opened, monkeypatch):
    """The addresses of clients that catch up take turns, so that one address cannot take all turns."""
    addresses: list[object] = []
    original = Feeds.open

    def open(feeds: Feeds, wanted: OpenRequest) -> Reader:
        addresses.append(wanted.client)
        return original(feeds, wanted)

    monkeypatch.setattr(Feeds, "open", open)
    open_stream(client_of(trusted_proxies=1), opened, forwarded="1.1.1.1, [2001:DB8:0::2]:80")

    assert ["2001:db8::/64"] == addresses
