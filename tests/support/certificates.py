"""A certificate authority for a test, and the certificates that it signs, as PEM."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID = timedelta(hours=1)
KEY_USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign",
    "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


class Authority:
    """A new certificate authority.

    Attributes:
        certificate: the certificate of the authority, for programs that must trust it.
    """

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("a test's authority")
        self.certificate = _pem(self._sign(self._name, self._key, is_authority=True))

    def issue(self, name: str, address: str = "") -> tuple[str, str]:
        """Return a certificate and its key (PKCS#8).

        Like the certificates of Heroku's brokers, it names no host, unless the IP address of one is given.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        pkcs8 = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        key_pem = key.private_bytes(serialization.Encoding.PEM, *pkcs8).decode()
        return _pem(self._sign(_name(name), key, address=address)), key_pem

    def _sign(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, is_authority: bool = False, address: str = ""
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(self._name, name, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - VALID).not_valid_after(now + VALID)
        builder = builder.add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        if is_authority:  # Python 3.13 and newer require it
            usage = dict.fromkeys(KEY_USAGES, False) | {"key_cert_sign": True}
            builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
        own, issuer = key.public_key(), self._key.public_key()
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(own), critical=False)
        builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
        if address:
            names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def heroku_variables(authority: Authority, prefix: str, *addresses: str) -> dict[str, str]:
    """Return the variables of Heroku's Kafka add-on."""
    certificate, key = authority.issue("kafkasse")
    return {
        "KAFKA_URL": ",".join(f"kafka+ssl://{address}" for address in addresses),
        "KAFKA_TRUSTED_CERT": authority.certificate,
        "KAFKA_CLIENT_CERT": certificate,
        "KAFKA_CLIENT_CERT_KEY": key,
        "KAFKA_PREFIX": prefix,
    }
