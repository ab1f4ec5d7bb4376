"""What README and docs say is so: their examples run, their tables miss nothing, their links lead somewhere."""

from __future__ import annotations

import inspect
import json
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

import kafkasse
from kafkasse import errors, schemas
from kafkasse.frame import FORMATS
from kafkasse.memory_log import MemoryLog
from kafkasse.position import parse
from tests.support.client import Client
from tests.support.kafka import Cluster
from tests.support.server import ROOT

PAGES = [page.relative_to(ROOT).as_posix() for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])]
NO_VARIABLE = {"kafka": "see [Kafka](#kafka)", "routes": "file or code only"}  # these are no single values
NO_ERRORS_OF_THEIR_OWN = {"UnavailableError", "CommandError"}  # a family's name, and one that no client sees

TOPN = """
from gevent import monkey; monkey.patch_all()
from kafkasse.app import create_app
from kafkasse.config import Config
from kafkasse.memory_log import MemoryLog

log = MemoryLog()
log.create("topn")
log.append("topn", b'{"continent": "Europe"}', key=b"Europe")
route = {"path": "/topn/updates", "topics": ["topn"], "format": "value", "start": "snapshot"}
app = create_app(Config.load(routes={"topn": route}), log)
"""


def test_every_setting_is_in_the_docs(root: Path) -> None:
    """docs/configuration.md has a row for each setting, with its default and its variable, and for nothing else."""
    settings = schemas.read("config")["properties"]
    rows = _rows(root / "docs/configuration.md", "All settings")

    assert {
        name: (json.dumps(setting["default"]), NO_VARIABLE.get(name, f"KAFKASSE_{name.upper()}"))
        for name, setting in settings.items()
    } == {name: (default, variable) for name, default, variable, _ in rows}


def test_every_member_of_a_route_is_in_the_docs(root: Path) -> None:
    """docs/configuration.md names each, with all values that it may have."""
    text = (root / "docs/configuration.md").read_text()

    for name, member in schemas.read("config")["$defs"]["route"]["properties"].items():
        assert all(f"`{word}`" in text for word in [name, *member.get("enum", ())])


def test_example_file_is_a_configuration(root: Path, tmp_path: Path) -> None:
    """The YAML of docs/configuration.md is read, routes and all."""
    (block,) = _blocks(root / "docs/configuration.md", "yaml")
    (tmp_path / "kafkasse.yaml").write_text(block)

    config = kafkasse.Config.load({"KAFKASSE_KAFKA_SASL_PLAIN_PASSWORD": "secret"}, tmp_path / "kafkasse.yaml")

    assert ["/prices", "/audit", "/<topics>"] == [route.path for route in config.routes]


class TestHooks:
    """The hooks of docs/configuration.md do what it says of them."""

    @pytest.fixture
    def log(self) -> MemoryLog:
        log = MemoryLog()
        log.create("countries")
        for value in ('{"size": 5}', "not JSON", '{"size": 9000000}'):
            log.append("countries", value.encode("utf-16"))
        return log

    @pytest.fixture
    def get(self, root: Path, log: MemoryLog, tmp_path: Path) -> Callable[[str], Any]:
        """Asks an app that has the example's configuration."""
        (block,) = _blocks(root / "docs/configuration.md", "python")
        (tmp_path / "hooks.py").write_text(block)
        config = runpy.run_path(str(tmp_path / "hooks.py"))["config"]
        app = Flask(__name__)
        app.register_blueprint(kafkasse.blueprint(config, log))
        return lambda path: app.test_client().get(path)

    def test_sends_what_it_deserializes_and_lets_through(self, get: Callable[[str], Any]) -> None:
        """Of a small country, one that is no JSON, and a large one, the large one comes."""
        response = get("/countries?timestamp=0")

        assert b'data: {"size":9000000,"_kafka":' in _until(response.response, b"9000000")
        response.close()

    def test_refuses_in_its_own_words(self, get: Callable[[str], Any]) -> None:
        """The answer of on_connect_error takes the place of ours."""
        response = get("/secrets")

        assert (404, "We do not have that.") == (response.status_code, response.text)

    def test_logs_what_happens(self, get: Callable[[str], Any], caplog: pytest.LogCaptureFixture) -> None:
        """Opened, skipped and ended, on the logger that it names."""
        caplog.set_level("INFO", "shop.streams")

        response = get("/countries?timestamp=0")
        _until(response.response, b"9000000")
        response.close()

        said = [record.message.partition(":")[0] for record in caplog.records if record.name == "shop.streams"]
        assert ["opened", "Skipped countries/0 offset 1", "ended"] == said


def test_readme_mounts_the_streams(
    root: Path, tree: Path, web_venv: Path, start: Callable[..., Any], cluster: Cluster, fresh_name: str, tmp_path: Path
) -> None:
    """The README's app, saved as shop.py and run by the README's command, streams from Kafka."""
    mount, _ = _blocks(root / "README.md", "python")
    command = re.findall(r"^gunicorn .*", (root / "README.md").read_text(), re.MULTILINE)[0]
    (tmp_path / "shop.py").write_text(mount)
    cluster.send(cluster.create(f"events.{fresh_name}"), b"1")
    variables = {"PYTHONPATH": str(tree), "KAFKASSE_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
    server = start(f"{command} --bind 127.0.0.1:0", tmp_path, web_venv, **variables)

    with Client(server.port, f"/streams/events.{fresh_name}?timestamp=0") as stream:
        (event,) = stream.events(1)

    assert "1" == event.data


def test_readme_reads_a_stream(
    root: Path,
    tree: Path,
    web_venv: Path,
    start: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The README's client prints what comes, and where to go on when the stream ends."""
    _, client = _blocks(root / "README.md", "python")
    (tmp_path / "topn.py").write_text(TOPN)
    variables = {"PYTHONPATH": str(tree), "KAFKASSE_MAX_STREAM_AGE_S": "0.5"}
    server = start(f"gunicorn -c {tree / 'gunicorn.conf.py'} topn:app", tmp_path, web_venv, **variables)

    (tmp_path / "client.py").write_text(client.replace("127.0.0.1:6917", f"127.0.0.1:{server.port}"))

    runpy.run_path(str(tmp_path / "client.py"))

    first, last = capsys.readouterr().out.splitlines()
    assert "{'continent': 'Europe'}" == first
    assert last.startswith('resume with Last-Event-ID: [{"topic":"topn","partition":0,"offset":1')


def test_ids_of_the_docs_are_ids(root: Path) -> None:
    """Every id that docs/wire.md shows would be taken."""
    text = (root / "docs/wire.md").read_text()
    ids = re.findall(r'^(?:id: )?(\[\{"topic".*\])$', text, re.MULTILINE)

    assert len(ids) == 3
    assert all(parse(each).starts for each in ids)


def test_every_error_is_in_the_docs(root: Path) -> None:
    """docs/wire.md has a row for each error that a client may meet, with its status."""
    known = {
        (str(each.status), each.name)
        for _, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, errors.KafkasseError) and not each.__name__.startswith("_")
    }
    rows = _rows(root / "docs/wire.md", "Errors")

    assert {row for row in known if row[1] not in NO_ERRORS_OF_THEIR_OWN} == {(row[0], row[1]) for row in rows}


def test_example_problem_is_one(root: Path) -> None:
    """The error that docs/wire.md shows is of the schema."""
    (problem,) = [each for each in map(json.loads, _blocks(root / "docs/wire.md", "json")) if isinstance(each, dict)]

    assert schemas.first_error("problem", problem) is None


def test_every_format_is_in_the_docs(root: Path) -> None:
    """docs/wire.md has a row for each format."""
    assert list(FORMATS) == [row[0] for row in _rows(root / "docs/wire.md", "Formats")]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(root: Path, page: str) -> None:
    """Every link to a file of ours, and to a heading in it."""
    for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", (root / page).read_text()):
        file = (root / page).parent / target if target else root / page
        assert file.exists(), f"{page} links to {target}"
        assert not heading or heading in _headings(file), f"{page} links to {target}#{heading}"


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def _rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without the marks of code."""
    section = re.split(rf"^#+ {heading}$", page.read_text(), flags=re.MULTILINE)[1]
    table = re.search(r"^\| -.*\n((?:\|.*\n)+)", section, re.MULTILINE)
    assert table
    return [[cell.strip(" `") for cell in row.strip("|").split(" | ")] for row in table[1].splitlines()]


def _headings(page: Path) -> set[str]:
    """As the links to them are spelled."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _until(chunks: Iterator[bytes], wanted: bytes) -> bytes:
    """The chunks up to the one that holds `wanted`."""
    seen = b""
    while wanted not in seen:
        seen += next(chunks)
    return seen
