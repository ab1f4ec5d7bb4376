"""The official conformance suite of Durable Streams for servers: its tests of reads pass. adapter.py writes the streams."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import NamedTuple

import pytest

from kafkasse.tools.broker import EmbeddedBroker
from tests.support.server import Server

TIMEOUT_S = 280
RUN = 125  # tests of the suite that run, at least

# The tests that do not run: a regular expression for the start of their names, and the reason.
EXCLUDED = {
    "Fork": "forks are writes",
    "Idempotent Producer": "producers are writes",
    "Reserved subscription": "subscriptions are not part of the read path",
    "Stream Closure": "a topic has no end",
    "TTL": "the retention of a topic is set in Kafka",
    ".* TTL metadata|.* Expires-At metadata": "the retention of a topic is set in Kafka",
    ".*([Ss]equence [Oo]rdering|seq ordering|seq values|sequence numbers|incrementing seq)": "Stream-Seq is for writes",
    "SSE Mode (?!.*should NOT).*(binary|base64|protobuf|image|Data-Encoding)": "the content type of our streams is JSON",
}


class Result(NamedTuple):
    """The result of one test of the suite."""

    name: str
    status: str
    message: str


@pytest.mark.timeout(TIMEOUT_S + 200)
def test_the_read_tests_of_the_official_suite_pass(suite, broker: EmbeddedBroker):
    excluded = "|".join(EXCLUDED)
    with Server(
        "tests.durable_streams.adapter:app()",
        KAFKASSE_BOOTSTRAP_SERVERS=broker.bootstrap_servers,
        KAFKASSE_CORS_ORIGINS="*",
        KAFKASSE_MAX_REJECTIONS_PER_S="0",
        KAFKASSE_MAX_STREAMS_PER_CLIENT="100",
        # A test of the suite that compares 102,400 bytes one by one may block Node for longer than the default of 5 s.
        GUNICORN_CMD_ARGS="--keep-alive=60",
    ) as server:
        report = suite / "report.json"
        subprocess.run(
            [
                "npx",
                "vitest",
                "run",
                "--reporter=json",
                f"--outputFile={report}",
                f"--testNamePattern=^(?!{excluded})",
                "--testTimeout=30000",
            ],
            cwd=suite,
            env={"PATH": os.environ["PATH"], "CONFORMANCE_TEST_URL": f"http://127.0.0.1:{server.port}"},
            check=False,
            timeout=TIMEOUT_S,
        )
        results = [
            Result(test["fullName"], test["status"], "\n".join(test["failureMessages"]))
            for file in json.loads(report.read_text())["testResults"]
            for test in file["assertionResults"]
        ]

    ran = [result for result in results if result.status not in ("skipped", "pending")]
    assert [] == [result for result in ran if result.status != "passed"]
    assert len(ran) >= RUN
    left_out = [result.name for result in results if result not in ran]
    assert [] == [pattern for pattern in EXCLUDED if not any(re.match(pattern, name) for name in left_out)]
