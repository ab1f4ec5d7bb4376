"""deploy/kubernetes: the manifests match the server's settings. `make test-long` checks them against the schemas."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pyspark
import pytest
import yaml

from kafkasse import Config, schemas
from kafkasse.app import create_app
from kafkasse.commands import pipeline
from kafkasse.log.memory import MemoryLog
from kafkasse.pipelines.execution import runner
from kafkasse.process.telemetry.metrics import METRICS, PREFIX
from tests.support.server import ROOT, TOOLS

DIRECTORY = ROOT / "deploy/kubernetes"

Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def manifests() -> dict[str, Manifest]:
    files = (DIRECTORY / "kafkasse.yaml", DIRECTORY / "autoscaler.yaml", DIRECTORY / "podmonitor.yaml")
    return {manifest["kind"]: manifest for file in files for manifest in yaml.safe_load_all(file.read_text())}


@pytest.fixture(scope="module")
def pod(manifests: dict[str, Manifest]) -> Manifest:
    """The specification of the pods."""
    return dict(manifests["Deployment"]["spec"]["template"]["spec"])


@pytest.fixture(scope="module")
def container(pod: Manifest) -> Manifest:
    (container,) = pod["containers"]
    return dict(container)


def test_kubernetes_waits_until_the_streams_have_ended(pod, container, gunicorn):
    """The grace period is longer than preStop and gunicorn's graceful_timeout together."""
    program, seconds = container["lifecycle"]["preStop"]["exec"]["command"]

    assert "sleep" == program
    assert pod["terminationGracePeriodSeconds"] >= int(seconds) + gunicorn["shutdown_s"]


def test_the_liveness_probe_leaves_gunicorn_time_to_restart_a_worker(container, gunicorn):
    """The liveness probe fails for longer than gunicorn needs to restart a worker that does not respond."""
    probe = container["livenessProbe"]

    assert probe["periodSeconds"] * probe["failureThreshold"] > gunicorn["timeout"]


@pytest.mark.parametrize(("probe", "path"), [("readinessProbe", "/-/ready"), ("livenessProbe", "/-/health")])
def test_the_probes_use_endpoints_of_the_server(container, gunicorn, probe, path):
    """Each probe gets status 200 at the port on which the server listens by default."""
    request = container[probe]["httpGet"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    client = create_app(Config(allowed_topics=["*"], public=True), MemoryLog()).test_client()

    assert path == request["path"]
    assert 200 == client.get(path).status_code
    assert [f"0.0.0.0:{ports[request['port']]}"] == gunicorn["bind"]


def test_the_configuration_is_valid(manifests, container, tmp_path):
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    (mount,) = (volume for volume in container["volumeMounts"] if volume["name"] == "config")
    ((name, text),) = manifests["ConfigMap"]["data"].items()
    (tmp_path / name).write_text(text)

    config = Config.load({}, tmp_path / name)
    config.check_servable()

    assert all(route.access for route in config.routes if route.topics or route.allowed)  # nothing is public
    assert variables["KAFKASSE_CONFIG"] == f"{mount['mountPath']}/{name}"


def test_the_pods_run_without_root_on_a_read_only_file_system(pod, container):
    """The user is that of the image. Only /tmp is writable."""
    (user,) = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    context = pod["securityContext"]

    assert user == (str(context["runAsUser"]), str(context["runAsGroup"]))
    assert context["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert ["/tmp"] == [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]  # noqa: S108


def test_all_manifests_select_the_same_pods(manifests):
    """The others name labels and ports of the Deployment that exist."""
    deployment = manifests["Deployment"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    service = manifests["Service"]["spec"]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    target = manifests["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]

    assert labels == deployment["spec"]["selector"]["matchLabels"] == service["selector"]
    assert labels == manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
    assert {port["targetPort"] for port in service["ports"]} <= {port["name"] for port in container["ports"]}
    assert (deployment["kind"], deployment["metadata"]["name"]) == (target["kind"], target["name"])
    monitor = manifests["PodMonitor"]["spec"]
    assert labels == monitor["selector"]["matchLabels"]
    assert f'job="{labels[monitor["jobLabel"]]}"' in (ROOT / "deploy/prometheus/alerts.yaml").read_text()
    ((path,),) = (rule["http"]["paths"] for rule in manifests["Ingress"]["spec"]["rules"])
    backend = path["backend"]["service"]
    assert manifests["Service"]["metadata"]["name"] == backend["name"]
    assert backend["port"]["name"] in {port["name"] for port in service["ports"]}


def test_only_the_proxy_and_prometheus_reach_the_pods(manifests, container, gunicorn):
    """One trusted proxy is in front of the port of the streams, and Prometheus reads the port of the operators."""
    policy = manifests["NetworkPolicy"]["spec"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    (endpoint,) = manifests["PodMonitor"]["spec"]["podMetricsEndpoints"]
    reached = {port["port"]: rule["from"] for rule in policy["ingress"] for port in rule["ports"]}

    assert {"http", "operations"} == reached.keys() == ports.keys()
    assert reached["http"] != reached["operations"]
    assert ["Ingress"] == policy["policyTypes"]
    assert manifests["Deployment"]["spec"]["selector"]["matchLabels"] == policy["podSelector"]["matchLabels"]
    assert ("operations", "/-/metrics") == (endpoint["port"], endpoint["path"])
    assert variables["KAFKASSE_OPERATIONS_BIND"] == f"0.0.0.0:{ports['operations']}"


def test_the_autoscaler_uses_a_metric_of_the_server(manifests):
    """The adapter's rule sums the metric by pod. The target leaves room for the clients of a pod that stops."""
    (metric,) = manifests["HorizontalPodAutoscaler"]["spec"]["metrics"]
    (rule,) = yaml.safe_load((DIRECTORY / "prometheus-adapter-values.yaml").read_text())["rules"]["custom"]
    max_streams = schemas.read("config")["properties"]["max_streams"]["default"]

    name = metric["pods"]["metric"]["name"]
    assert name.removeprefix(PREFIX) in METRICS
    assert rule["seriesQuery"].startswith(f"{name}{{")
    assert int(metric["pods"]["target"]["averageValue"]) <= max_streams / 2


def test_the_manifest_of_a_pipeline_matches_the_command():
    """`kafkasse pipeline run` accepts the arguments, Spark has the version, and a drain fits into the grace period."""
    specification = yaml.safe_load((DIRECTORY / "pipeline.yaml").read_text())["spec"]
    group, command, *arguments = specification["arguments"]

    options = pipeline.run.make_context(command, arguments).params

    assert ("pipeline", "run", "topn") == (group, command, options["name"])
    assert options["checkpoint"].startswith("s3a://")
    assert pyspark.__version__ == specification["sparkVersion"]
    assert specification["driver"]["terminationGracePeriodSeconds"] > runner.DRAIN_TIMEOUT_S


@pytest.mark.long
def test_the_manifests_match_the_schemas_of_kubernetes(processes):
    """kubernetes-validate contains the schemas that kubeconform downloads."""
    files = [DIRECTORY / "kafkasse.yaml", DIRECTORY / "autoscaler.yaml"]
    command = [TOOLS / "manifests/bin" / "kubernetes-validate", "--strict", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert 7 == (done.stdout + done.stderr).count(" passed ")
