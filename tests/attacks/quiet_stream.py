"""A client of a quiet topic, in a process of its own: how long its records take while the server is attacked.

Run as `python -m tests.attacks.quiet_stream PORT TOPIC BOOTSTRAP_SERVERS`. It sends a record every 20 ms until its input
ends, then prints the delays. A delay begins when the broker has acknowledged the record. So it contains the time of a
fetch, of the server and of the processes beside them, but not the time that the broker took to store the record.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kafka import KafkaProducer

from tests.attacks.kit import connect, request

INTERVAL_S = 0.02
RECORD = b'{"quiet":1}'
MARK = RECORD[:-1]  # the server adds a member
READY = b"ready\n"


def main(port: int, topic: str, bootstrap_servers: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers, linger_ms=0)
    delays_ms: list[float] = []
    with connect(port) as stream:
        stream.sendall(request(f"/{topic}"))
        received = b""
        while b"\nid: " not in received:
            received += stream.recv(65_536)
        print(READY.decode(), end="", flush=True)
        while not select.select([sys.stdin], [], [], INTERVAL_S)[0]:
            acknowledged_at: list[float] = []
            sent = producer.send(topic, RECORD)
            sent.add_callback(lambda _, times=acknowledged_at: times.append(time.monotonic()))
            received = b""
            while MARK not in received:
                received += stream.recv(65_536)
            received_at = time.monotonic()
            sent.get(30)
            delays_ms.append(max(0.0, received_at - acknowledged_at[0]) * 1000)
    delays_ms.sort()
    figures = {"records": len(delays_ms)}
    if delays_ms:
        figures |= {"median_ms": round(delays_ms[len(delays_ms) // 2]), "longest_ms": round(delays_ms[-1])}
    print(json.dumps(figures))


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
