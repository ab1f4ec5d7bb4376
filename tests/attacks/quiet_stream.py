"""A client of a quiet topic, in a process of its own: how long its records take while the server is attacked.

Run as `python -m tests.attacks.quiet_stream PORT TOPIC BOOTSTRAP_SERVERS`. It sends a record every 20 ms until its input
ends, then prints the delays. A delay begins when the broker has acknowledged the record. So it contains the time of a
fetch, of the server and of the processes beside them, but not the time that the broker took to store the record.

A consumer reads the same records directly from the broker. Its delays show how much of a delay is due to the broker and the
other processes, and not to the server.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

from kafka import KafkaConsumer, KafkaProducer

from tests.attacks.kit import connect, request
from tests.support.waiting import wait_until

INTERVAL_S = 0.02
RECORD = b'{"quiet":1}'
MARK = RECORD[:-1]  # the server adds a member
READY = b"ready\n"


def main(port: int, topic: str, bootstrap_servers: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers, linger_ms=0)
    acknowledged_at: list[float] = []
    received_at: list[float] = []
    consumed_at: list[float] = []
    Thread(target=consume, args=(topic, bootstrap_servers, consumed_at), daemon=True).start()
    with connect(port) as stream:
        stream.sendall(request(f"/{topic}"))
        received = b""
        while b"\nid: " not in received:
            received += stream.recv(65_536)
        producer.send(topic, RECORD).get(30)  # the consumer is slow to start
        wait_until(lambda: consumed_at)
        consumed_at.clear()
        while MARK not in received:
            received += stream.recv(65_536)
        print(READY.decode(), end="", flush=True)
        while not select.select([sys.stdin], [], [], INTERVAL_S)[0]:
            sent = producer.send(topic, RECORD).add_callback(lambda _: acknowledged_at.append(time.monotonic()))
            received = b""
            while MARK not in received:
                received += stream.recv(65_536)
            received_at.append(time.monotonic())
            sent.get(30)
    wait_until(lambda: len(consumed_at) == len(acknowledged_at) == len(received_at))
    print(
        json.dumps(
            {"records": len(received_at)}
            | figures("", acknowledged_at, received_at)
            | figures("consumer_", acknowledged_at, consumed_at)
        )
    )


def consume(topic: str, bootstrap_servers: str, consumed_at: list[float]) -> None:
    consumer = KafkaConsumer(topic, bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest")
    for _ in consumer:
        consumed_at.append(time.monotonic())


def figures(prefix: str, acknowledged_at: list[float], arrived_at: list[float]) -> dict[str, int]:
    """Return the median and the longest of the delays."""
    delays_ms = sorted(max(0.0, end - begin) * 1000 for begin, end in zip(acknowledged_at, arrived_at, strict=True))
    if not delays_ms:
        return {}
    return {f"{prefix}median_ms": round(delays_ms[len(delays_ms) // 2]), f"{prefix}longest_ms": round(delays_ms[-1])}


@contextmanager
def quiet_stream(port: int, topic: str, bootstrap_servers: str, measured: dict[str, Any]) -> Iterator[None]:
    """Meanwhile, measure the delays. Afterwards, they are in `measured`."""
    command = [sys.executable, "-m", "tests.attacks.quiet_stream", str(port), topic, bootstrap_servers]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert READY == process.stdout.readline()
        yield
        measured |= json.loads(process.communicate(timeout=60)[0])


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
