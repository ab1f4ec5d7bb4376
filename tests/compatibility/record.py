"""`python -m tests.compatibility.record 0.2`: store files as this version writes them in tests/compatibility/0.2.

Run this once for each release whose formats have changed. Later versions must read the files of all folders, so the
files never change. The script starts a broker, and Spark through the commands of kafkasse.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from base64 import b64encode
from contextlib import ExitStack, closing
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import yaml

from docs.site import metrics
from kafkasse import Config, schemas
from kafkasse.access.api_keys import create_key
from kafkasse.errors import KafkasseError
from kafkasse.log import Partition
from kafkasse.records.position import IdType, IdWriter, stream_offset
from kafkasse.tools.broker import EmbeddedBroker
from tests.pipelines.topics import READ_TIMEOUT_MS, read
from tests.support.kafka import Cluster

FOLDER = Path(__file__).parent
JAVASCRIPT = FOLDER.parents[1] / "kafkasse/assets/javascript"
DECLARED = re.compile(r"^(?:export (?:class|function|interface|type) |  (?:readonly )?)(\w+)(?=[?:(<; ])", re.MULTILINE)
# The modules from which the docs import.
MODULES = (
    "kafkasse", "kafkasse.app", "kafkasse.log", "kafkasse.pipelines", "kafkasse.pipelines.json_records",
    "kafkasse.pipelines.operators", "kafkasse.pipelines.rejected_records", "kafkasse_client",
)  # fmt: skip
FORMS_OF_FINITE_READS = "offsets", "leader epochs", "some partitions"  # the others contain timestamps
SOURCE, SINK, ARCHIVED = "golden-countries", "golden-topn", "golden-archive"
GUARDS = {
    "customers": {
        "jwt": {
            "jwks_url": "https://id.example/jwks.json",
            "issuer": "https://id.example/",
            "audience": "shop",
            "algorithms": ["RS256"],
        },
        "cookie": "__Host-token",
    }
}
ROUTE = {
    "path": "/me/{currency}/orders",
    "topics": ["orders"],
    "access": ["customers"],
    "where": {
        "key": "{claims.sub}",
        "headers": {"type": ["created", "paid"], "currency": "{currency}"},
        "expression": "value.amount > 10.0",
    },
    "fields": ["id", "amount"],
    "format": "envelope",
    "start": "-15m",
}
COUNTRIES = [
    {"code": code, "name": code, "continent": "Europe", "population": size, "size": size}
    for code, size in (("DE", 4), ("IT", 3), ("ES", 2), ("PL", 1))
]


def event_ids() -> list[dict[str, str]]:
    """Return IDs of every form that the server writes, offsets of finite reads, and forms of KafkaSSE."""
    offsets = {Partition("orders", 0): 12, Partition("orders", 1): 2**63 - 1, Partition("payments.eu", 0): 0}
    topic_ids = {"orders": "kQ3d8y1Z", "payments.eu": ""}
    forms: dict[str, dict[str, Any]] = {
        "offsets": {},
        "leader epochs": {"epochs": {Partition("orders", 0): 5}},
        "timestamps": {"id_type": IdType.TIMESTAMP, "timestamps": {Partition("orders", 0): 1_790_000_000_000}},
        "both": {"id_type": IdType.BOTH, "timestamps": {Partition("orders", 0): 1_790_000_000_000}},
        "some partitions": {"partial_topics": frozenset({"orders"})},
        "without a leader": {"pending": {Partition("orders", 2): 1_790_000_000_000}},
    }
    ids = []
    for form, options in forms.items():
        ids += [{"form": form, "id": IdWriter(offsets, topic_ids, compact=False, **options).render()}]
        ids += [{"form": f"{form}, compact", "id": IdWriter(offsets, topic_ids, compact=True, **options).render()}]
    for form in FORMS_OF_FINITE_READS:
        ids += [{"form": f"{form}, finite read", "id": stream_offset.of(IdWriter(offsets, topic_ids, **forms[form]))}]
    of_kafkasse = [
        '[{"topic":"orders","partition":0,"offset":12},{"topic":"orders","partition":1,"offset":7}]',
        '[{"topic":"orders","partition":0,"timestamp":1790000000000}]',
        '[{"topic":"orders","partition":0,"offset":-1}]',
        '["orders",{"topic":"payments.eu","partition":0,"offset":12}]',
    ]
    return ids + [{"form": f"KafkaSSE, {number}", "id": text} for number, text in enumerate(of_kafkasse)]


def configuration() -> dict[str, Any]:
    """Return a configuration with every setting whose example fits to the others, and a route with most of its settings."""
    settings: dict[str, Any] = {
        "allowed_topics": ["orders"],
        "public": True,
        "guards": GUARDS,
        "routes": {"mine": ROUTE},
    }
    for name, schema in schemas.read("config")["properties"].items():
        example = schema.get("examples", [schema.get("default")])[0]
        try:
            Config(**{name: example} | settings).check_servable()
        except (KafkasseError, TypeError, ValueError):
            continue
        settings = {name: example} | settings
    return settings


def names() -> dict[str, dict[str, list[str]]]:
    """Return the public names of Python and JavaScript, and the type and the labels of each metric."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \|", metrics.page(), re.MULTILINE)
    return {
        "exports": {module: sorted(import_module(module).__all__) for module in MODULES},
        "declarations": {path.name: DECLARED.findall(path.read_text()) for path in sorted(JAVASCRIPT.glob("*.d.ts"))},
        "metrics": {name: [type_, *re.findall(r"\w+", labels)] for name, type_, labels in rows},
    }


def api_key() -> dict[str, str]:
    """Return a key, its owner and the file that contains its hash."""
    key, line = create_key("partner")
    return {"owner": "partner", "key": key, "file": f"# the partners\n\n{line}\n"}


def pipeline(cluster: Cluster, into: Path) -> dict[str, Any]:
    """Run the pipeline topn until it has committed its state, and return the records of its topics."""
    topics: Any = SimpleNamespace(cluster=cluster)
    cluster.create(SOURCE)
    cluster.create(SINK)
    records = [(country["code"].encode(), json.dumps(country).encode()) for country in COUNTRIES] + [
        (b"XX", b"no JSON")
    ]
    for key, value in records:
        cluster.send(SOURCE, value, key=key, headers=[("origin", b"golden")])
    options = (
        "--source",
        SOURCE,
        "--sink",
        SINK,
        "--checkpoint",
        str(into),
        "--bootstrap-servers",
        cluster.bootstrap_servers,
    )
    with subprocess.Popen([sys.executable, "-m", "kafkasse", "pipeline", "run", "topn", *options]) as process:
        letters = read(topics, f"{SINK}.dead-letters", 1)
        results = read(topics, SINK, 1)
        process.send_signal(signal.SIGTERM)  # the pipeline commits before it ends
        process.wait(READ_TIMEOUT_MS / 1000)
    return {
        "source": [_record(key, value, [("origin", b"golden")]) for key, value in records],
        "results": [_record(each.key, each.value, each.headers) for each in results],
        "dead_letters": [_record(each.key, each.value, each.headers) for each in letters],
    }


def archive(cluster: Cluster, into: Path) -> None:
    """Archive records with and without keys, values and headers."""
    cluster.create(ARCHIVED, retention_ms="-1")
    for n in range(4):
        cluster.send(
            ARCHIVED, b'{"n":%d}' % n, key=b"k%d" % n, headers=[("h", b"x")], timestamp_ms=1_790_000_000_000 + n
        )
    cluster.send(ARCHIVED, None, key=b"k0", timestamp_ms=1_790_000_000_004)
    options = "--topic", ARCHIVED, "--once", "--bootstrap-servers", cluster.bootstrap_servers
    subprocess.run([sys.executable, "-m", "kafkasse", "archive", "run", str(into), *options], check=True)


def _record(key: bytes | None, value: bytes | None, headers: Any) -> dict[str, Any]:
    def text(data: bytes | None) -> str | None:
        return None if data is None else b64encode(data).decode()

    return {"key": text(key), "value": text(value), "headers": [[name, text(data)] for name, data in headers]}


def main(version: str) -> None:
    folder = FOLDER / version
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "event_ids.json").write_text(json.dumps(event_ids(), indent=1) + "\n")
    (folder / "names.json").write_text(json.dumps(names(), indent=1) + "\n")
    (folder / "api_key.json").write_text(json.dumps(api_key(), indent=1) + "\n")
    (folder / "kafkasse.yaml").write_text(yaml.safe_dump(configuration(), sort_keys=True))
    with ExitStack() as exits:
        broker = exits.enter_context(EmbeddedBroker())
        cluster = exits.enter_context(closing(Cluster(broker.bootstrap_servers)))
        scratch = Path(exits.enter_context(TemporaryDirectory()))
        records = pipeline(cluster, scratch / "checkpoint")
        archive(cluster, scratch / "archive")
        for name in ("checkpoint", "archive"):
            shutil.make_archive(str(folder / name), "zip", scratch / name)
    (folder / "pipeline.json").write_text(json.dumps(records).replace("}, {", "},\n{") + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
