"""Finite reads: one client without a CDN, and fleets behind nginx and Varnish, as deploy/proxies configures them.

The CDN, the origin, the broker and the clients share two cores, so fewer clients read fewer records than behind a real CDN.
The requests and the CPU time of the origin do not depend on the number of clients; this is what the rows show. The time of
the clients and the CDN alone is measured in the same run: the clients read again, and everything is in the cache of the CDN.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.figures import Figures, Latencies, Row
from bench.finite_clients import Finished, FiniteClients
from bench.remote import Remote
from bench.servers import KAFKASSE, Server
from bench.testbed import MAX_SAMPLES_PER_S, PARTITIONS, RECORD_BYTES, Testbed
from tests.proxies.proxies import CDNS, Program, Proxy

SINGLE_RECORDS = 300_000
WARM_UPS, SINGLE_RUNS = 2, 3
START_CLIENTS, START_RECORDS = 100, 99_000
RETURN_CLIENTS, MISSED_RECORDS = 5_000, 5_001
LIVE_S = 15.0
LIVE = (500, 20.0), (1_000, 20.0), (10_000, 2.0)  # clients and records per second
LIMITS = {
    "nginx": "two cores for all programs; nginx looks every 500 ms whether a waiting request can be answered",
    "varnish": "two cores for all programs",
}
MAX_SHARE = 1.1  # how often the origin sends a chunk
_REQUEST = re.compile(r'"GET (/\S*offset=\S+) HTTP')


@dataclass(frozen=True, slots=True)
class Site:
    """An origin behind a CDN."""

    server: Server
    port: int
    log: Path

    def requests(self) -> list[str]:
        """The targets of all finite reads of the origin."""
        return _REQUEST.findall(self.log.read_text())


def measurements() -> Iterator[tuple[str, partial[Figures]]]:
    """Yield the name and the function of each measurement."""
    yield "cdn.chunks", partial(_chunks)
    yield "cdn.start", partial(_catch_up, key="cdn.start", clients=START_CLIENTS, records=START_RECORDS)
    yield "cdn.return", partial(_catch_up, key="cdn.return", clients=RETURN_CLIENTS, records=MISSED_RECORDS)
    yield "cdn.live", partial(_live)


def _chunks(testbed: Testbed) -> Figures:
    """One client reads a topic in chunks, without a CDN, and as a stream, in turn. Both have the same warm-up."""
    figures: Figures = []
    what = f"1 client reads {SINGLE_RECORDS:,} records"
    with testbed.topics(1) as (topic,), testbed.server(KAFKASSE, [topic]) as server, Remote(FiniteClients) as clients:
        records = testbed.producer.call("fill", topic, PARTITIONS, testbed.scale.records(SINGLE_RECORDS), RECORD_BYTES)
        for number in range(WARM_UPS + SINGLE_RUNS):
            stream = testbed.catch_up(server, topic, records)
            before_s = server.cpu_s()
            chunks: Finished = clients.call("read", server.port, f"/{topic}", "-1", 1)
            cpu_s = server.cpu_s() - before_s
            if number < WARM_UPS:
                continue
            # Both clients only count the records. The seconds contain the connect.
            for name, received, seconds, used_s, goal in (
                (f"{KAFKASSE}, chunks", chunks.records, chunks.seconds, cpu_s, records / stream.seconds),
                (KAFKASSE, stream.delivered.records, stream.seconds, stream.cpu_s, math.nan),
            ):
                limit = "" if math.isnan(goal) else "each request takes as long as several hundred records"
                rate = records / seconds if received == records else math.nan
                figures += [
                    Row("cdn.chunks.rate", name, what, rate, "records/s", goal, limit),
                    Row("cdn.chunks.cpu", name, f"{what}: CPU per record", used_s / records * 1e6, "µs"),
                ]
    return figures


def _catch_up(testbed: Testbed, key: str, clients: int, records: int) -> Figures:
    """Clients read the same records at the same time, while neither the CDN nor the origin has any in memory."""
    figures: Figures = []
    clients = testbed.scale.clients(clients)
    for program in CDNS:
        with testbed.topics(1) as (topic,), Remote(FiniteClients) as fleet:
            testbed.producer.call("fill", topic, PARTITIONS, PARTITIONS, RECORD_BYTES)
            with _site(testbed, topic, program, fleet) as site:  # the fleet was here before the restart
                offset = fleet.call("read", site.server.port, f"/{topic}", "-1", 1).offset
            filled = testbed.producer.call("fill", topic, PARTITIONS, testbed.scale.records(records), RECORD_BYTES)
            with _site(testbed, topic, program, fleet) as site:
                before_s = site.server.cpu_s()
                first: Finished = fleet.call("read", site.port, f"/streams/{topic}", offset, clients)
                cpu_s, targets = site.server.cpu_s() - before_s, site.requests()
                again: Finished = fleet.call("read", site.port, f"/streams/{topic}", offset, clients)
            with testbed.server(KAFKASSE, [topic]) as server:
                _warm_up(fleet, server, topic)
                before_s = server.cpu_s()
                fleet.call("read", server.port, f"/{topic}", offset, 1)
                single_s = server.cpu_s() - before_s
        name, what = f"{KAFKASSE} behind {program.name}", f"{clients:,} clients read {filled:,} records each"
        share = first.complete / clients * 100 if {first.records, again.records} == {clients * filled} else 0.0
        figures += [
            Row(f"{key}.complete", name, f"{what}: those that received all", share, "%", 100),
            Row(f"{key}.seconds", name, f"{what}: time", first.seconds, "s", limit="the clients and the CDN"),
            Row(f"{key}.again", name, f"{what}: time if the cache of the CDN has all chunks", again.seconds, "s"),
            Row(f"{key}.cpu", name, f"{what}: CPU of the origin", cpu_s, "s", 1.0 if key == "cdn.return" else 3 * single_s),
            Row(f"{key}.single.cpu", name, "one of them without a CDN: CPU of the origin", single_s, "s"),
            Row(f"{key}.requests", name, f"{what}: requests to the origin for each chunk",
                len(targets) / len(set(targets)), "requests", MAX_SHARE if key == "cdn.start" else math.nan),
        ]  # fmt: skip
    return figures


def _live(testbed: Testbed) -> Figures:
    """Clients follow a topic with long polls. The origin's requests do not depend on their number."""
    figures: Figures = []
    seconds = testbed.scale.seconds(LIVE_S)
    for program in CDNS:
        name = f"{KAFKASSE} behind {program.name}"
        for number, rate in LIVE:
            clients, key = testbed.scale.clients(number), f"cdn.live.{number}"
            with (
                testbed.topics(1) as (topic,),
                Remote(FiniteClients) as fleet,
                _site(testbed, topic, program, fleet) as site,
            ):
                testbed.producer.call("fill", topic, PARTITIONS, PARTITIONS, RECORD_BYTES)
                offset = fleet.call("read", site.port, f"/streams/{topic}", "-1", 1).offset
                before_s, before = site.server.cpu_s(), len(site.requests())
                share = min(1.0, MAX_SAMPLES_PER_S / (rate * clients))
                fleet.start("follow", site.port, f"/streams/{topic}", offset, clients, seconds, share)
                testbed.producer.call("pace", [topic], PARTITIONS, rate, seconds, RECORD_BYTES)
                done: Finished = fleet.result()
                cpu_s, requests = site.server.cpu_s() - before_s, len(site.requests()) - before
            what = f"{clients:,} clients follow with long polls at {rate:.0f}/s"
            figures += [
                Row(f"{key}.cpu", name, f"{what}: CPU of the origin", cpu_s / done.seconds * 100, "% of a core"),
                Row(f"{key}.requests", name, f"{what}: requests to the origin", requests / done.seconds, "requests/s"),
                Row(
                    f"{key}.clients",
                    name,
                    f"{what}: CPU of the clients",
                    done.cpu_s / done.seconds * 100,
                    "% of a core",
                ),
                Latencies(
                    key, name, what, [latency / 1e6 for latency in done.latencies], {99: 500.0}, LIMITS[program.name]
                ),
            ]
    return figures


@contextmanager
def _site(testbed: Testbed, topic: str, program: Program, fleet: Remote) -> Iterator[Site]:
    with tempfile.TemporaryDirectory() as folder:
        home, log = Path(folder), Path(folder) / "access.log"
        log.touch()
        with (
            testbed.server(
                KAFKASSE, [topic], shared_cache_s="3600", gunicorn_options=f"--access-logfile {log}"
            ) as server,
            Proxy(program, server.port, home) as proxy,
        ):
            _warm_up(fleet, server, topic)
            yield Site(server, proxy.ports["http"], log)


def _warm_up(fleet: Remote, server: Server, topic: str) -> None:
    """Let the server load its app and connect to Kafka, without reading records."""
    fleet.call("read", server.port, f"/{topic}", "now", 1)
