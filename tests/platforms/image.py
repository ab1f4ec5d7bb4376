"""Builds the Dockerfile and runs the image without a daemon, with Debian's buildah. Needs Debian and root.

The base image is made by debootstrap instead of downloaded: Debian 13 with its own Python 3.13. buildah stores everything in
build/image.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.support.server import ROOT

BASE = "docker.io/library/python:3.13-slim"  # the name in the Dockerfile's FROM
SUITE = "trixie"  # has the Python of BASE
PACKAGES = "python3,python3-venv,ca-certificates"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
NAME = "localhost/kafkasse"
STORE = ROOT / "build/image"
# pip in the image uses these settings of pip on this machine.
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "default-timeout")
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
# Like `docker run --read-only --tmpfs /tmp --network host --user USER`. A bind mount can be read-only, a directory cannot.
RUN = """set -e
mount --bind {root} {root}
mount -t proc proc {root}/proc
mount --rbind /dev {root}/dev
mount -t tmpfs -o mode=1777 tmpfs {root}/tmp
mount -o remount,bind,ro {root}
exec chroot --userspec={user} {root} /usr/bin/env -i --chdir={directory} {words}
"""


class CannotBuild(Exception):
    """This machine cannot build the image. The message says what to do."""


def check_machine() -> None:
    """Raise CannotBuild if the tools or the permissions are missing."""
    packages = [package for package in ("buildah", "debootstrap") if not shutil.which(package)]
    if packages:
        raise CannotBuild(f"run: apt-get install --no-install-recommends {' '.join(packages)}")
    mount = ["unshare", "--mount", "mount", "-t", "proc", "proc", "/proc"]
    if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        raise CannotBuild("run it as root on a machine that allows mounts")


def buildah(*words: object) -> str:
    """Run buildah, which needs no daemon and no overlay file system with these options, and return its output."""
    options = ("--root", STORE / "storage", "--runroot", STORE / "run", "--storage-driver", "vfs")
    command = ["buildah", *map(str, (*options, *words))]
    environment = os.environ | {"BUILDAH_ISOLATION": "chroot"}
    return subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def create_base() -> None:
    """Create the base image, unless it exists. It takes a minute."""
    if BASE in buildah("images", "--format", "{{.Name}}:{{.Tag}}"):
        return
    root = STORE / "base"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    # In a mount namespace of its own, so that no mount is left if debootstrap is killed.
    options = ["--variant=minbase", f"--include={PACKAGES}"]
    subprocess.run(["unshare", "--mount", "debootstrap", *options, SUITE, root, MIRROR], check=True)
    for folder in ("var/cache/apt", "var/lib/apt/lists"):
        shutil.rmtree(root / folder)
    (root / "usr/bin/python").symlink_to("python3")
    if authorities := ssl.get_default_verify_paths().cafile:
        shutil.copy(authorities, root / CERTIFICATES)
    (root / "etc/pip.conf").write_text(_pip_settings())
    container = buildah("from", "scratch").strip()
    buildah("add", "--quiet", container, root, "/")
    buildah("commit", "--quiet", "--rm", container, BASE)
    shutil.rmtree(root)


def _pip_settings() -> str:
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    pairs = [line.partition("=")[::2] for line in listed.splitlines()]
    options = {name.rpartition(".")[2]: text.strip("'") for name, text in pairs}
    settings = {name: options[name] for name in PIP_SETTINGS if name in options} | {"cert": f"/{CERTIFICATES}"}
    return "[global]\n" + "".join(f"{name} = {text}\n" for name, text in settings.items())


def _package(kind: str, name: str, version: str, license: str) -> dict[str, str]:
    return {"type": kind, "name": name, "version": version, "license": license}


class Image:
    """The image of the Dockerfile, and a container of it.

    Attributes:
        root: the container's file system.
    """

    def __init__(self) -> None:
        buildah("bud", "--quiet", "--pull-never", "--no-cache", "--format", "docker", "--tag", NAME, ".")
        self._container = buildah("from", "--pull-never", NAME).strip()
        self.root = Path(buildah("mount", self._container).strip())

    def remove(self) -> None:
        buildah("rm", self._container)
        buildah("rmi", NAME)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The image's configuration, as a container engine reads it."""
        config: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", NAME))["Docker"]["config"]
        return config

    def command(self, words: list[str], **variables: str) -> list[str]:
        """Return a command that runs `words` in the container with the image's user, directory and variables.

        The root file system is read-only except /tmp. `words` run in the process that the command starts.
        """
        config = self.config
        environment = [*config["Env"], *(f"{name}={text}" for name, text in variables.items())]
        script = RUN.format(
            root=self.root,
            user=config["User"],
            directory=config["WorkingDir"],
            words=shlex.join([*environment, *words]),
        )
        return ["unshare", "--mount", "sh", "-c", script]

    def contents(self) -> list[dict[str, str]]:
        """Return the packages of Debian and of Python in the image, with their versions and licenses."""
        packages = []
        for paragraph in (self.root / "var/lib/dpkg/status").read_text().strip().split("\n\n"):
            fields = dict(re.findall(r"^(Package|Version): (.*)$", paragraph, re.MULTILINE))
            text = (self.root / "usr/share/doc" / fields["Package"] / "copyright").read_text(errors="replace")
            licenses = sorted(set(re.findall(r"^License: (\S.*)$", text, re.MULTILINE)))
            place = f"see /usr/share/doc/{fields['Package']}/copyright"  # not every file is in a format for programs
            packages.append(_package("deb", fields["Package"], fields["Version"], ", ".join(licenses) or place))
        (site_packages,) = (self.root / "venv/lib").glob("python3*/site-packages")
        for package in metadata.distributions(path=[str(site_packages)]):
            about = package.metadata
            stated = about.get("License-Expression") or about.get("License") or ""
            classified = [
                text.rpartition(" :: ")[2] for text in about.get_all("Classifier", []) if "License ::" in text
            ]
            first_line = next(iter(stated.splitlines()), "")
            packages.append(_package("pypi", package.name, package.version, first_line or ", ".join(classified)))
        return sorted(packages, key=lambda package: (package["type"], package["name"]))

    def layer_mb(self) -> float:
        """Return the size of everything that the Dockerfile adds to the base image."""
        layers = json.loads(buildah("inspect", "--type", "image", "--format", "{{.Manifest}}", NAME))["layers"]
        return sum(layer["size"] for layer in layers[1:]) / 1e6
