"""README.md and docs/: the examples run, the tables are complete, and the links have targets."""

from __future__ import annotations

import inspect
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

import gevent
import pytest
import yaml
from flask import Flask
from kafka import KafkaAdminClient

import kafkasse
from kafkasse import errors, schemas
from kafkasse.commands import main
from kafkasse.config.hooks import Hooks
from kafkasse.frame import FORMATS
from kafkasse.memory_log import MemoryLog
from kafkasse.position import parse
from kafkasse.web.registry import EndReason
from tests.project.alerts import alerts
from tests.support.client import Client
from tests.support.kafka import Cluster
from tests.support.process_group import end_group
from tests.support.server import ROOT, Server

PAGES = [page.relative_to(ROOT).as_posix() for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])]
NO_VARIABLE = {
    "kafka": "see [Kafka](#kafka)",
    "guards": "file or code only",
    "clusters": "see [Kafka](#kafka)",
    "schema_registry": "file or code only",
    "schema_registries": "file or code only",
    "archives": "file or code only",
    "topic_groups": "file or code only",
    "routes": "file or code only",
}  # these are not single values
QUOTED = re.compile(r"[A-Z][a-z]* .+|the keys cannot be|cannot serve")  # a message, or its start
OTHER_NAMES = {
    "client_ip_connection_limit", "allowed_streams", "mediawiki_redacted_pages", "num_workers", "stream_aliases",
    "default_topic_config", "stream_config_ttl", "stream_config_uri", "stream_ui_enabled", "eventstreams_connected_clients",
    "eventstreams_client_connections_total",  # KafkaSSE and EventStreams
    "after_request", "max_requests", "TopicAuthorizationFailedError",  # Flask, gunicorn and kafka-python
    "catching_up", "duration_s", "key_encoding", "request_id",  # kafkasse: in the log, the list of streams, and records
}  # fmt: skip
SAMPLES = [
    "README.md",
    *(f"docs/{name}.md" for name in ("clients", "command-line", "filters", "routes", "troubleshooting")),
]
LIMIT_S = 120.0
NOT_SENT = {"CommandError"}  # an error of the commands

TOPN = """
from gevent import monkey; monkey.patch_all()
from kafkasse.app import create_app
from kafkasse.config import Config
from kafkasse.memory_log import MemoryLog

log = MemoryLog()
log.create("topn")
log.append("topn", b'{"continent": "Europe"}', key=b"Europe")
route = {"path": "/topn/updates", "topics": ["topn"], "format": "value", "start": "snapshot", "access": "public"}
app = create_app(Config.load(routes={"topn": route}), log)
"""


def test_every_setting_is_in_the_docs(root: Path) -> None:
    """docs/configuration.md has one row for each setting, with its default and its variable, and no other row."""
    settings = schemas.read("config")["properties"]
    rows = _rows(root / "docs/configuration.md", "All settings")

    assert {
        name: (json.dumps(setting["default"]), NO_VARIABLE.get(name, f"KAFKASSE_{name.upper()}"))
        for name, setting in settings.items()
    } == {name: (default, variable) for name, default, variable, _ in rows}


def test_every_member_of_a_route_is_in_the_docs(root: Path) -> None:
    """docs/configuration.md names each member and all its values."""
    text = (root / "docs/configuration.md").read_text()

    for name, member in schemas.read("config")["$defs"]["route"]["properties"].items():
        assert all(f"`{word}`" in text for word in [name, *member.get("enum", ())])


def test_the_examples_are_valid_configurations(root: Path, tmp_path: Path) -> None:
    """The YAML in docs/configuration.md and docs/routes.md is valid, including its routes."""
    file = tmp_path / "kafkasse.yaml"
    paths = []
    for block in [*_blocks(root / "docs/configuration.md", "yaml"), *_blocks(root / "docs/routes.md", "yaml")]:
        file.write_text(block)
        password = {"KAFKASSE_CLUSTERS_EU_SASL_PLAIN_PASSWORD": "secret"} if "sasl_mechanism" in block else {}
        config = kafkasse.Config.load(password, file)
        paths += [route.path for route in config.routes[:-1]]

    assert {"/prices", "/audit", "/eu/prices"} <= set(paths)


@pytest.mark.parametrize("page", ["access", "archive", "filters", "pipelines", "schemas"])
def test_the_settings_in_a_guide_are_valid(root: Path, page: str, tmp_path: Path) -> None:
    """Each sample in YAML is valid together with the guards that it names, which another sample defines."""
    jwt = {"jwks_url": "https://id.example/jwks.json", "issuer": "i", "audience": "a", "algorithms": ["RS256"]}
    guards = {name: {"jwt": jwt} for name in ("customers", "staff")}
    text = "\n---\n".join(_blocks(root / f"docs/{page}.md", "yaml"))
    for name in re.findall(r"/run/secrets/([\w.-]+)", text):
        (tmp_path / name).write_text("secret")
    blocks = [*yaml.safe_load_all(text.replace("/run/secrets", str(tmp_path)))]
    blocks = [block for block in blocks if "pipelines" not in block]  # see pipelines/test_definitions.py
    assert blocks
    for block in blocks:
        if "access" in block:  # of a route
            block = {"routes": {"orders": {"path": "/orders/{customer}", "topics": ["orders"], **block}}}
        clusters = {"eu": {"bootstrap_servers": ["kafka.eu.example:9093"]}} if "archives" in block else {}
        defaults = {"allowed_topics": ["*"], "public": True, "guards": guards, "clusters": clusters}
        (tmp_path / "kafkasse.yaml").write_text(yaml.safe_dump(defaults | block))

        kafkasse.Config.load({}, tmp_path / "kafkasse.yaml")


class TestHooks:
    """The hooks in docs/configuration.md work as described there."""

    @pytest.fixture
    def log(self) -> MemoryLog:
        log = MemoryLog()
        log.create("countries")
        for value in ('{"size": 5}', "not JSON", '{"size": 9000000}'):
            log.append("countries", value.encode("utf-16"))
        return log

    @pytest.fixture
    def get(self, root: Path, log: MemoryLog, tmp_path: Path) -> Callable[[str], Any]:
        """Sends a request to an app with the configuration of the example."""
        (block,) = _blocks(root / "docs/configuration.md", "python")
        (tmp_path / "hooks.py").write_text(block)
        config = runpy.run_path(str(tmp_path / "hooks.py"))["config"]
        app = Flask(__name__)
        app.register_blueprint(kafkasse.blueprint(config, log))
        return lambda path: app.test_client().get(path)

    def test_sends_records_that_pass_the_hooks(self, get: Callable[[str], Any]) -> None:
        """Of a small country, a value that is not JSON and a large country, only the large one is sent."""
        response = get("/countries?timestamp=0")

        assert b'data: {"size":9000000,"_kafka":' in _until(response.response, b"9000000")
        response.close()

    def test_responds_with_its_own_error(self, get: Callable[[str], Any]) -> None:
        """The response of on_connect_error replaces the default one."""
        response = get("/secrets")

        assert (404, "We do not have that.") == (response.status_code, response.text)

    def test_logs_to_its_own_logger(self, get: Callable[[str], Any], caplog: pytest.LogCaptureFixture) -> None:
        """The stream's start and end and a skipped record are logged to the logger that the example configures."""
        caplog.set_level("INFO", "shop.streams")

        response = get("/countries?timestamp=0")
        _until(response.response, b"9000000")
        response.close()

        messages = [record.message.partition(":")[0] for record in caplog.records if record.name == "shop.streams"]
        assert ["opened", "Skipped countries/0 offset 1", "A stream ended", "ended"] == messages


def test_the_app_in_the_readme_streams_from_kafka(
    root: Path, tree: Path, web_venv: Path, start: Callable[..., Any], cluster: Cluster, fresh_name: str, tmp_path: Path
) -> None:
    """The README's app, saved as shop.py and started by the README's command, streams a record."""
    mount, _ = _blocks(root / "README.md", "python")
    command = re.findall(r"^gunicorn .*", (root / "README.md").read_text(), re.MULTILINE)[0]
    (tmp_path / "shop.py").write_text(mount)
    cluster.send(cluster.create(f"events.{fresh_name}"), b"1")
    variables = {"PYTHONPATH": str(tree), "KAFKASSE_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
    server = start(f"{command} --bind 127.0.0.1:0", tmp_path, web_venv, **variables)

    with Client(server.port, f"/streams/events.{fresh_name}?timestamp=0") as stream:
        (event,) = stream.events(1)

    assert "1" == event.data


def test_the_client_in_the_readme_reads_a_stream(
    root: Path,
    tree: Path,
    web_venv: Path,
    start: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The README's client prints each event, and the event ID to resume from when the stream ends."""
    _, client = _blocks(root / "README.md", "python")
    (tmp_path / "topn.py").write_text(TOPN)
    variables = {"PYTHONPATH": str(tree), "KAFKASSE_MAX_STREAM_AGE_S": "0.5"}
    server = start(f"gunicorn -c {tree / 'gunicorn.conf.py'} topn:app", tmp_path, web_venv, **variables)

    (tmp_path / "client.py").write_text(client.replace("127.0.0.1:6917", f"127.0.0.1:{server.port}"))

    runpy.run_path(str(tmp_path / "client.py"))

    first, last = capsys.readouterr().out.splitlines()
    assert "{'continent': 'Europe'}" == first
    assert last.startswith('resume with Last-Event-ID: [{"topic":"topn","partition":0,"offset":1')


def test_the_example_of_personal_streams_sends_each_visitor_its_own_records(root: Path) -> None:
    """The example in docs/filters.md selects records by a field. The guard provides the claim."""
    (block,) = _blocks(root / "docs/filters.md", "python")
    names: dict[str, Any] = {}
    exec(block, names)  # noqa: S102 - our own docs
    log = MemoryLog()
    log.create("orders")
    for value in (b'{"customer": "ada"}', b'{"customer": "grace"}'):
        log.append("orders", value)
    app = Flask(__name__)
    app.testing = True
    app.secret_key = "for a test"  # noqa: S105
    app.register_blueprint(kafkasse.blueprint(names["config"], log))
    client = app.test_client()
    with client.session_transaction() as session:
        session["user"] = "ada"

    text = client.get("/me/orders?timestamp=0").text

    assert (1, 0) == (text.count("ada"), text.count("grace"))


def test_the_ids_in_the_docs_are_valid(root: Path) -> None:
    """The server accepts every event ID that docs/wire.md shows."""
    text = (root / "docs/wire.md").read_text()
    ids = re.findall(r'^(?:id: )?(\[\{"topic".*\])$', text, re.MULTILINE)

    assert len(ids) == 3
    assert all(parse(each).starts for each in ids)


def test_every_error_is_in_the_docs(root: Path) -> None:
    """docs/wire.md has a row with the status of each error that a client can receive."""
    known = {
        (str(each.status), each.name)
        for _, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, errors.KafkasseError) and not each.__name__.startswith("_")
    }
    rows = _rows(root / "docs/wire.md", "Errors")

    assert {row for row in known if row[1] not in NOT_SENT} == {(row[0], row[1]) for row in rows}


def test_the_example_of_an_error_matches_the_schema(root: Path) -> None:
    """The error that docs/wire.md shows is valid."""
    (problem,) = [each for each in map(json.loads, _blocks(root / "docs/wire.md", "json")) if isinstance(each, dict)]

    assert schemas.first_error("problem", problem) is None


def test_every_format_is_in_the_docs(root: Path) -> None:
    """docs/wire.md has a row for each format."""
    assert list(FORMATS) == [row[0] for row in _rows(root / "docs/wire.md", "Formats")]


@pytest.mark.parametrize("page", ["docs/migrating.md", "docs/troubleshooting.md", "docs/when-not.md"])
def test_the_names_in_a_guide_exist(root: Path, page: str) -> None:
    """Every metric, setting, error and alert in code spans is kafkasse's, or one of the listed names of other programs."""
    code = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", (root / page).read_text(), flags=re.M | re.S))
    words = {
        word
        for span in code
        for word in re.findall(r"(?<![\w.-])[A-Za-z]+(?:_[a-z0-9]+)+|\w+Error\b|Kafkasse\w+", span)
    }
    known = {*re.findall(r"\w+", json.dumps(schemas.read("config"))), *Hooks.__dataclass_fields__, *OTHER_NAMES}
    known |= {row[0] for row in _rows(root / "docs/metrics.md", "Metrics")} | {rule["alert"] for rule in alerts(root)}
    known |= {each.value for each in EndReason} | {each.name for each in errors.documented()}
    known |= KafkaAdminClient.DEFAULT_CONFIG.keys()

    assert set() == words - known


def test_the_messages_in_the_guide_to_problems_exist(root: Path) -> None:
    """Each log line, detail and reason of a gap that docs/troubleshooting.md quotes is in the code."""
    source = "".join(file.read_text() for file in root.glob("kafkasse/**/*.py"))
    page = (root / "docs/troubleshooting.md").read_text()
    gaps = _rows(root / "docs/troubleshooting.md", "Gaps")
    quoted = [text for text in re.findall(r"`([^`\n]+)`", page) if QUOTED.match(text)] + [row[0] for row in gaps]

    assert len(quoted) > 15
    assert [] == [text for text in quoted if text not in source]


def test_the_app_in_the_guide_to_migration_streams(root: Path, tmp_path: Path) -> None:
    """Its URL and its events are those of EventStreams, and IDs of EventStreams resume."""
    (block,) = _blocks(root / "docs/migrating.md", "python")
    (tmp_path / "app.py").write_text(block)
    example = runpy.run_path(str(tmp_path / "app.py"))
    log = MemoryLog()
    for site in ("eqiad", "codfw"):
        log.create(f"{site}.mediawiki.recentchange")
    for domain in (b"canary", b"en.wikipedia.org"):
        log.append("eqiad.mediawiki.recentchange", b'{"meta":{"domain":"%b"}}' % domain)
    app = Flask(__name__)
    app.register_blueprint(kafkasse.blueprint(example["config"], log), url_prefix="/v2/stream")
    last_id = '[{"topic":"eqiad.mediawiki.recentchange","partition":0,"offset":1},"codfw.mediawiki.recentchange"]'

    response = app.test_client().get("/v2/stream/recentchange", headers={"Last-Event-ID": last_id})
    sent = _until(response.response, b"_kafka")
    response.close()

    assert (
        b'"meta":{"domain":"en.wikipedia.org","topic":"eqiad.mediawiki.recentchange","partition":0,"offset":1}' in sent
    )
    assert b"canary" not in sent
    assert "/v2/stream/-/openapi.json" == example["app"].test_client().get("/?spec").location
    assert 200 == app.test_client().get("/v2/stream/-/openapi.json").status_code


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_the_commands_in_the_docs_are_valid(
    root: Path, page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each `kafkasse` command in a sample has an existing name, existing options and valid values."""
    lines = "\n".join(_blocks(root / page, "sh")).replace("\\\n", " ").splitlines()
    samples = [match[1] for line in lines if (match := re.match(r"(?:\w+=\S* )*kafkasse ([a-z].*)", line.strip()))]
    for sample in samples:
        lexer = shlex.shlex(sample, posix=True, punctuation_chars="|<>&;")
        lexer.whitespace_split = True
        words = list(takewhile(lambda word: not set(word) <= set("|<>&;"), lexer))  # up to a pipe or a redirection
        command = import_module(f"kafkasse.commands.{words[0]}").command
        for each in [command, *getattr(command, "commands", {}).values()]:
            monkeypatch.setattr(each, "callback", lambda **_: None)

        assert 0 == main(words), f"{page}: kafkasse {sample}\n{capsys.readouterr().err}"


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_commands_in_the_docs_that_read_streams_print_records(root: Path, tmp_path: Path) -> None:
    """Each `kafkasse cat` and `curl` that reads a stream of http://127.0.0.1:6917. What follows a pipe does not run."""
    (tmp_path / "kafkasse").symlink_to(Path(sys.executable).with_name("kafkasse"))
    path = f"{tmp_path}:{os.environ['PATH']}"
    found = [
        re.split(r" \| | >> ", line)[0]
        for page in SAMPLES
        for line in "\n".join(_blocks(root / page, "sh")).splitlines()
        if re.search(r"^(\w+=\S+ )?(kafkasse cat|curl) .*\b(127\.0\.0\.1|localhost):6917/", line)
    ]
    lines = dict.fromkeys(found)
    assert len(lines) > 12
    with Server("tests.support.apps:samples()", KAFKASSE_MAX_STREAMS_PER_CLIENT="100") as server, ExitStack() as stack:
        outputs = {line: tmp_path / f"output-{number}" for number, line in enumerate(lines)}
        for line, output in outputs.items():
            process = subprocess.Popen(
                ["bash", "-c", line.replace(":6917/", f":{server.port}/")],
                stdout=stack.enter_context(output.open("wb")),
                stderr=subprocess.STDOUT,
                cwd=tmp_path,
                env={**os.environ, "PATH": path, "no_proxy": "*"},
                start_new_session=True,
            )
            stack.callback(end_group, process)

        def silent() -> dict[str, bytes]:
            return {line: text for line, output in outputs.items() if b"France" not in (text := output.read_bytes())}

        with gevent.Timeout(LIMIT_S, False):
            while silent():
                gevent.sleep(0.1)
        assert {} == silent()


@pytest.mark.parametrize("page", PAGES)
def test_links_are_valid(root: Path, page: str) -> None:
    """Every link to a file or a heading of the project has a target."""
    for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", (root / page).read_text()):
        file = (root / page).parent / target if target else root / page
        assert file.exists(), f"{page} links to {target}"
        assert not heading or heading in _headings(file), f"{page} links to {target}#{heading}"


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def _rows(page: Path, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without backquotes."""
    section = re.split(rf"^#+ {heading}$", page.read_text(), flags=re.MULTILINE)[1]
    table = re.search(r"^\| -.*\n((?:\|.*\n)+)", section, re.MULTILINE)
    assert table
    return [[cell.strip(" `") for cell in row.strip("|").split(" | ")] for row in table[1].splitlines()]


def _headings(page: Path) -> set[str]:
    """Return the headings of a page as links spell them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _until(chunks: Iterator[bytes], wanted: bytes) -> bytes:
    """Read chunks up to the one that contains `wanted`."""
    seen = b""
    while wanted not in seen:
        seen += next(chunks)
    return seen
