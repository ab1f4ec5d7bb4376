"""`make compat`: install the wheel with the lowest and the newest versions of pyproject.toml, and test each installation.

For each Python from 3.11, this creates one virtual environment in which every range has its lowest version that
has a wheel, and one with the newest versions. For one Python, a third environment has the newest versions that work with
an old gevent. In each environment, it runs

- the installation of kafkasse's wheel, which must not change a package that is already installed,
- the fast tests of FAST,
- the tests of SERVED, which start gunicorn in the environment and a real broker outside of it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORK = ROOT / "build" / "compat"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = ("jwt", "cel", "schemas")
# gunicorn 20.1 and gevent 22.10 import pkg_resources, which newer versions of setuptools do not contain.
# Flask before 2.3.3 and its Werkzeug use names that Python 3.14 removed.
CONSTRAINTS = ("setuptools<81", "flask>=2.3.3; python_version >= '3.14'")
TOOLS = ("pytest", "pytest-timeout", "hypothesis", "responses", "selenium")
FAST = [
    *(
        f"tests/{name}"
        for name in ("access", "config", "feed", "filter", "frame", "kafka", "position", "process", "registry", "web")
    ),
    "tests/test_app.py",
    "tests/server/test_gunicorn_internals.py",
    "tests/telemetry/test_metrics.py",
    "--ignore=tests/web/test_host_session.py",  # it needs Flask-Session, which needs a newer Flask than the lowest
]
OLD_GEVENT = "gevent==23.9.1"  # with a new greenlet, its locks do not work while a worker exits
RESOLUTIONS = {"lowest": PYTHONS, "newest": PYTHONS, "old-gevent": ("3.11",)}
SERVED = [
    "tests/server/test_streams.py",
    "tests/server/test_worker.py",
    "tests/server/test_operations.py::test_a_reload_keeps_the_counters",
    "tests/project/test_deployment.py::test_an_existing_app_streams_to_each_customer_their_own_records",
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", choices=PYTHONS, action="append", help="only this version; may be repeated")
    parser.add_argument("--only", choices=RESOLUTIONS, help="only these versions of the packages")
    options = parser.parse_args()
    wheel = _build_wheel()
    failed = False
    for version in options.python or PYTHONS:
        if (python := _find_python(version)) is None:
            print(f"Python {version}: not tested, because it is not installed, and uv cannot install it", flush=True)
            failed = True
            continue
        for resolution, pythons in RESOLUTIONS.items():
            if options.only not in (None, resolution) or version not in pythons:
                continue
            began = time.monotonic()
            problem = _test(python, resolution, WORK / f"{version}-{resolution}", wheel)
            failed = failed or bool(problem)
            seconds = time.monotonic() - began
            print(f"Python {version}, {resolution} versions: {problem or 'passed'} ({seconds:.0f} s)", flush=True)
    return int(failed)


def _build_wheel() -> Path:
    shutil.rmtree(WORK / "dist", ignore_errors=True)
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", WORK / "dist")
    (wheel,) = (WORK / "dist").iterdir()
    return wheel


def _find_python(version: str) -> str | None:
    """Return a Python of this version: from PATH, from pyenv, or from uv, which installs it if possible."""
    pyenv = sorted(
        (Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions").glob(f"{version}.*/bin/python")
    )
    paths = [shutil.which(f"python{version}"), *map(str, pyenv)]
    if not any(map(_works, paths)):
        _uv("python", "install", version, check=False)
        paths = [_uv("python", "find", version, check=False).strip()]
    return next(filter(_works, paths), None)


def _works(python: str | None) -> bool:
    command = shutil.which(python or "")  # `uv python find` may have printed an error instead of a path
    return bool(command) and subprocess.run([str(command), "-c", ""], capture_output=True, check=False).returncode == 0


def _test(python: str, resolution: str, home: Path, wheel: Path) -> str:
    """Create a virtual environment and run its tests. Return the first step that failed, or ""."""
    try:
        _install(python, resolution, home, wheel)
        environment = os.environ | {"SERVER_PYTHON": str(home / "bin/python")}
        fast = [home / "bin/python", "-m", "pytest", "-m", "not processes", "--hypothesis-profile=fast"]
        _run(*fast, "-q", "-p", "no:cacheprovider", *FAST)
        _run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SERVED, environment=environment)
    except subprocess.CalledProcessError as error:
        print(error.stdout[-8000:])
        return f"FAILED: {' '.join(map(str, error.cmd[:8]))}"
    return ""


def _install(python: str, resolution: str, home: Path, wheel: Path) -> None:
    """Install the dependencies, then the wheel, then the tools of the tests."""
    shutil.rmtree(home, ignore_errors=True)
    _uv("venv", "--python", python, home)
    constraints, pins = home / "constraints.txt", home / "pins.txt"
    constraints.write_text("\n".join([*CONSTRAINTS, OLD_GEVENT] if resolution == "old-gevent" else CONSTRAINTS))
    _uv(
        *("pip", "compile", ROOT / "pyproject.toml", "--output-file", pins, "--python", home / "bin/python"),
        *("--resolution", "lowest-direct" if resolution == "lowest" else "highest", "--only-binary", ":all:"),
        *("--constraint", constraints, *(word for extra in EXTRAS for word in ("--extra", extra))),
    )
    into = ("pip", "install", "--python", home / "bin/python", "--constraint", constraints)
    _uv(*into, "-r", pins)
    before = _freeze(home)
    _uv(*into, f"kafkasse[{','.join(EXTRAS)}] @ {wheel.as_uri()}")
    changed = sorted(package for package in _freeze(home) - before if not package.startswith("kafkasse"))
    if changed:
        raise subprocess.CalledProcessError(1, [f"the installation of kafkasse changed {', '.join(changed)}"], "")
    _uv("pip", "check", "--python", home / "bin/python")
    _uv(*into, "--constraint", pins, *TOOLS)


def _freeze(home: Path) -> set[str]:
    return set(_uv("pip", "freeze", "--python", home / "bin/python").splitlines())


def _uv(*words: object, check: bool = True) -> str:
    return _run(Path(sys.executable).with_name("uv"), *words, check=check)


def _run(*words: object, environment: dict[str, str] | None = None, check: bool = True) -> str:
    command = [str(word) for word in words]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if check:
        done.check_returncode()
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
