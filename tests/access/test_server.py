"""Guards in a real server: streams end when access ends, all workers share tickets, and logs contain no tokens."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import gevent
import pytest

from kafkasse.access.api_keys import create_key
from kafkasse_client.sse import Event
from tests.access.conftest import environment, signed
from tests.server.conftest import metric
from tests.support.client import Client, fetch, numbers
from tests.support.server import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

MAX_LATE_S = 60.0  # only a stream that does not end exceeds this, however busy the machine is
LIFETIME_S = 5  # of a token


class Guarded(NamedTuple):
    """A server whose topic receives records all the time, the files of its guards and its access log, and two API keys."""

    server: Server
    keys: Path
    access_log: Path
    created: list[tuple[str, str]]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with serve(tmp_path_factory.mktemp("guarded"), 1) as guarded:
        yield guarded


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A server with two workers. Each has a log of its own."""
    with serve(tmp_path_factory.mktemp("two"), 2) as guarded:
        yield guarded


@contextmanager
def serve(folder: Path, workers: int) -> Iterator[Guarded]:
    keys = folder / "keys"
    created = [create_key("a"), create_key("b")]
    keys.write_text("".join(f"{line}\n" for _, line in created))
    variables = environment(
        folder,
        {"partners": {"api_keys": {"file": str(keys)}}},
        access=["customers", "partners"],
        allowed_topics=["t"],
        max_rejections_per_s=0,
    )
    variables |= {"KAFKASSE_ACCESS_LOG": str(folder / "access.log"), "WEB_CONCURRENCY": str(workers)}
    with Server("tests.support.apps:ticking()", **variables) as server:
        wait_until(lambda: server.log.count("Booting worker") == workers)
        guarded = Guarded(server, keys, folder / "access.log", created)
        for _ in range(workers):
            with connected(guarded, signed()) as stream:
                stream.events(1)
        yield guarded


def connected(guarded: Guarded, given: str, **headers: str) -> Client:
    return Client(guarded.server.port, "/t", **{"Authorization": f"Bearer {given}", **headers})


def written_at(event: Event) -> float:
    """When the record of an event was written, in seconds since the epoch."""
    return float(json.loads(event.data)["_kafka"]["timestamp"]) / 1000


def test_no_record_is_sent_after_the_token_expires(guarded):
    """Nor to a ticket of that token. A new token resumes without loss or duplicates."""
    expires_at = int(time.time()) + LIFETIME_S
    old = signed(exp=expires_at)
    issued = fetch(guarded.server.port, "/-/ticket?path=/t", "POST", Authorization=f"Bearer {old}").json["ticket"]
    with connected(guarded, old) as stream, Client(guarded.server.port, f"/t?ticket={issued}") as with_ticket:
        events = stream.rest()
        ended_at = time.time()
        last_of_ticket = with_ticket.rest()[-1]

    assert expires_at < ended_at
    assert max(map(written_at, (events[-1], last_of_ticket))) < expires_at + MAX_LATE_S
    assert b"retry: " in bytes(stream.body)[-600:]
    headers = {"Authorization": f"Bearer {old}", "Last_Event_ID": stream.last_id}
    assert 401 == fetch(guarded.server.port, "/t", **headers).status
    with connected(guarded, signed(), Last_Event_ID=stream.last_id) as resumed:
        assert [numbers(events)[-1] + 1] == numbers(resumed.events(1))


def test_the_streams_of_a_revoked_key_end(two_workers):
    """They end with their last event ID in all workers. The streams of other keys continue."""
    (revoked, _), (kept, kept_line) = two_workers.created
    with ExitStack() as clients:
        streams = [clients.enter_context(connected(two_workers, revoked)).ready() for _ in range(6)]
        other = clients.enter_context(connected(two_workers, kept)).ready()

        two_workers.keys.write_text(f"{kept_line}\n")
        revoked_at = time.time()
        last = [stream.rest()[-1] for stream in streams]

        assert other.events(1)
    assert max(map(written_at, last)) < revoked_at + MAX_LATE_S
    assert all(b"retry: " in bytes(stream.body)[-600:] for stream in streams)
    # A worker without one of the streams may not have looked at the file yet.
    wait_until(lambda: all(rejects(two_workers, revoked) for _ in range(8)))


def rejects(guarded: Guarded, given: str) -> bool:
    """Whether the worker that receives this request rejects a token."""
    return fetch(guarded.server.port, "/t", "HEAD", Authorization=f"Bearer {given}").status == 401


def test_a_ticket_works_once_in_all_workers_together(two_workers):
    """Of many requests at the same time with one ticket, one gets the stream."""
    for _ in range(5):
        headers = {"Authorization": f"Bearer {signed()}"}
        issued = fetch(two_workers.server.port, "/-/ticket?path=/t", "POST", **headers).json["ticket"]
        path = f"/t?ticket={issued}"

        answers = [gevent.spawn(fetch, two_workers.server.port, path, "HEAD") for _ in range(20)]

        assert [200, *[401] * 19] == sorted(answer.get().status for answer in answers)


def test_the_access_log_contains_no_tokens(guarded):
    """gunicorn logs URLs, so tokens and tickets in them are masked. The rest of the line is unchanged."""
    given = [signed(), create_key("a")[0], "a-secret-without-a-known-form"]
    for credential in given:
        for name in ("access_token", "ticket", "jwt", "x"):
            if name != "x" or not credential.startswith("a-secret"):
                fetch(
                    guarded.server.port, f"/t?{name}={credential}&kept=1", "HEAD", Authorization=f"Bearer {credential}"
                )
    wait_until(lambda: guarded.access_log.read_text().count("&kept=1") == 11)

    log = guarded.access_log.read_text()

    assert [] == [credential for credential in given if credential in log or credential in guarded.server.log]
    assert re.search(r'"HEAD /t\?access_token=\*{8}&kept=1 HTTP/1.1" 400', log)


def test_a_key_file_that_is_not_valid_is_in_the_metrics(guarded):
    """Until it is valid again, also if no client uses a key. The old keys stay in effect, so no client notices."""
    (key, _), _ = guarded.created
    valid = guarded.keys.read_text()
    guarded.server.expect("guards.partners.api_keys.file: .* The last valid content stays in effect")

    def has_invalid_files(count: int) -> bool:
        return metric(guarded.server, "outdated_key_files") == count

    wait_until(lambda: has_invalid_files(0))
    guarded.keys.write_text("not a key\n")
    wait_until(lambda: has_invalid_files(1))
    assert not rejects(guarded, key)
    guarded.keys.write_text(valid)
    wait_until(lambda: has_invalid_files(0))
