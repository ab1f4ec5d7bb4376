"""Clients read one stream, each through its own proxy, while faults end their connections.

    Writer ──▶ Kafka ──▶ Server ──▶ Proxy ──▶ client ──▶ one line of JSON for each event

tests/history/checker.py judges each client: the events that the client printed must be one correct history, as if no
connection had ever ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import gevent
import yaml

from tests.chaos.network import Conditions
from tests.clients.programs import Printed, Program, build, environment, printed
from tests.clients.proxy import CutPoint, Proxy
from tests.history.checker import Connection, History, violations
from tests.history.cluster import Witness, Writer
from tests.support.issuer import SECRET, SETTINGS
from tests.support.kafka import Cluster
from tests.support.server import KILLED, Server
from tests.support.waiting import POLL_S, wait_until

GUARDED = "/guarded"
PARTITIONS = 3
WRITES_PER_S = 10  # one record to each partition
RETRY_MS = 300
DOWN_S = 1.0  # how long connections are refused, or requests get a 503
TOKEN_LIFETIME_S = 6
BUFFERED_TOKEN_LIFETIME_S = 20  # a stream that ends within 15 s passes through a proxy that buffers it
MAX_RECOVERY_S = 120.0  # a client that has received nothing for this long after a fault has stopped

# The worker stops before the first record; it is killed; the server restarts; the worker stops; a reverse proxy responds
# with 503, or with 429; clients that store their position are killed and started again, and pages that do so are reloaded; a
# connection breaks within an event. The clients of kafkasse also have tokens that expire.
FAULTS = "first", "kill", "restart", "end", "503", "429", "client", "cut"
FIRST, KILL, RESTART, END, REJECT, LIMIT, CLIENT, CUT = FAULTS
STATUSES = {REJECT: b"503 Service Unavailable", LIMIT: b"429 Too Many Requests\r\nRetry-After: 1"}


def _at_line(number: int, share: float) -> CutPoint:
    return lambda lines: len(b"".join(lines[:number])) + int(len(lines[number]) * share)


# In the middle and at the end of each of the three lines of an event.
CUT_POINTS = [_at_line(number, share) for number in range(3) for share in (0.5, 1)]


class Result(NamedTuple):
    """The result of one client.

    Attributes:
        disconnects: how often it disconnected while the stream was quiet, before the first fault.
        log: the lines that the client printed in addition to events, and the status of each response.
    """

    violations: list[str]
    disconnects: int
    log: str


class Client:
    """A running program, and the events that it has printed so far."""

    def __init__(self, program: Program, server_port: int, stream: str, directory: Path, is_buffered: bool) -> None:
        self.name = program.name
        self.has_token = program.has_token
        self.events: list[Printed] = []
        self.log: list[str] = []
        self.newest = -1  # the highest number of a record that it printed
        self.has_stopped = False
        self.disconnects = 0
        self.proxy = Proxy(server_port, stream, is_buffered)
        self._end = program.end
        self._directory = directory
        url = f"http://127.0.0.1:{self.proxy.port}{stream}"
        self._command = program.command(build(program.toolchain), directory, url)
        self._start()

    def _start(self) -> None:
        # If the program was killed before it stored the position of this event, it receives the event again.
        self._in_progress = self.events[-1] if self.events else None
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
            cwd=self._directory,
            start_new_session=True,  # so that close() also ends the processes that the program has started
        )
        self._reading = gevent.spawn(self._read)

    def restart(self) -> None:
        """End the program if it stores its position, and start it again."""
        if self._end is not None:
            self._stop(self._end)
            self._start()

    def close(self) -> None:
        self._stop(signal.SIGKILL)
        self.proxy.close()

    def _stop(self, end: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, end)
        self._process.wait()
        self._reading.join()

    @property
    def first_id(self) -> str | None:
        return next((exchange.first_id for exchange in self.proxy.exchanges if exchange.first_id), None)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = printed(line)
            if event is None:
                self.log.append(line)
                continue
            if self._in_progress:
                if event.event == "position":  # The response starts with it; it may be older.
                    continue
                is_repeated, self._in_progress = event == self._in_progress, None
                if is_repeated:
                    continue
            self.events.append(event)
            if event.event == "message":
                with suppress(ValueError):  # the data is incomplete, which is a violation
                    self.newest = max(self.newest, json.loads(event.data)["n"])


class Scenario:
    """A server, a writer and clients, until the `with` block ends. `is_buffered`: the proxies hold back all streams."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        programs: Sequence[Program],
        directory: Path,
        is_buffered: bool = False,
    ) -> None:
        self._is_buffered = is_buffered
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._programs = programs
        self._directory = directory
        self._written = 0
        self._is_writing = True
        self._stack = ExitStack()
        self.clients: list[Client] = []

    def __enter__(self) -> Scenario:
        with closing(Cluster(self._bootstrap_servers)) as cluster:
            cluster.create(self._topic, PARTITIONS)
        secret = self._directory / "secret"
        secret.write_bytes(SECRET)
        config = {
            "kafka": {"bootstrap_servers": self._bootstrap_servers},
            "allowed_topics": [self._topic],
            "public": True,
            "guards": {
                "expiring": {"jwt": {**SETTINGS, "algorithms": ["HS256"], "secret_file": str(secret), "leeway_s": 0}}
            },
            "routes": {"guarded": {"path": GUARDED, "topics": [self._topic], "access": ["expiring"]}},
            "retry_ms": RETRY_MS,
        }
        (self._directory / "kafkasse.yaml").write_text(yaml.safe_dump(config))
        (self._directory / "generation").write_text("0")
        with self._stack as stack:
            self._writer = stack.enter_context(closing(Writer(self._bootstrap_servers)))
            self._server = self._serve()
            stack.callback(lambda: self._server.stop())
            # Clients with a token start last: a token that expires during the wait for other clients doubles the backoff.
            for has_token in (False, True):
                self.clients += [stack.enter_context(closing(client)) for client in self._started(has_token)]
                self._wait_until(lambda client: bool(client.first_id), after="its start")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, quiet_s: float) -> dict[str, Result]:
        """Inject all faults, `quiet_s` seconds after all clients have started. Return the result of each client."""
        for client in self.clients:
            client.disconnects = -len(client.proxy.exchanges)
        gevent.sleep(quiet_s)
        for client in self.clients:
            client.disconnects += len(client.proxy.exchanges)
        writing: gevent.Greenlet | None = None
        for fault in FAULTS:
            for inject in self._injections(fault):
                inject()
                writing = writing or gevent.spawn(self._write)  # FIRST occurs before the first record
                number = self._written
                self._wait_until(lambda client, number=number: client.newest >= number, after=fault)
        self._is_writing = False
        gevent.joinall([writing])
        self._wait_until(lambda client: client.newest == self._written - 1, after="the last record")
        return self._results()

    def _started(self, has_token: bool) -> Iterator[Client]:
        for number, program in enumerate(self._programs):
            if program.has_token != has_token:
                continue
            directory = self._directory / str(number)
            directory.mkdir()
            stream = GUARDED if program.has_token else f"/{self._topic}"
            yield Client(program, self._server.port, stream, directory, self._is_buffered)

    def _serve(self) -> Server:
        lifetime_s = BUFFERED_TOKEN_LIFETIME_S if self._is_buffered else TOKEN_LIFETIME_S
        return Server(
            "tests.clients.app:create()",
            KAFKASSE_CONFIG=str(self._directory / "kafkasse.yaml"),
            TOKEN_LIFETIME_S=str(lifetime_s),
        )

    def _write(self) -> None:
        while self._is_writing:
            for partition in range(PARTITIONS):
                self._send(partition)
            self._writer.flush()
            gevent.sleep(1 / WRITES_PER_S)

    def _send(self, partition: int) -> None:
        number, self._written = self._written, self._written + 1
        text = "x" * (number * 7919 % 100)
        self._writer.send(self._topic, partition, json.dumps({"n": number, "text": text}).encode())

    # Faults.

    def _injections(self, fault: str) -> list[Callable[[], None]]:
        if fault == CUT:
            return [partial(self._cut, point) for point in CUT_POINTS]
        if fault in STATUSES:
            return [partial(self._reject, STATUSES[fault])]
        injections = {FIRST: self._end, KILL: self._kill, RESTART: self._restart, END: self._end, CLIENT: self._clients}
        return [injections[fault]]

    def _kill(self) -> None:
        self._server.expect(KILLED)
        self._replace_worker(signal.SIGKILL)

    def _end(self) -> None:
        self._replace_worker(signal.SIGTERM)

    def _replace_worker(self, end: signal.Signals) -> None:
        [worker] = self._server.workers()
        os.kill(worker, end)
        wait_until(lambda: self._server.workers() not in ([], [worker]))

    def _restart(self) -> None:
        for client in self.clients:
            client.proxy.conditions = Conditions(refuses=True)
        self._server.stop()
        gevent.sleep(DOWN_S)
        self._server = self._serve()
        for client in self.clients:
            client.proxy.target_port = self._server.port
            client.proxy.heal()

    def _reject(self, status: bytes) -> None:
        for client in self.clients:
            client.proxy.rejects = status
            client.proxy.cut()
        gevent.sleep(DOWN_S)
        for client in self.clients:
            client.proxy.rejects = None

    def _cut(self, point: CutPoint) -> None:
        for client in self.clients:
            client.proxy.cut_point = point
        self._wait_until(lambda client: client.proxy.cut_point is None, after="the previous cut")

    def _clients(self) -> None:
        (self._directory / "generation").write_text("1")  # the pages notice it
        for client in self.clients:
            client.restart()

    def _wait_until(self, condition: Callable[[Client], bool], after: str) -> None:
        """Wait until the condition is true for each client that has not stopped. Those that do not reach it have stopped."""
        deadline = time.monotonic() + MAX_RECOVERY_S
        waiting = [client for client in self.clients if not client.has_stopped]
        while waiting and time.monotonic() < deadline:
            gevent.sleep(POLL_S)
            waiting = [client for client in waiting if not condition(client)]
        for client in waiting:
            client.has_stopped = True
            client.log.append(f"stopped after {after}\n")

    # The result.

    def _results(self) -> dict[str, Result]:
        with closing(Witness(self._bootstrap_servers, [self._topic])) as witness:
            ends = witness.read()
        results = {}
        for client in self.clients:
            # The topic was empty when the client connected.
            history = History(client.name, [self._topic], [_as_connection(client)], start="earliest")
            wrong = violations([history], witness.stored, acknowledged=self._writer.acknowledged, reached=ends)
            disconnects = 0 if client.has_token else client.disconnects  # its stream ends when its token expires
            results[client.name] = Result(wrong, disconnects, _log(client))
        return results


def _as_connection(client: Client) -> Connection:
    """Return the events that the client printed as one response, which starts with the first ID that the server sent."""
    blocks = [f"id: {client.first_id}\n\n"]
    for event, event_id, data in client.events:
        lines = "".join(f"data: {line}\n" for line in data.split("\n"))
        blocks.append(f"event: {event}\n{lines}id: {event_id}\n\n" if event_id else f"event: {event}\n{lines}\n")
    return Connection(None, 200, "".join(blocks).encode())


def _log(client: Client) -> str:
    requests = [
        f"{exchange.status} for {exchange.last_id} {exchange.parameters}\n" for exchange in client.proxy.exchanges
    ]
    return "".join([*client.log[-20:], *requests])
