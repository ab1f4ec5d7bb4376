"""Clients that connect: how long it takes until their streams are open, and what an open stream costs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial

from bench.figures import Figures, Row
from bench.servers import CONFLUENT, FLASK_VIEW, GO, KAFKA_SSE, KAFKASSE, STARLETTE, Server
from bench.testbed import CATCH_UP_TIMEOUT_S, PARTITIONS, RECORD_BYTES, Testbed

STREAMS = 500
SINGLE_STREAMS = 100
FIRST_CLIENTS = 20  # after them, memory that a server allocates only once is not counted
IDLE_S = 5.0
MISSED_RECORDS = 100
LIMIT = f"one core: the request handling of Flask and gunicorn, which is that of {FLASK_VIEW}"


def measurements() -> Iterator[tuple[str, partial[Figures]]]:
    """Yield the name and the function of each measurement."""
    yield "opening", partial(_opening)
    yield "idle.50", partial(_idle, clients=50, servers=(CONFLUENT, KAFKA_SSE))
    yield "idle.1000", partial(_idle, clients=1000, servers=(KAFKASSE, GO, STARLETTE))
    yield "idle.10000", partial(_idle, clients=10_000, servers=(KAFKASSE,))
    yield "returning", partial(_returning, clients=1000)


def _opening(testbed: Testbed) -> Figures:
    """Open many streams at the same time, and others one after the other while one stream is open.

    The baselines send :ok at once. kafkasse sends its first event after it has found the position. The response of the
    Flask view ends after :ok.
    """
    figures, streams = Figures(), testbed.scale.clients(STREAMS)
    for name in testbed.shuffled((KAFKASSE, GO, STARLETTE, FLASK_VIEW)):
        with testbed.topics(1) as topics, testbed.server(name, topics) as server:
            testbed.open(server, topics, 1)
            request, began, before_s = server.request(f"/{topics[0]}"), time.monotonic(), server.cpu_s()
            opened = testbed.clients.open([request] * streams)
            seconds = time.monotonic() - began if len(opened) == streams else math.nan
            cpu_s = server.cpu_s() - before_s
            testbed.clients.close_all()
            single_cpu_s = _single(testbed, server, topics)
        goals = (0.2, 0.4) if name == KAFKASSE else (math.nan, math.nan)
        what = f"open {streams:,} streams at the same time"
        figures += [
            Row("opening.seconds", name, what, seconds, "s", goals[0], LIMIT),
            Row("opening.cpu", name, f"{what}: CPU per stream", cpu_s / streams * 1e3, "ms", limit=LIMIT),
            Row("opening.single.cpu", name, "open and close one stream on an idle server: CPU", single_cpu_s * 1e3, "ms",
                goals[1], LIMIT),
        ]  # fmt: skip
    return figures


def _single(testbed: Testbed, server: Server, topics: list[str]) -> float:
    """Return the CPU time to open and close one stream."""
    testbed.open(server, topics, 1)
    request, streams = server.request(f"/{topics[0]}"), testbed.scale.clients(SINGLE_STREAMS)
    before_s = server.cpu_s()
    for _ in range(streams):
        testbed.one_client.open([request])
        testbed.one_client.close_all()
    cpu_s = server.cpu_s() - before_s
    testbed.clients.close_all()
    return cpu_s / streams


def _idle(testbed: Testbed, clients: int, servers: tuple[str, ...]) -> Figures:
    """Measure the memory, the CPU time and the connections to Kafka of a server whose clients only wait."""
    figures, key, clients = Figures(), f"idle.{clients}", testbed.scale.clients(clients)
    for name in testbed.shuffled(servers):
        with (
            testbed.topics(1) as topics,
            testbed.server(name, topics, max_streams=str(clients + FIRST_CLIENTS + 1)) as server,
        ):
            first = min(FIRST_CLIENTS, clients)
            testbed.open(server, topics, first)
            base_bytes = server.memory_bytes()
            opened = len(testbed.clients.open([server.request(f"/{topics[0]}")] * clients))
            added_bytes = server.memory_bytes() - base_bytes
            sockets, before_s = server.sockets_to(testbed.broker_port), server.cpu_s()
            time.sleep(testbed.scale.seconds(IDLE_S))
            cores = (server.cpu_s() - before_s) / testbed.scale.seconds(IDLE_S)
            testbed.clients.close_all()
        what = f"{clients:,} idle clients"
        figures += [
            Row(f"{key}.memory", name, f"{what}: memory per client", added_bytes / opened / 1024, "KiB",
                3.0 if name == KAFKASSE else math.nan, "a stream, a reader, a socket and its watcher; no greenlet"),
            Row(f"{key}.cpu", name, f"{what}: server CPU", cores * 100, "% of a core", limit="heartbeats"),
            Row(f"{key}.base", name, f"memory of the server with {first} clients", base_bytes / 2**20, "MiB"),
            Row(f"{key}.sockets", name, f"{what}: connections to Kafka", sockets, "connections"),
        ]  # fmt: skip
    return figures


def _returning(testbed: Testbed, clients: int) -> Figures:
    """All clients of a worker return after a deploy. The new worker's ring is empty, so it reads what they have missed."""
    clients = testbed.scale.clients(clients)
    with testbed.topics(2) as (topic, other), testbed.server(KAFKASSE, [topic]) as server:
        missed = testbed.producer.call("fill", topic, PARTITIONS, MISSED_RECORDS, RECORD_BYTES)
        testbed.open(server, [other], 1)  # the server's first connection to Kafka is not measured
        testbed.clients.close_all()
        entries = ",".join(f'{{"topic":"{topic}","partition":{number},"offset":0}}' for number in range(PARTITIONS))
        request, before_s = server.request(f"/{topic}", f"Last-Event-ID: [{entries}]\r\n"), server.cpu_s()
        began = testbed.clients.connect([request] * clients)
        testbed.clients.expect(missed, CATCH_UP_TIMEOUT_S)
        delivered = testbed.clients.delivered()
        cpu_s = server.cpu_s() - before_s
        testbed.clients.close_all()
    seconds = delivered.ended / 1e9 - began if delivered.complete == clients else math.nan
    what = f"{clients:,} clients return, {missed} records behind"
    return [
        Row("returning.seconds", KAFKASSE, f"{what}: time until the last has all of them", seconds, "s"),
        Row("returning.cpu", KAFKASSE, f"{what}: CPU per client", cpu_s / clients * 1e3, "ms"),
    ]
