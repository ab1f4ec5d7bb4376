"""The proxies of Debian that docs/proxies.md describes, each with its documented configuration file."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.certificates import Authority
from tests.support.ports import reserve_port
from tests.support.server import ROOT
from tests.support.waiting import wait_until

DIRECTORY = ROOT / "deploy/proxies"
SERVER_PORT = 6917  # in the files
CERTIFICATE = "/etc/ssl/kafkasse.pem"  # in the files
PATIENCE_S = 10  # some proxies stop only after the last client has left


@dataclass(frozen=True)
class Program:
    """A proxy.

    Attributes:
        name: the name of Debian's package.
        file: the name of the configuration file in deploy/proxies.
        binary: the path of the program.
        command: its arguments. {config} is the configuration file, {home} a directory for the proxy's other files.
        edits: pairs of a regular expression and its replacement, for paths that only root can write.
        max_notice_s: how long the server may take to notice that a client has left.
        clients: the HTTP versions and schemes that the file configures, see HTTP.
    """

    name: str
    file: str
    binary: str
    command: str
    edits: tuple[tuple[str, str], ...] = ()
    max_notice_s: float = 2
    clients: tuple[str, ...] = ("http1", "https1", "https2")


PROGRAMS = (
    Program(
        "nginx",
        "nginx.conf",
        "/usr/sbin/nginx",
        "-c {config} -p {home} -e stderr -g 'daemon off;'",
        (
            (r"user .*\n", ""),
            (r"pid .*\n", "pid {home}/nginx.pid;\n"),
            (
                r"http \{\n",
                "http {\n"
                + "".join(
                    f"    {kind}_temp_path {{home}}/{kind};\n"
                    for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
                ),
            ),
        ),
    ),
    Program(
        "haproxy",
        "haproxy.cfg",
        "/usr/sbin/haproxy",
        "-db -f {config}",
        ((r"    (user|group) .*\n", ""), (r"/etc/haproxy/again.http", f"{DIRECTORY}/again.http")),
    ),
    Program(
        "caddy",
        "Caddyfile",
        "/usr/bin/caddy",
        "run --adapter caddyfile --config {config}",
        ((r"/var/lib/caddy/", "{home}/"),),
    ),
    Program(
        "apache2",
        "apache.conf",
        "/usr/sbin/apache2",
        "-D FOREGROUND -f {config}",
        (
            (r"(User|Group) .*\n", ""),
            (r"PidFile .*\n", "PidFile {home}/apache.pid\nDefaultRuntimeDir {home}\n"),
            (r"/var/log/apache2/error.log", "/dev/stderr"),
            (r"/etc/apache2/again.asis", f"{DIRECTORY}/again.asis"),
        ),
        max_notice_s=15,
    ),
    Program(
        "varnish",
        "varnish.vcl",
        "/usr/sbin/varnishd",
        "-F -j none -n {home} -a 127.0.0.1:{http} -f {config} {parameters}",
        max_notice_s=15,
        clients=("http1", "http2"),
    ),
)
_NGINX, *_, _VARNISH = PROGRAMS
# The user that may write to the directory of the cache. nginx ignores it unless it runs as root.
_CACHE = ((r"user .*\n", "user root;\n"), *_NGINX.edits[1:], (r"/var/cache/", "{home}/"))
CDNS = (replace(_NGINX, file="nginx-cdn.conf", edits=_CACHE), replace(_VARNISH, file="varnish-cdn.vcl"))


class Proxy:
    """A running proxy with its documented configuration, but other ports, other paths and a certificate of this test.

    Args:
        program: the proxy.
        server_port: the port of the server that it forwards requests to.
        home: an empty directory.

    Attributes:
        ports: the proxy's ports, by scheme.
        config: the path of the configuration file.
    """

    def __init__(self, program: Program, server_port: int, home: Path) -> None:
        self._reserved = {scheme: reserve_port() for scheme in ("http", "https")}
        self.ports = {scheme: sock.getsockname()[1] for scheme, sock in self._reserved.items()}
        authority = Authority()
        certificate = home / "kafkasse.pem"
        certificate.write_text("".join(authority.issue("localhost")))
        self.config = config = home / program.file
        config.write_text(self._substituted(program, server_port, home, certificate))
        parameters = " ".join(re.findall(r"-p \S+", (DIRECTORY / "varnish.service").read_text()))
        arguments = program.command.format(config=config, home=home, parameters=parameters, **self.ports)
        command = f"exec {program.binary} {arguments}"
        with (home / "log").open("wb") as log:
            environment = {**os.environ, "HOME": str(home)}  # Caddy writes files there
            self._process = subprocess.Popen(["sh", "-c", command], stdout=log, stderr=log, cwd=home, env=environment)
        self._log = home / "log"
        wait_until(self._listens)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for sock in self._reserved.values():
            sock.close()
        print(self._log.read_text())

    def _substituted(self, program: Program, server_port: int, home: Path, certificate: Path) -> str:
        text = (DIRECTORY / program.file).read_text()
        for pattern, replacement in (
            *program.edits,
            (rf"\b{SERVER_PORT}\b", str(server_port)),
            (r"(?<=[ :])80\b", str(self.ports["http"])),
            (r"(?<=[ :])443\b", str(self.ports["https"])),
            (re.escape(CERTIFICATE), str(certificate)),
        ):
            text = re.sub(pattern, replacement.replace("{home}", str(home)), text)
        return text

    def _listens(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.ports["http"]), 1):
            return True
        return False
