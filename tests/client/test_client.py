"""Both Python clients against a server that follows a script. tests/clients tests them against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
import gevent.event
import pytest
import requests
import responses
from urllib3.exceptions import MaxRetryError, ResponseError
from urllib3.util.retry import Retry

from kafkasse_client import AsyncStream, Event, FileStore, State, Stream, StreamError, async_stream, core, fallback
from kafkasse_client.fallback import Fallback
from tests.client.script import HEAD, START, Answers, Raw, Sends, chunk, failure, message, sent_ids
from tests.client.script import serve as serve
from tests.support.docs import code
from tests.support.server import ROOT

CONTRACT = json.loads(Path(__file__).with_name("retry_contract.json").read_text())  # the JavaScript client has the same

AnyStream = Stream | AsyncStream


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "DEFAULT_RETRY_S", 0.001)
    monkeypatch.setattr(core, "MAX_BACKOFF_S", 0.01)


@pytest.fixture(params=[Stream, AsyncStream])
def client(request: pytest.FixtureRequest) -> type[AnyStream]:
    return request.param  # type: ignore[no-any-return]


def read(stream: AnyStream, count: int) -> list[Event]:
    """Return `count` messages. The position of the last one is saved."""
    if isinstance(stream, AsyncStream):
        return asyncio.run(_read(stream, count))
    messages = (event for event in stream if event.type == "message")
    found = [next(messages) for _ in range(count)]
    stream.commit(found[-1])
    return found


async def _read(stream: AsyncStream, count: int) -> list[Event]:
    messages = (event async for event in stream if event.type == "message")
    found = [await anext(messages) for _ in range(count)]
    await stream.commit(found[-1])
    return found


def run(stream: AnyStream, **handlers: Callable[[Event], object]) -> None:
    if isinstance(stream, AsyncStream):
        asyncio.run(stream.run(**handlers))
    else:
        stream.run(**handlers)


def ids(events: Sequence[Event]) -> list[str]:
    return [event.id for event in events]


WHOLE = START + message(1)
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
EACH_CUT = [Sends(WHOLE[:size], "breaks") for size in range(len(WHOLE))]


@pytest.mark.parametrize(
    ("script", "options", "received", "sent"),
    [
        pytest.param([Sends(WHOLE, "ends"), Sends(START + message(2))], {}, ["1", "2"], {None, "1"}, id="ends"),
        pytest.param([Sends(WHOLE, "breaks"), Sends(START + message(2))], {}, ["1", "2"], {None, "1"}, id="breaks"),
        pytest.param([Sends(WHOLE, "is reset"), Sends(message(2))], {}, ["1", "2"], {None, "1"}, id="is reset"),
        pytest.param([Raw(UNTIL_CLOSED + WHOLE), Sends(message(2))], {}, ["1", "2"], {None, "1"}, id="is not chunked"),
        pytest.param([Sends(WHOLE), Sends(message(2))], {"timeout_s": 0.1}, ["1", "2"], {None, "1"}, id="is silent"),
        pytest.param(
            [Raw(UNTIL_CLOSED + WHOLE, "stays"), Sends(message(2))],
            {"timeout_s": 0.1},
            ["1", "2"],
            {None, "1"},
            id="is silent and not chunked",
        ),
        pytest.param(
            [Raw(UNTIL_CLOSED + WHOLE, "is reset"), Sends(message(2))],
            {},
            ["1", "2"],
            {None, "1"},
            id="is reset and not chunked",
        ),
        pytest.param([Raw(b"SSH-2.0\r\n\r\n"), Sends(WHOLE)], {}, ["1"], {None}, id="is not HTTP"),
        pytest.param([*EACH_CUT, Sends(message(1))], {}, ["1"], {None, "0"}, id="is cut at any byte"),
        pytest.param([Sends(b"id: 7\n\n", "ends"), Sends(message(8))], {}, ["8"], {None, "7"}, id="an ID without data"),
        pytest.param(
            [Answers(404), Sends(WHOLE)], {"retry_on": [404]}, ["1"], {None}, id="a status of the application"
        ),
    ],
)
def test_reconnects_after_the_last_event(client, serve, script, options, received, sent):
    server = serve(*script)

    assert received == ids(read(client(server.url, **options), len(received)))
    assert sent == set(sent_ids(server))


def test_reconnects_after_an_invalid_chunk(client, serve):
    """aiohttp does not wake its reader, so AsyncStream waits as long as for a silent connection."""
    received = gevent.event.Event()

    def send_invalid_chunk(connection: socket.socket) -> None:
        connection.sendall(HEAD + chunk(WHOLE))
        received.wait(60)
        connection.sendall(b"not a length\r\n")

    def handle(event: Event) -> None:
        seen.append(event.id)
        received.set()
        if event.id == "2":
            stream.close()

    seen: list[str] = []
    server = serve(send_invalid_chunk, Sends(message(2)))
    stream = client(server.url, timeout_s=0.2)
    run(stream, message=handle)

    assert ["1", "2"] == seen


def test_a_body_that_is_not_chunked_is_not_read_byte_by_byte(client, serve, monkeypatch):
    sizes: list[int] = []
    receive = core.Core.receive
    monkeypatch.setattr(core.Core, "receive", lambda self, part: sizes.append(len(part)) or receive(self, part))
    count = 100
    server = serve(Raw(UNTIL_CLOSED + START + b"".join(map(message, range(1, count + 1))), "stays"))

    read(client(server.url), count)

    assert len(sizes) < count


def test_a_large_chunk_is_read_in_parts(client, serve):
    """Otherwise, a server could fill the memory with one chunk, before the parser rejects it."""
    padding = b":%b\n" % (b"x" * 65_536)
    server = serve(Raw(HEAD + b"7fffffff\r\n" + START + message(1) + padding, "stays"))

    assert ["1"] == ids(read(client(server.url), 1))


def test_a_connection_that_cannot_be_opened_in_time_is_not_silent():
    """Long polls would not help. aiohttp's message contains the URL."""
    error = aiohttp.ServerTimeoutError("Connection timeout to host http://127.0.0.1/readings")
    reasons: list[str] = []

    def close(state: State) -> None:
        if state.name == "retrying":
            reasons.append(state.reason)
            stream.close()

    session = mock.Mock(get=mock.Mock(side_effect=error))
    stream = AsyncStream("http://127.0.0.1/readings", session=session, on_state=close)
    run(stream)

    assert [str(error)] == reasons


@pytest.mark.parametrize("blocked", [Raw(b"", "stays"), Sends(b"")], ids=["no headers", "no body"])
def test_polls_while_a_proxy_holds_back_the_stream(client, serve, monkeypatch, blocked):
    """The client keeps its position, and its state does not change between the polls. Later, it reads the stream again."""
    monkeypatch.setattr(fallback, "FIRST_EVENT_S", 0.2)
    monkeypatch.setattr(fallback, "PROBE_S", 0.1)
    monkeypatch.setattr(core, "MIN_POLL_S", 0.06)
    ended = Fallback.ended  # as if each request took 0.06 s, so that the client probes after two polls on any machine
    monkeypatch.setattr(Fallback, "ended", lambda *arguments: ended(*arguments[:3], core.MIN_POLL_S))

    def note(state: State) -> None:
        states.append(state)
        if state.name == "retrying":  # on a busy machine, the stream that is read later may need more than 0.2 s
            monkeypatch.setattr(fallback, "FIRST_EVENT_S", 60.0)

    polls = [Sends(START + message(number), "ends") for number in (6, 7)]
    server = serve(blocked, *polls, Sends(START + message(8)))
    states: list[State] = []

    assert ["6", "7", "8"] == ids(read(client(f"{server.url}?a=b", last_event_id="5", on_state=note), 3))

    urls = [line.split()[1] for line in server.lines]
    assert ["/t?a=b", "/t?a=b&live=events", "/t?a=b"] == [urls[0], urls[1], urls[-1]]
    assert ["5", "5", "6", "7"] == sent_ids(server)
    names = [state.name for state in states]
    assert ["retrying", "connecting", "open", "connecting", "open"] == names[names.index("retrying") :]
    assert any("continuing with long polls" in state.reason for state in states)


@pytest.mark.parametrize("case", CONTRACT["responses"], ids=str)
def test_retries_the_responses_of_the_contract(client, serve, case):
    """The state and the exception contain the server's reason."""
    fields = {} if case["retry_after"] is None else {"Retry_After": case["retry_after"]}
    server = serve(Answers(case["status"], **fields), Sends(START + message(1)))
    reasons: list[str] = []
    stream = client(server.url, on_state=lambda state: reasons.append(state.reason))

    if case["is_retried"]:
        assert ["1"] == ids(read(stream, 1))
        assert f"the server answered {case['status']}: no: {case['status']}" in reasons
    else:
        with pytest.raises(StreamError, match=f"no: {case['status']}") as raised:
            run(stream)
        assert (case["status"], 1) == (raised.value.status, len(server.requests))


@pytest.mark.parametrize("case", CONTRACT["error_events"], ids=str)
def test_retries_the_error_events_of_the_contract(client, serve, case):
    """The events before the error count."""
    error = b"event: error\ndata: %b\n\n" % case["data"].encode()
    server = serve(Sends(START + message(1) + error, "ends"), Sends(START + message(2)))

    if case["is_retried"]:
        assert ["1", "2"] == ids(read(client(server.url), 2))
        assert [None, "1"] == sent_ids(server)
    else:
        seen: list[Event] = []
        with pytest.raises(StreamError):
            run(client(server.url), message=seen.append)
        assert (["1"], 1) == (ids(seen), len(server.requests))


def test_waits_as_long_as_retry_after_says(client, serve):
    """close() ends the wait."""
    server = serve(Answers(429, Retry_After="40"))
    waits: list[float] = []

    def close(state: State) -> None:
        if state.name == "retrying":
            waits.append(state.wait_s)
            stream.close()

    stream = client(server.url, on_state=close)
    run(stream)

    assert 40 <= waits[0]


def test_does_not_connect_again_before_the_wait_is_over(client, serve):
    server = serve(Answers(503, Retry_After="1"), Sends(START + message(1)))
    times: list[float] = []

    read(client(server.url, on_state=lambda state: times.append(time.monotonic())), 1)

    connecting, _, again, _ = times
    assert again - connecting >= 1


def test_the_wait_doubles_after_each_failure(client, serve, monkeypatch):
    """A response that is an error does not count as a connection that was open for a long time."""
    monkeypatch.setattr(core, "MAX_BACKOFF_S", 30)
    server = serve(*[Answers(503)] * 5, Sends(START + message(1)))
    waits: list[float] = []

    read(client(server.url, on_state=lambda state: waits.append(state.wait_s)), 1)

    pauses = [wait_s for wait_s in waits if wait_s]
    assert len(pauses) == 5
    assert all(wait_s >= core.DEFAULT_RETRY_S * 2**number for number, wait_s in enumerate(pauses))


def test_gets_a_new_token_after_a_401(client, serve):
    """The client asks for a new token once, and resumes with it at once."""
    states: list[str] = []
    server = serve(Sends(START + message(1), "ends"), Answers(401), Sends(START + message(2)))

    def token(refresh: bool) -> str:
        return "new" if refresh else "old"

    stream = client(
        server.url, token=token, headers={"X-Tenant": "a"}, on_state=lambda state: states.append(state.name)
    )
    assert ["1", "2"] == ids(read(stream, 2))
    assert 1 == states.count("retrying")  # after the end of the first response
    assert ["Bearer old", "Bearer old", "Bearer new"] == [request["authorization"] for request in server.requests]
    assert ("1", "a") == (server.requests[2]["last-event-id"], server.requests[2]["x-tenant"])


def test_headers_can_be_a_function(client, serve):
    """The function provides a new value after a 401, as for tokens."""
    server = serve(Answers(401), Sends(START + message(1)))

    assert ["1"] == ids(read(client(server.url, headers=lambda refresh: {"X-Key": str(refresh)}), 1))
    assert ["False", "True"] == [request["x-key"] for request in server.requests]


def test_a_second_401_ends_the_stream(client, serve):
    """A new token that the server rejects too does not become valid by a retry."""
    server = serve(Answers(401))

    with pytest.raises(StreamError):
        run(client(server.url, token=lambda refresh: "bad"))

    assert 2 == len(server.requests)


def test_each_token_of_a_quiet_stream_may_expire(client, serve):
    """A 401 is final only for a new token. A token that the server has accepted is not new, so the client refreshes it."""
    expires = Sends(START, "ends"), Answers(401)
    server = serve(*expires, *expires, Sends(START + message(1)))

    assert ["1"] == ids(read(client(server.url, token=lambda refresh: str(refresh)), 1))
    asked = [request["authorization"].removeprefix("Bearer ") for request in server.requests]
    assert ["False", "False", "True", "False", "True"] == asked


def test_waits_after_an_error_event_with_the_status_401(client, serve):
    """The server accepts each new token and then ends the stream, so the client must not connect again at once."""
    server = serve(Sends(START + failure(401), "ends"), Sends(START + failure(401), "ends"), Sends(START + message(1)))
    states: list[str] = []

    def token(refresh: bool) -> str:
        states.append(str(refresh))
        return "t"

    assert ["1"] == ids(read(client(server.url, token=token, on_state=lambda state: states.append(state.name)), 1))
    once = ["open", "retrying", "connecting", "True"]
    assert ["connecting", "False", *once, *once, "open"] == states


def test_a_token_function_with_a_name_that_is_not_defined_ends_the_stream(client, serve):
    """A retry would hide the mistake."""
    server = serve(Sends(START + message(1)))

    with pytest.raises(NameError, match="missing"):
        run(client(server.url, token=lambda refresh: missing.token()))  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    "options", [{"token": lambda refresh: "s3cret\n"}, {"token": "s3cret\r\nA: b"}, {"headers": {"X-Key": " s3cret"}}]
)
def test_a_header_that_cannot_be_sent_is_an_error_without_its_value(client, serve, options):
    """requests would raise a ValueError that quotes the secret."""
    server = serve(Sends(START))

    with pytest.raises(StreamError, match=r"the header (Authorization|X-Key) contains a line break") as error:
        run(client(server.url, **options))

    assert "s3cret" not in str(error.value)
    assert [] == server.requests


def test_a_handler_for_a_type_that_no_event_has_is_an_error(client, serve):
    """It would never be called."""
    server = serve(Sends(START + failure(410), "ends"))

    with pytest.raises(TypeError, match="no event has the type 'mesage'; the types are position, message, delete"):
        run(client(server.url), mesage=print)

    assert [] == server.requests


def test_calls_a_token_function_that_failed_again(client, serve):
    """The issuer of the tokens may be down for a while."""
    server = serve(Sends(START + message(1)))
    errors = [OSError("the issuer is down")]

    def token(refresh: bool) -> str:
        if errors:
            raise errors.pop()
        return "t"

    assert ["1"] == ids(read(client(server.url, token=token), 1))


def test_saves_the_position_after_the_event_was_processed(client, serve):
    server = serve(Sends(START + message(1) + message(2)))
    saved: list[str] = []
    seen: list[tuple[str, list[str]]] = []

    def handle(event: Event) -> None:
        seen.append((event.id, [*saved]))
        if event.id == "2":
            raise KeyError

    with pytest.raises(KeyError):
        run(client(server.url, store=saved.append, last_event_id="0"), message=handle)

    assert [("1", []), ("2", ["1"])] == seen
    assert (["1"], "0") == (saved, server.requests[0]["last-event-id"])


def test_a_file_keeps_the_position_for_the_next_process(client, serve, tmp_path):
    server = serve(Sends(START + message(1)), Sends(START + message(2)))
    store = FileStore(tmp_path / "position")

    read(client(server.url, store=store), 1)
    read(client(server.url, store=store), 1)

    assert [None, "1"] == sent_ids(server)
    assert ["position"] == [path.name for path in tmp_path.iterdir()]
    assert "2" == store.load()


def test_a_file_is_replaced_as_a_whole(tmp_path):
    """If the process is killed while it writes the position, the file contains the previous one."""
    store = FileStore(tmp_path / "position")
    store.save("1")
    (tmp_path / "position.new").write_text("incompl")

    assert "1" == store.load()


def test_an_empty_position_file_is_an_error(client, tmp_path):
    """Otherwise, the client would skip records and not say so."""
    file = tmp_path / "position"
    file.write_text("\n")

    with pytest.raises(ValueError, match="position is empty; to start at the route's default, delete it"):
        client("http://127.0.0.1:1", store=FileStore(file))


def test_a_response_that_is_no_stream_is_an_error(client, serve):
    """Its URL is probably wrong."""
    server = serve(Answers(200))

    with pytest.raises(StreamError, match="not with an event stream"):
        run(client(server.url))


def test_a_position_that_could_not_be_saved_can_be_committed_again(client):
    saved: list[str] = []
    errors = [OSError("the disk is full")]

    def save(position: str) -> None:
        if errors:
            raise errors.pop()
        saved.append(position)

    def commit() -> None:
        result = stream.commit(Event("message", "", "1"))
        if result is not None:
            asyncio.run(result)

    stream = client("http://127.0.0.1", store=save)
    with pytest.raises(OSError, match="the disk is full"):
        commit()
    commit()

    assert (["1"], "1") == (saved, stream.position)


def test_a_response_that_is_no_stream_is_closed_before_the_wait(serve):
    """The response of a proxy may be endless."""
    page = Raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>", "stays")
    closed = gevent.event.Event()

    def send_page(connection: socket.socket) -> None:
        page(connection)
        closed.set()

    def wait(state: State) -> None:
        if state.name == "retrying" and "text/html" in state.reason:
            assert closed.wait(60)
            stream.close()

    server = serve(Sends(START + message(1), "ends"), send_page)
    stream = Stream(server.url, on_state=wait)
    stream.run()

    assert 2 == len(server.requests)


def test_a_loop_of_redirects_is_an_error(client, serve):
    server = serve(Raw(b"HTTP/1.1 302 Found\r\nLocation: /t\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))

    with pytest.raises((aiohttp.TooManyRedirects, requests.TooManyRedirects)):
        run(client(server.url))


def test_an_error_of_the_application_is_not_one_of_the_network(client, serve):
    """For example, if on_state() writes the state to a database that is down."""
    server = serve(Sends(START))

    def show(state: State) -> None:
        if state.name == "open":
            raise ConnectionError("the database is down")

    with pytest.raises(ConnectionError, match="the database is down"):
        run(client(server.url, on_state=show))

    assert 1 == len(server.requests)


def test_the_reason_may_arrive_in_parts(serve, monkeypatch):
    """requests waits for the whole body; aiohttp returns its first part."""
    received = gevent.event.Event()
    next_chunk = async_stream._next_chunk

    async def receive(response: aiohttp.ClientResponse, silence_s: float) -> bytes:
        part = await next_chunk(response, silence_s)
        received.set()
        return part

    def send_parts(connection: socket.socket) -> None:
        connection.sendall(b'HTTP/1.1 403 X\r\nContent-Length: 17\r\n\r\n{"detail"')
        received.wait(60)
        connection.sendall(b':"no 1"}')

    monkeypatch.setattr(async_stream, "_next_chunk", receive)
    with pytest.raises(StreamError, match="the server answered 403: no 1"):
        run(AsyncStream(serve(send_parts).url))


def test_a_coroutine_function_that_hangs_is_called_again(serve):
    server = serve(Sends(START + message(1)))
    reasons: list[str] = []
    calls: list[bool] = []

    async def token(refresh: bool) -> str:
        calls.append(refresh)
        if len(calls) == 1:
            await asyncio.Event().wait()
        return "t"

    stream = AsyncStream(server.url, token=token, timeout_s=0.2, on_state=lambda state: reasons.append(state.reason))

    assert ["1"] == ids(read(stream, 1))
    assert "the token or the headers are not available: TimeoutError()" in reasons


def test_coroutine_functions_are_awaited(serve):
    """The asynchronous client accepts them for tokens, positions and handlers."""
    server = serve(Sends(START + message(1) + message(2)))
    calls: list[Any] = []

    async def token(refresh: bool) -> str:
        calls.append("token")
        return "t"

    async def save(position: str) -> None:
        calls.append(position)

    async def handle(event: Event) -> None:
        calls.append(event.json())
        stream.close()

    stream = AsyncStream(server.url, token=token, store=save)
    asyncio.run(stream.run(message=handle))

    assert ["token", "0", {"n": 1}, "1"] == calls[:4]


def test_uses_the_session_of_the_application(serve):
    """The session may have cookies, certificates and proxies. The stream does not close it."""
    server = serve(Sends(START + message(1)))

    async def read_async() -> bool:
        async with aiohttp.ClientSession(headers={"X-App": "a"}) as session:
            await _read(AsyncStream(server.url, session=session), 1)
            return session.closed

    with requests.Session() as session:
        session.headers["X-App"] = "a"
        read(Stream(server.url, session=session), 1)

    assert not asyncio.run(read_async())
    assert ["a", "a"] == [request["x-app"] for request in server.requests]


def test_a_session_that_raises_errors_changes_no_rule(serve):
    """aiohttp would raise an error without the status; requests raises an error after its own retries."""
    server = serve(Answers(503), Answers(503), Sends(START + message(1)))
    rejecting = serve(Answers(404), Sends(START + failure(410), "ends"))

    async def run_async() -> None:
        async with aiohttp.ClientSession(raise_for_status=True) as session:
            await AsyncStream(rejecting.url, session=session).run()

    with requests.Session() as session:
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=Retry(1, status_forcelist=[503])))
        received = read(Stream(server.url, session=session), 1)

    assert ["1"] == ids(received)
    with pytest.raises(StreamError, match="404"):
        asyncio.run(run_async())


def test_a_reason_does_not_contain_the_url(serve):
    """Its query may contain a ticket. urllib3 1.26 does not chain the error that led to the last one."""
    server = serve(Sends(START + message(1)))

    class Adapter(requests.adapters.HTTPAdapter):
        def send(self, *args: Any, **options: Any) -> requests.Response:
            session.mount("http://", requests.adapters.HTTPAdapter())
            try:
                raise MaxRetryError(None, "/t?ticket=s3cret", ResponseError("too many 503 error responses"))
            except MaxRetryError as error:
                raise requests.exceptions.RetryError(error)  # noqa: B904 - as requests does

    states: list[State] = []
    with requests.Session() as session:
        session.mount("http://", Adapter())
        read(Stream(server.url, session=session, on_state=states.append), 1)

    assert ["the connection failed: too many 503 error responses"] == [s.reason for s in states if s.name == "retrying"]


def test_says_why_the_connection_failed(client):
    reasons: list[str] = []

    def close(state: State) -> None:
        if state.name == "retrying":
            reasons.append(state.reason)
            stream.close()

    stream = client("http://127.0.0.1:1/t", on_state=close)
    run(stream)

    assert re.fullmatch("the connection failed: Connect(ion refused| call failed .*)", reasons[0])


def test_says_that_the_connection_broke(client, serve):
    """urllib3 reports an invalid chunk length, but the cause is that the connection broke."""
    reasons: list[str] = []

    def close(state: State) -> None:
        if state.name == "retrying":
            reasons.append(state.reason)
            stream.close()

    stream = client(serve(Sends(START + message(1), then="breaks")).url, on_state=close)
    run(stream)

    assert ["the connection failed: the response is incomplete"] == reasons


def test_another_thread_can_close_a_stream_that_waits(serve):
    """close() is thread-safe, and ends the wait at once."""
    server = serve(Answers(503, Retry_After="100"))
    waits = threading.Event()
    stream = Stream(server.url, on_state=lambda state: waits.set() if state.name == "retrying" else None)
    thread = threading.Thread(target=stream.run, daemon=True)
    thread.start()

    assert waits.wait(60)
    stream.close()
    thread.join(60)

    assert not thread.is_alive()


@responses.activate
def test_works_with_responses():
    """Applications can test their code without a server."""
    url = "https://example.com/t"
    responses.get(url, body=START + message(1), content_type="text/event-stream")
    responses.get(url, json={"detail": "gone"}, status=410)
    stream = Stream(url)
    seen: list[Event] = []

    with pytest.raises(StreamError, match="gone"):
        stream.run(message=seen.append)

    assert ["1"] == ids(seen)
    assert "1" == responses.calls[1].request.headers["Last-Event-ID"].decode()


def test_netrc_does_not_replace_the_token(serve, tmp_path, monkeypatch):
    """requests prefers the password in ~/.netrc to a header."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login l password p\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    server = serve(Sends(START + message(1)))

    with closing(Stream(server.url, token=lambda refresh: "t")) as stream:
        read(stream, 1)

    assert "Bearer t" == server.requests[0]["authorization"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("page", "number"), [("docs/python.md", 0), ("docs/python.md", 1), ("kafkasse_client/README.md", 0)]
)
def test_the_examples_of_the_docs(serve, tmp_path, page, number):
    """The clients resume after a break and a 503, and end with the server's reason."""
    example = code(page, "python")[number]
    server = serve(
        Sends(START + message(1) + message(2)[:-5], "breaks"), Answers(503), Sends(message(2) + failure(410), "ends")
    )
    program = example.replace("http://127.0.0.1:6917/topn/updates", server.url)

    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert "{'n': 1}\n{'n': 2}\n" == done.stdout
    assert done.stderr.endswith("StreamError: the server ended the stream: no: 410\n")
    assert [None, "1", "1"] == sent_ids(server)
    assert "2\n" == (tmp_path / "topn.position").read_text()


def test_the_example_of_the_parser(serve, capsys):
    server = serve(Sends(START + message(1) + message(2), "ends"))
    example = code("kafkasse_client/README.md", "python")[1]

    exec(example.replace("http://127.0.0.1:6917/topn/updates", server.url), {})  # noqa: S102 - our own docs

    assert 'position {}\nmessage {"n":1}\nmessage {"n":2}\n' == capsys.readouterr().out
