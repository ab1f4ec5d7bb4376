"""Who comes in a soak. Each client has one manner for the whole run, so that the load does not change.

A client is a greenlet. It opens one connection after the other, reads in its manner, goes, and comes back with its last
id. All that it was sent goes through its Progress; what is wrong is told to the crowd, which goes on.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from threading import Barrier

import gevent
from gevent.event import Event

from bench.soak.progress import Progress, Wrong
from bench.soak.records import Place, first_shown, value
from bench.soak.writer import Writer
from tests.support.kafka import Cluster

SILENCE_S_MAX = (
    30.0  # heartbeats come more often; so much longer than the server's deadline it may need on a busy machine
)
READ_BYTES_MAX = 65_536
SLOW_BYTES, SLOW_PAUSE_S = 1_024, 0.05
SLOW_SHARE, STALLED_SHARE = 0.6, 1.5  # of the write deadline: a slow reader stays within it, a stalled one goes beyond
SMALL_BUFFER_BYTES = 32_768
OLD_S = 150.0  # how far back those go who begin in the past
LATE_AFTER_LIVES = 6
COMPLAINTS_MAX = 50
BRIEF_RECORDS, BRIEF_READERS, BRIEF_PARTITIONS = 20, 4, 2


@dataclass(frozen=True)
class Kind:
    """A stream: its path, and the first record from the n-th on that it shows."""

    path: str
    first_shown: Callable[[int], int] = lambda n: n


PARTITIONS = 3
TOPICS = ("plain", "other", "hidden", "values")  # all are written to at one rate
QUIET = "quiet"  # nobody writes here
KINDS = Kind("/plain"), Kind("/other"), Kind("/plain,other"), Kind("/filtered/hidden", first_shown), Kind("/by-value")
VALUES_ROUTE = {"path": "/by-value", "topics": ["values"], "format": "value"}

BAD_REQUESTS: Sequence[tuple[str, str, dict[str, str], int]] = (
    ("HEAD", "/plain", {}, 200),
    ("GET", "/nothing-of-the-kind", {}, 404),
    ("GET", "/plain", {"Last-Event-ID": "garbage"}, 400),
    ("GET", "/plain", {"Last-Event-ID": '[{"topic":"plain","partition":99,"offset":0}]'}, 400),
    ("GET", "/plain", {"Last-Event-ID": "[" * 20_000}, 400),
    ("GET", "/plain?timestamp=soon", {}, 400),
    ("POST", "/plain", {}, 405),
    ("GET", "/plain", {"Accept": "text/html"}, 406),
)


class Connection:
    """One request and its response. Ends like a client that closes its socket, or is switched off.

    Attributes:
        status: of the response.
    """

    def __init__(
        self, port: int, path: str, headers: Mapping[str, str], method: str = "GET", buffer_bytes: int = 0
    ) -> None:
        self._http = HTTPConnection("127.0.0.1", port)
        self.socket = self._http.sock = socket.socket()
        if buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self.socket.settimeout(SILENCE_S_MAX)
        self.socket.connect(("127.0.0.1", port))
        self._http.request(method, path, headers=dict(headers))
        self._response = self._http.getresponse()
        self.status = self._response.status

    def read(self, within_s: float, bytes_max: int = READ_BYTES_MAX) -> bytes:
        """What comes next; b"" where the server has ended the response, in whatever way.

        Raises:
            TimeoutError: nothing came. The connection can only be closed then.
        """
        self.socket.settimeout(within_s)
        try:
            return self._response.read1(bytes_max)
        except TimeoutError:
            raise
        except (HTTPException, OSError):
            return b""

    def close(self, abruptly: bool = False) -> None:
        if abruptly:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._response.close()  # it holds the socket too
        self._http.close()


class Crowd:
    """All clients of a run.

    Args:
        port: of the server.
        writer: who says how far the topics go.
        cluster: where brief topics are made.
        write_timeout_s: the server's.

    Attributes:
        over: set when all are to come to the end.
        complaints: what was wrong.
        counts: what was done, by name.
    """

    def __init__(self, port: int, writer: Writer, cluster: Cluster, write_timeout_s: float) -> None:
        self.port = port
        self.writer = writer
        self.write_timeout_s = write_timeout_s
        self.over = Event()
        self.complaints: list[str] = []
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._greenlets: list[gevent.Greenlet] = []

    def come(self, manners: Mapping[str, int]) -> None:
        """So many clients of each manner, and besides who asks for nonsense and who makes and deletes topics."""
        number = 0
        for manner, many in manners.items():
            for _ in range(many):
                self._spawn(Client(self, number, MANNERS[manner]).run, f"{manner} {number}")
                number += 1
        self._spawn(self._ask_nonsense, "nonsense")
        self._spawn(self._make_and_delete, "brief topics")

    def end(self, within_s: float) -> None:
        """Let each come to the end of its stream, and leave. The writer must have stopped."""
        self.over.set()
        gevent.joinall(self._greenlets, within_s)
        for each in self._greenlets:
            if not each.dead:
                self.complain(each.name, f"did not come to the end within {within_s:.0f} s")
        gevent.killall(self._greenlets)

    def complain(self, who: str, what: object) -> None:
        self.counts["complaints"] += 1
        if len(self.complaints) < COMPLAINTS_MAX:
            self.complaints.append(f"{who}: {what}")
            print(self.complaints[-1], flush=True)  # at once: it may be worth a look while all is still running

    def connect(self, path: str, headers: Mapping[str, str], **how: object) -> Connection:
        self.counts["connections"] += 1
        return Connection(self.port, path, headers, **how)  # type: ignore[arg-type]

    def _spawn(self, run: Callable[[], object], name: str) -> gevent.Greenlet:
        def guarded() -> None:
            while True:
                try:
                    run()
                    return
                except Exception as error:  # noqa: BLE001 - whatever it is, it is what the soak is for
                    self.complain(name, f"{type(error).__name__}: {error}")
                    if self.over.wait(1.0):
                        return

        greenlet = gevent.spawn(guarded)
        greenlet.name = name
        self._greenlets.append(greenlet)
        return greenlet

    def _ask_nonsense(self) -> None:
        while not self.over.wait(0.5):
            for method, path, headers, status in BAD_REQUESTS:
                answer = self.connect(path, headers, method=method)
                answer.close()
                self.counts["heads and bad requests"] += 1
                if answer.status != status:
                    raise Wrong(f"{method} {path} {headers} was answered {answer.status} in place of {status}")

    def _make_and_delete(self) -> None:
        while not self.over.wait(5.0):
            name = f"brief-{time.monotonic_ns()}"
            self._cluster.create(name, BRIEF_PARTITIONS)
            ends = {(name, each): BRIEF_RECORDS for each in range(BRIEF_PARTITIONS)}
            for place, end in ends.items():
                self._cluster.send(name, *(value(place, n) for n in range(end)), partition=place[1])
            having_all = Barrier(BRIEF_READERS + 1)
            readers = [gevent.spawn(self._read_to_its_end, name, ends, having_all) for _ in range(BRIEF_READERS)]
            try:
                having_all.wait(SILENCE_S_MAX)
                self._cluster.delete(name)
                gevent.joinall(readers, raise_error=True)
            finally:
                gevent.killall(readers)
            self.counts["topics made and deleted"] += 1

    def _read_to_its_end(self, topic: str, ends: Mapping[Place, int], having_all: Barrier) -> None:
        progress = Progress()
        connection = self.connect(f"/{topic}?timestamp=0", {})
        while not progress.has_all(ends):
            if not (data := connection.read(SILENCE_S_MAX)):
                raise Wrong(f"{topic}: its reader was ended at {progress.next}: {progress.error}")
            progress.take(data)
        having_all.wait(SILENCE_S_MAX)
        while data := connection.read(SILENCE_S_MAX):
            progress.take(data)
        connection.close()
        if progress.error.get("status") != 410:
            raise Wrong(f"{topic} was deleted, and its reader was told {progress.error}")


class Client:
    """One client. `manner` is one of its methods, one connection each time it is called."""

    def __init__(self, crowd: Crowd, number: int, manner: Callable[[Client], None]) -> None:
        self._crowd = crowd
        self._manner = manner
        self._random = random.Random(number)
        self._kind = KINDS_OF.get(manner, KINDS[number % len(KINDS)])
        self._progress = Progress(self._kind.first_shown)
        self._past: deque[Progress] = deque(maxlen=LATE_AFTER_LIVES)

    def run(self) -> None:
        """Come, in its manner, again and again; in the end read all that there is."""
        self._crowd.over.wait(self._random.uniform(0, 2))  # not all at the same moment
        while not self._crowd.over.is_set():
            try:
                self._manner(self)
            except Wrong:
                self._progress = Progress(self._kind.first_shown)  # or each record from now on would be wrong
                raise
        self._read(self._connect(), SILENCE_S_MAX, lambda: self._progress.has_all(self._crowd.writer.ends))
        if not self._progress.has_all(self._crowd.writer.ends):
            raise Wrong(f"lost: it stands at {self._progress.next}, the topics end at {self._crowd.writer.ends}")

    # Manners.

    def idle(self) -> None:
        """Stays for long, where nothing is written."""
        self._read(self._connect(), self._random.uniform(20, 60))
        self._away(1)

    def steady(self) -> None:
        """Reads for a while, goes, and comes back."""
        self._read(self._connect(), self._random.uniform(10, 40))
        self._away(self._random.uniform(0, 10))

    def cutting(self) -> None:
        """Is cut at any moment, in the middle of an event too, and is back at once."""
        self._read(self._connect(), self._random.uniform(0.1, 4), abruptly=self._random.random() < 0.5)

    def slow(self) -> None:
        """Takes less than is written, falls behind, then reads on as fast as it can."""
        query = "" if self._progress.id else f"?timestamp={self._long_ago_ms()}"
        connection = self._connect(query, SMALL_BUFFER_BYTES)
        until = time.monotonic() + self._crowd.write_timeout_s * SLOW_SHARE
        while time.monotonic() < until and not self._crowd.over.is_set():
            self._take(connection.read(SILENCE_S_MAX, SLOW_BYTES))
            self._away(SLOW_PAUSE_S)
        self._read(connection, self._random.uniform(5, 10))
        self._away(self._random.uniform(30, 60))

    def stalled(self) -> None:
        """Asks for much, takes nothing, and must be closed by the deadline. What its socket holds then, it reads."""
        self._progress = Progress(self._kind.first_shown)
        connection = self._connect(f"?timestamp={self._long_ago_ms()}", SMALL_BUFFER_BYTES)
        self._away(self._crowd.write_timeout_s * STALLED_SHARE)
        deadline = time.monotonic() + SILENCE_S_MAX
        while not self._crowd.over.is_set() and time.monotonic() < deadline:
            if not (data := connection.read(SILENCE_S_MAX)):
                self._crowd.counts["stalled readers closed"] += 1
                break
            self._progress.take(data)
        else:
            if not self._crowd.over.is_set():
                raise Wrong("it took not a byte, and was not closed")
        self._over(connection)

    def late(self) -> None:
        """Comes back with an id of long ago, or begins in the past."""
        if len(self._past) == LATE_AFTER_LIVES:
            self._progress = self._past.popleft()
            self._read(self._connect(), self._random.uniform(10, 30))
        else:
            self._progress = Progress(self._kind.first_shown)
            self._read(self._connect(f"?timestamp={self._long_ago_ms()}"), self._random.uniform(10, 30))
        self._past.append(self._progress.copy())

    # What they have in common.

    def _connect(self, query: str = "", buffer_bytes: int = 0) -> Connection:
        headers = {"Last-Event-ID": self._progress.id} if self._progress.id else {}
        self._crowd.counts["resumes"] += bool(headers)
        connection = self._crowd.connect(self._kind.path + query, headers, buffer_bytes=buffer_bytes)
        if connection.status != 200:
            connection.close()
            raise Wrong(f"was answered {connection.status}")
        return connection

    def _read(
        self,
        connection: Connection,
        seconds: float,
        enough: Callable[[], bool] | None = None,
        abruptly: bool = False,
    ) -> None:
        """Read for so long or until it is enough, which it is by default when the soak is over; then leave."""
        enough = enough or self._crowd.over.is_set
        deadline = time.monotonic() + seconds
        try:
            while not enough() and (left_s := deadline - time.monotonic()) > 0:
                try:
                    self._take(connection.read(min(left_s, SILENCE_S_MAX)))
                except TimeoutError:
                    if left_s > SILENCE_S_MAX:
                        raise Wrong("silence, without a heartbeat") from None
        finally:
            self._over(connection, abruptly)

    def _take(self, data: bytes) -> None:
        if not data:
            raise Wrong(f"its stream was ended by the server: {self._progress.error}")
        before = self._progress.records
        self._progress.take(data)
        self._crowd.counts["records"] += self._progress.records - before

    def _over(self, connection: Connection, abruptly: bool = False) -> None:
        connection.close(abruptly)
        self._progress.cut()

    def _away(self, seconds: float) -> None:
        self._crowd.over.wait(seconds)

    def _long_ago_ms(self) -> int:
        return int((time.time() - OLD_S) * 1000)


MANNERS: dict[str, Callable[[Client], None]] = {
    "idle": Client.idle,
    "steady": Client.steady,
    "cutting": Client.cutting,
    "slow": Client.slow,
    "stalled": Client.stalled,
    "late": Client.late,
}
KINDS_OF = {Client.idle: Kind(f"/{QUIET}"), Client.stalled: Kind("/plain,other")}  # of others: one of KINDS
