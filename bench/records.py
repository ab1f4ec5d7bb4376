"""Puts records into topics at next to no cost, so that little of the machine's time goes to anybody but the server.

Record batches are built by kafka-python and sent as they are, over one socket; those of a fill are built once and sent
many times. Each record that counts holds one MARK, by which readers count without parsing; probes, which only find out
whether a stream flows, hold a PROBE instead. `at` is when it was made, by the clock that all processes share.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Sequence

from kafka.record.default_records import DefaultRecordBatchBuilder

MARK = b"`"  # one byte, so that no read cuts it; in no id, header or name (compact ids begin with a tilde)
PROBE = b"^"
BATCH_BYTES_MAX = 500_000  # the broker takes batches of up to 1 MB
_VERSION = 3
_ACKS = 1
_TIMEOUT_MS = 30_000


def value(size: int, mark: bytes = MARK) -> bytes:
    """A JSON object of `size` bytes (60 at least): texts and numbers in turn, as events have them; 24 members in 1 KiB."""
    members: dict[str, object] = {"at": time.monotonic_ns(), "mark": mark.decode()}
    text = "a text of some length, such as a title or a comment" * max(1, size // 10_000)
    while size - len(json.dumps(members)) > len(text) + 40:
        number = len(members)
        members[f"member_{number}"] = number * 7919 if number % 2 else text
    members["rest"] = ""
    members["rest"] = "." * (size - len(json.dumps(members)))
    return json.dumps(members).encode()


def batch(values: Sequence[bytes]) -> bytes:
    """A record batch of format 2, uncompressed."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, BATCH_BYTES_MAX * 4)
    for offset, each in enumerate(values):
        builder.append(offset, None, None, each, [])
    return bytes(builder.build())


class Producer:
    """One connection to the broker at `bootstrap_servers` (host:port), which must lead all partitions."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unanswered = 0

    def fill(self, topic: str, partitions: int, records: int, size: int, mark: bytes = MARK) -> int:
        """Append `records` records, evenly, as fast as the broker takes them. Returns how many it was."""
        a_value = value(size, mark)
        each = records // partitions
        at_once = max(1, min(each, BATCH_BYTES_MAX // size))
        whole, rest = batch([a_value] * at_once), batch([a_value] * (each % at_once or 1))
        for partition in range(partitions):
            for _ in range(each // at_once):
                self._send(topic, partition, whole)
            if each % at_once:
                self._send(topic, partition, rest)
            self._await_answers()
        return each * partitions

    def pace(self, topics: Sequence[str], partitions: int, rate: float, seconds: float, size: int) -> int:
        """Append one record after the other, each in a batch of its own, to all topics and partitions in turn.

        Nothing waits for an answer, so a slow broker does not hide delays by making fewer records. Returns how many.
        """
        template = value(size)
        began = time.monotonic()
        count = int(rate * seconds)
        for number in range(count):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            place = number % (len(topics) * partitions)
            self._send(topics[place % len(topics)], place // len(topics), batch([_dated(template)]))
            self._take_answers(socket.MSG_DONTWAIT)
        self._await_answers()
        return count

    def burst(self, topic: str, partitions: int, records: int, size: int) -> int:
        """Append `records` records at once, in a few large batches, dated when they are sent. Returns how many."""
        template = value(size)
        at_once = max(1, BATCH_BYTES_MAX // size)
        each = records // partitions
        for begin in range(0, each, at_once):
            for partition in range(partitions):
                self._send(topic, partition, batch([_dated(template)] * min(at_once, each - begin)))
        self._await_answers()
        return each * partitions

    def probe(self, topic: str, partition: int) -> None:
        """Append a record that nobody counts."""
        self._send(topic, partition, batch([value(100, PROBE)]))
        self._await_answers()

    def _send(self, topic: str, partition: int, records: bytes) -> None:
        name = topic.encode()
        body = struct.pack(">hhihhhi", 0, _VERSION, partition, -1, -1, _ACKS, _TIMEOUT_MS)
        body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, partition, len(records))
        self._socket.sendall(struct.pack(">i", len(body) + len(records)) + body + records)
        self._unanswered += 1

    def _await_answers(self) -> None:
        while self._unanswered:
            self._take_answers(0)

    def _take_answers(self, flags: int) -> None:
        try:
            head = self._socket.recv(4, flags | socket.MSG_PEEK)
        except BlockingIOError:
            return
        if len(head) < 4:
            raise ConnectionError("the broker closed the producer's connection")
        size = 4 + struct.unpack(">i", head)[0]
        answer = self._socket.recv(size, socket.MSG_WAITALL)
        # Last come an error code, the base offset, the time of appending and the throttle time.
        if error := struct.unpack(">hqqi", answer[-22:])[0]:
            raise ConnectionError(f"the broker refused records with error {error}")
        self._unanswered -= 1


def _dated(template: bytes) -> bytes:
    """The record, made now."""
    begin = template.index(b":") + 2
    return template[:begin] + b"%d" % time.monotonic_ns() + template[template.index(b",") :]
