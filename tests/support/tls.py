# SPDX-License-Identifier: Apache-2.0
"""A certificate authority for tests, with a server and a client certificate."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, PEM, as files."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Certificates:
    """Everything that a mutual TLS test needs; the server is 127.0.0.1 and ``fake.example``."""

    ca: Path
    server: Pair
    client: Pair


def make_certificates(folder: Path) -> Certificates:
    """Fresh certificates in a folder."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = _name("test-ca")
    ca = _builder(ca_name, ca_name, ca_key).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    ca_file = folder / "ca.crt"
    ca_file.write_bytes(ca.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    names = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("fake.example")]
    )
    return Certificates(
        ca_file,
        _issue(folder, "server", ca_name, ca_key, names),
        _issue(folder, "client", ca_name, ca_key, None),
    )


def _issue(
    folder: Path,
    name: str,
    issuer: x509.Name,
    ca_key: ec.EllipticCurvePrivateKey,
    names: x509.SubjectAlternativeName | None,
) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(name), issuer, key)
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    signed = builder.sign(ca_key, hashes.SHA256())
    pair.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    pair.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return pair


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
    )
