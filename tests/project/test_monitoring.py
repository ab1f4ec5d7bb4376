"""deploy/: alert rules and dashboards use metrics and labels that exist, and the docs describe each alert."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Counter, Histogram

from kafkasse.pipelines.observe import metrics as pipelines
from kafkasse.pipelines.supervisor import PipelineState
from kafkasse.process.telemetry.metrics import METRICS, PREFIX, STALL_BUCKETS
from tests.project.conftest import alerts
from tests.support.waiting import TIMEOUT_S

FUNCTIONS = {"sum", "max", "min", "rate", "increase", "min_over_time", "histogram_quantile", "by", "or", "label_values"}
FUNCTIONS |= {"absent", "unless", "offset", "max_over_time", "last_over_time", "group", "on", "and"}
DASHBOARDS = ("kafkasse", "pipelines")
FROM_PROMETHEUS = {"job", "instance", "le"}


def dashboard(root: Path, name: str = "kafkasse") -> dict[str, Any]:
    return dict(json.loads((root / f"deploy/grafana/{name}.json").read_text()))


def expressions(root: Path) -> Iterator[str]:
    yield from (rule["expr"] for rule in alerts())
    for name in DASHBOARDS:
        for panel in dashboard(root, name)["panels"]:
            yield from (target["expr"] for target in panel["targets"])


def exported() -> dict[str, set[str]]:
    """Return the labels of each metric, by the name that Prometheus sees."""
    names: dict[str, set[str]] = {"up": set()}
    for name, metric in METRICS.items():
        suffixes = {Counter: ("_total",), Histogram: ("_bucket", "_sum", "_count")}.get(metric.type, ("",))
        names |= {f"{PREFIX}{name}{suffix}": set(metric.labels) for suffix in suffixes}
    names |= {f"{pipelines.PREFIX}{name}": set(pipelines.LABELS) for name in pipelines.METRICS}
    return names | {pipelines.STATE: {*pipelines.LABELS, "state"}}


def test_every_expression_uses_metrics_and_labels_that_exist(root):
    """A misspelled name gives no data and no error: the alert would never fire."""
    names = exported()
    labels = FROM_PROMETHEUS.union(*names.values())
    for expression in expressions(root):
        without_text = re.sub(r'"[^"]*"', '""', expression)
        words = set(re.findall(r"[a-z_]{2,}", re.sub(r"\[[^\]]*\]|\$\w+", "", without_text)))
        used = {word for word in words if word in names or word.startswith(PREFIX)}

        assert used, expression
        assert set() == used - names.keys(), expression
        assert set() == words - used - FUNCTIONS - labels, expression
        own = FROM_PROMETHEUS.union(*(names[metric] for metric in used))
        assert set() == (words & labels) - own, expression


def test_every_value_in_an_expression_exists(root):
    """Buckets, error classes and states are spelled as kafkasse spells them."""
    from kafkasse import errors
    from kafkasse.feed.core.reader_states import ReaderState
    from kafkasse.web.stream import UNEXPECTED_ERROR

    for expression in expressions(root):
        for name in re.findall(r'error!?=~?"([^"]+)"', expression):
            for error_name in name.split("|"):
                assert error_name == UNEXPECTED_ERROR or hasattr(errors, error_name), expression
        for state in re.findall(r'state="([^"]+)"', expression):
            assert state in {member.name.lower() for member in ReaderState}
        for states in re.findall(r'state=~"([^"]+)"', expression):
            assert set(states.split("|")) <= {*PipelineState}
        for bucket in re.findall(r'le="([^"]+)"', expression):
            assert float(bucket) in STALL_BUCKETS


def test_every_alert_has_a_section_in_the_docs(root):
    """The section has the cause and the remedy. The docs describe no other alert."""
    sections = {
        f"{page}#{name.lower()}": name
        for page in ("docs/operations.md", "docs/operate-pipelines.md")
        for name in re.findall(r"^### (Kafkasse\w+)$", (root / page).read_text(), re.MULTILINE)
    }

    assert sections == {rule["annotations"].get("runbook"): rule["alert"] for rule in alerts()}
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning")


@pytest.mark.parametrize(
    ("name", "prefix", "names"),
    [("kafkasse", PREFIX, [*METRICS]), ("pipelines", pipelines.PREFIX, [*pipelines.METRICS])],
)
def test_every_metric_is_on_the_dashboard(root, name, prefix, names):
    shown = " ".join(target["expr"] for panel in dashboard(root, name)["panels"] for target in panel["targets"])

    assert [] == [metric for metric in names if prefix + metric not in shown]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_dashboard_can_be_imported(root, name):
    """Grafana needs unique IDs, places that do not overlap, and a data source that the user chooses."""
    board = dashboard(root, name)
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in board["panels"]]

    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= board.keys()
    assert len(board["panels"]) == len({each["id"] for each in board["panels"]}) == len(set(places))
    assert {"datasource", "job"} == {variable["name"] for variable in board["templating"]["list"]}
    for panel in board["panels"]:
        assert "${datasource}" == panel["datasource"]["uid"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert len(panel["targets"]) == len({target["refId"] for target in panel["targets"]})


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian's package prometheus) is not installed")
def test_promtool_accepts_every_expression(root, tmp_path):
    records = [
        {"record": f"kafkasse:expression{number}", "expr": re.sub(r"\$__rate_interval", "5m", expression)}
        for number, expression in enumerate(expressions(root))
    ]
    (tmp_path / "board.yaml").write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": records}]}))

    for file in (root / "deploy/prometheus/alerts.yaml", tmp_path / "board.yaml"):
        done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, timeout=TIMEOUT_S)
        assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian's package prometheus) is not installed")
@pytest.mark.parametrize(
    ("alert", "series"),
    [
        ("KafkasseDown", {}),
        ("KafkasseDown", {"up": "0x120"}),
        ("KafkasseKafkaUnavailable", {'kafka_failures_total{pid="1"': "0x60 1+10x60"}),
        ("KafkasseKafkaUnavailable", {'requests_rejected_total{status="503",error="KafkaUnavailable"': "1+10x120"}),
        ("KafkasseMisconfigured", {'requests_rejected_total{status="500",error="ConfigurationError"': "_x112 1x8"}),
        ("KafkasseUnexpectedErrors", {'requests_rejected_total{status="500",error="UnexpectedError"': "_x112 1x8"}),
        ("KafkasseUnexpectedErrors", {'stream_errors_total{route="r",error="FilterError"': "_x112 1x8"}),
        ("KafkasseRecordsSkipped", {'records_skipped_total{topic="t",reason="not_json"': "_x112 1x8"}),
        ("KafkasseGaps", {'gaps_total{route="r",reason="the log was truncated"': "_x112 1x8"}),
        ("KafkasseRequestsRejected", {'requests_rejected_total{status="401",error="Unauthorized"': "0+60x120"}),
    ],
)
def test_an_alert_fires_although_a_metric_did_not_exist_before(root, tmp_path, alert, series):
    """A server has no series of a counter before its first increase, and Prometheus no `up` without a server."""
    own = {f'{PREFIX}{name},job="kafkasse",instance="a"}}': values for name, values in series.items() if name != "up"}
    ups = {'up{job="kafkasse",instance="a"}': series.get("up", "1x120")} if series else {}

    check_firing(root, tmp_path, [alert], own | ups)


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian's package prometheus) is not installed")
@pytest.mark.parametrize(
    ("names", "metric", "values"),
    [
        ([], "outdated_key_files", "0x119 1"),
        (["KafkasseMisconfigured"], "outdated_key_files", "0x110 1x10"),
        ([], "outdated_configuration", "0x61 1x59"),
        (["KafkasseNotReloaded"], "outdated_configuration", "0x59 1x61"),
    ],
)
def test_an_alert_fires_only_if_the_problem_lasts(root, tmp_path, names, metric, values):
    series = {f'{PREFIX}{metric}{{job="kafkasse"}}': values, 'up{job="kafkasse"}': "1x120"}

    check_firing(root, tmp_path, names, series)


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian's package prometheus) is not installed")
@pytest.mark.parametrize(
    ("alert", "name", "values"),
    [
        ("KafkasseKafkaUnavailable", "kafka_failures_total{", "0+10x120"),
        ("KafkasseMisconfigured", "outdated_key_files{", "1x120"),
        ("KafkasseUnexpectedErrors", 'stream_errors_total{error="UnexpectedError"', "0+10x120"),
        ("KafkasseFull", 'requests_rejected_total{error="ServerFull"', "0+10x120"),
        ("KafkasseWorkersFail", 'workers_failed_total{reason="died"', "0x100 1x10 2x10"),
        ("KafkasseEventLoopStalled", "event_loop_stall_seconds_count{", "0+10x120"),
    ],
)
def test_an_alert_names_the_server(root, tmp_path, alert, name, values):
    """Of two servers, only `b` fails."""
    series = {f'up{{job="kafkasse",instance="{instance}"}}': "1x120" for instance in "ab"}
    for instance, number in (("a", "0x120"), ("b", values)):
        labels = f'job="kafkasse",instance="{instance}"}}'
        series[f"{PREFIX}{name},{labels}".replace("{,", "{")] = number
        series[f'{PREFIX}event_loop_stall_seconds_bucket{{le="0.5",{labels}'] = "0x120"

    check_firing(root, tmp_path, [alert], series, instance="b")


RUNNING = {'state{state="running"': "1x120", "lag_seconds{": "5x120"}
GONE = {name: f"{values.replace('120', '60')} stale" for name, values in RUNNING.items()} | {"up": "1x60 0x60"}
# Under systemd, with Restart=on-failure and RestartSec=30.
FAILING = {"up": "1 0 0 " * 40, 'state{state="starting"': "1 stale _ " * 40, 'state{state="running"': "0 stale _ " * 40}
RESTARTED = {'state{state="running"': "1 1 1 stale " * 30, "lag_seconds{": "0 99 99 stale " * 30, "up": "1 1 1 0 " * 30}
REBUILD = {'state{state="starting"': "1x120", 'state{state="running"': "0x120", "lag_seconds{": "9000x120"}


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian's package prometheus) is not installed")
@pytest.mark.parametrize(
    ("names", "instances"),
    [
        ([], {}),
        ([], {"old": RUNNING, "new": REBUILD}),
        ([], {"old": GONE, "new": RUNNING}),
        ([], {"old": GONE | {"up": "1x60 stale"}}),
        (["KafkassePipelineDown"], {"old": GONE}),
        (["KafkassePipelineDown"], {"old": GONE, "new": GONE}),
        (["KafkassePipelineDown"], {"old": FAILING}),
        (["KafkassePipelineLags"], {"old": RESTARTED}),
        (["KafkassePipelineDown"], {"old": {"up": "0x120"}}),
        (["KafkassePipelineDown"], {"old": {'state{state="waiting"': "1x120", 'state{state="running"': "0x120"}}),
        (["KafkassePipelineDown", "KafkassePipelineLags"], {"new": REBUILD}),
        (["KafkassePipelineLags"], {"old": RUNNING | {"lag_seconds{": "0+15x120"}}),
        (["KafkassePipelineDeadLetters"], {"old": RUNNING | {"dead_letters_total{": "0x110 1x10"}}),
        (["KafkassePipelineDeadLetters"], {"old": RUNNING | {"dead_letters_total{": "_x110 1x10"}}),
        (["KafkassePipelineLateRows"], {"old": RUNNING | {"late_rows_total{": "0x110 1x10"}}),
    ],
)
def test_the_alerts_of_pipelines_fire(root, tmp_path, names, instances):
    """A version that does not run beside one that runs is not a failure. Dead letters may be older than the first scrape."""
    all_series = {instance: {"up": "1x120"} | series for instance, series in instances.items()}
    rows = [(instance, name, values) for instance, series in all_series.items() for name, values in series.items()]
    inputs = {'up{job="kafkasse",instance="a"}': "1x120"}
    for instance, name, values in rows:
        labels = f'job="kafkasse-pipelines",instance="{instance}"'
        full = f"up{{{labels}}}" if name == "up" else f'{pipelines.PREFIX}{name},pipeline="p",{labels}}}'
        inputs[full.replace("{,", "{")] = values

    check_firing(root, tmp_path, names, inputs)


def check_firing(root: Path, tmp_path: Path, names: list[str], series: dict[str, str], instance: str = "") -> None:
    """Check that exactly these alerts fire after 30 minutes, for this instance. Each series has a value every 15 s."""
    by = f', instance="{instance}"' if instance else ""
    samples = [{"labels": f'{{alertname="{name}"{by}}}', "value": 1} for name in names]
    expression = f'count by (alertname{", instance" if instance else ""}) (ALERTS{{alertstate="firing"}})'
    expected = {"expr": expression, "eval_time": "30m", "exp_samples": samples}
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    tests = [{"interval": "15s", "input_series": inputs, "promql_expr_test": [expected]}]
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(root / "deploy/prometheus/alerts.yaml")], "tests": tests}))

    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, timeout=TIMEOUT_S)

    assert 0 == done.returncode, done.stdout + done.stderr
