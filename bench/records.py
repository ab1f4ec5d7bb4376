"""A producer that uses very little CPU time, so that most of the machine's time is left for the measured server.

kafka-python builds the record batches, and the producer sends them over one socket. fill() builds a batch once and sends it
many times. Each counted record contains one MARK, so that clients can count records without parsing them. A probe, which
only tests whether a stream delivers, contains a PROBE instead. The field `at` is the time when the record was due, from a
clock that all processes share. So if the producer is late, the latency contains its delay.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Sequence

from kafka.record.default_records import DefaultRecordBatchBuilder

MARK = b"`"  # one byte, so that no read can split it; it does not occur in IDs, headers or names
PROBE = b"^"
MAX_BATCH_BYTES = 500_000  # the broker takes batches of up to 1 MB
_VERSION = 3
_ACKS = 1
_TIMEOUT_MS = 30_000


def value(size: int, mark: bytes = MARK) -> bytes:
    """A JSON object of `size` bytes (at least 60) with alternating texts and numbers; 24 members in 1 KiB."""
    members: dict[str, object] = {"at": time.monotonic_ns(), "mark": mark.decode()}
    text = "a text of some length, such as a title or a comment" * max(1, size // 10_000)
    while size - len(json.dumps(members)) > len(text) + 40:
        number = len(members)
        members[f"member_{number}"] = number * 7919 if number % 2 else text
    members["rest"] = ""
    members["rest"] = "." * (size - len(json.dumps(members)))
    return json.dumps(members).encode()


def batch(values: Sequence[bytes], key: bytes | None = None) -> bytes:
    """An uncompressed record batch in format version 2."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, MAX_BATCH_BYTES * 4)
    for offset, each in enumerate(values):
        builder.append(offset, None, key, each, [])
    return bytes(builder.build())


class Producer:
    """One connection to the broker at `bootstrap_servers` (host:port), which must be the leader of all partitions."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._in_flight = 0

    def fill(self, topic: str, partitions: int, records: int, size: int, mark: bytes = MARK) -> int:
        """Append `records` records, spread evenly, as fast as the broker accepts them. Returns their number."""
        a_value = value(size, mark)
        each = records // partitions
        batch_size = max(1, min(each, MAX_BATCH_BYTES // size))
        whole, rest = batch([a_value] * batch_size), batch([a_value] * (each % batch_size or 1))
        for partition in range(partitions):
            for _ in range(each // batch_size):
                self._send(topic, partition, whole)
            if each % batch_size:
                self._send(topic, partition, rest)
            self._await_responses()
        return each * partitions

    def pace(
        self, topics: Sequence[str], partitions: int, rate: float, seconds: float, size: int, keys: int = 0
    ) -> int:
        """Append records at a steady rate, one per batch, to all topics and partitions in turn. Returns their number.

        The producer does not wait for responses. So a slow broker cannot hide delays by slowing down the producer.

        Args:
            topics: the topics.
            partitions: the number of partitions of each topic.
            rate: the records per second.
            seconds: for how long.
            size: the bytes of each record.
            keys: the records have the keys 0 to `keys` - 1 in turn. 0: they have no keys.
        """
        template = value(size)
        began_ns = time.monotonic_ns()
        count = int(rate * seconds)
        for number in range(count):
            due_ns = began_ns + int(number / rate * 1e9)
            time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
            turn = number % (len(topics) * partitions)
            records = batch([_with_time(template, due_ns)], b"%d" % (number % keys) if keys else None)
            self._send(topics[turn % len(topics)], turn // len(topics), records)
            self._read_response(socket.MSG_DONTWAIT)
        self._await_responses()
        return count

    def probe(self, topic: str, partition: int) -> None:
        """Append a record that is not counted."""
        self._send(topic, partition, batch([value(100, PROBE)]))
        self._await_responses()

    def _send(self, topic: str, partition: int, records: bytes) -> None:
        name = topic.encode()
        body = struct.pack(">hhihhhi", 0, _VERSION, partition, -1, -1, _ACKS, _TIMEOUT_MS)
        body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, partition, len(records))
        self._socket.sendall(struct.pack(">i", len(body) + len(records)) + body + records)
        self._in_flight += 1

    def _await_responses(self) -> None:
        while self._in_flight:
            self._read_response(0)

    def _read_response(self, flags: int) -> None:
        try:
            head = self._socket.recv(4, flags | socket.MSG_PEEK)
        except BlockingIOError:
            return
        if len(head) < 4:
            raise ConnectionError("the broker closed the producer's connection")
        size = 4 + struct.unpack(">i", head)[0]
        response = self._socket.recv(size, socket.MSG_WAITALL)
        # The response ends with the error code, the base offset, the append time and the throttle time.
        if error := struct.unpack(">hqqi", response[-22:])[0]:
            raise ConnectionError(f"the broker rejected records with error code {error}")
        self._in_flight -= 1


def _with_time(template: bytes, due_ns: int) -> bytes:
    """Return the record with this time in its field `at`."""
    begin = template.index(b":") + 2
    return template[:begin] + b"%d" % due_ns + template[template.index(b",") :]
