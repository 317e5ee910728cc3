# SPDX-License-Identifier: Apache-2.0
"""The cluster's own certificate authority, the certificates it issues, and kubeconfigs.

Made with ``cryptography``, which is a development dependency. Existing files are kept: a
certificate is issued anew only when it is missing, near its end, or made for other names.
"""

import base64
import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpudra.api.errors import InputError
from gpudra.controller.ctl.local.state import write_atomic

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as _error:  # pragma: no cover - the development set-up always has it
    raise InputError(
        "the Python package 'cryptography' is missing; the local cluster makes its certificates with it",
        hint="pip install 'gpudra[dev]', or run `make cluster-up`, which does",
    ) from _error

_VALID = dt.timedelta(days=3650)
_RENEW_BEFORE = dt.timedelta(days=30)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its key, both PEM files."""

    cert: Path
    key: Path


def _pem(key: "ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey") -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _alternative_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names


class Authority:
    """The authority in ``directory``, made at first use.

    Args:
        directory: where all certificates go, private to root.
        now: the time; tests give their own.
    """

    def __init__(self, directory: Path, now: dt.datetime | None = None) -> None:
        self._directory = directory
        self._now = now or dt.datetime.now(dt.UTC)
        self.ca = KeyPair(directory / "ca.crt", directory / "ca.key")
        if not (self.ca.cert.is_file() and self.ca.key.is_file()):
            self._make_authority()
        key = serialization.load_pem_private_key(self.ca.key.read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key
        self._cert = x509.load_pem_x509_certificate(self.ca.cert.read_bytes())

    def _builder(
        self, name: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            # Clocks of containers and their host may differ by a little.
            .not_valid_before(self._now - dt.timedelta(minutes=5))
            .not_valid_after(self._now + _VALID)
        )

    def _make_authority(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpudra-local")])
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
            decipher_only=False,
        )  # fmt: skip
        cert = (
            self._builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        # The key first: a certificate without its key would be taken for a whole authority.
        write_atomic(self.ca.key, _pem(key))
        write_atomic(self.ca.cert, cert.public_bytes(serialization.Encoding.PEM).decode(), 0o644)

    def issue(
        self, file_name: str, user: str, groups: Sequence[str] = (), hosts: Sequence[str] = ()
    ) -> KeyPair:
        """A certificate for ``user`` in ``groups`` (client), valid for ``hosts`` too (server)."""
        pair = KeyPair(self._directory / f"{file_name}.crt", self._directory / f"{file_name}.key")
        if self._is_good(pair, user, groups, hosts):
            return pair
        key = ec.generate_private_key(ec.SECP256R1())
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, user))
        uses = [
            ExtendedKeyUsageOID.CLIENT_AUTH,
            *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else []),
        ]
        builder = self._builder(
            x509.Name(subject), self._cert.subject, key.public_key()
        ).add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName(_alternative_names(hosts)), critical=False
            )
        cert = builder.sign(self._key, hashes.SHA256())
        write_atomic(pair.key, _pem(key))
        write_atomic(pair.cert, cert.public_bytes(serialization.Encoding.PEM).decode(), 0o644)
        return pair

    def _is_good(
        self, pair: KeyPair, user: str, groups: Sequence[str], hosts: Sequence[str]
    ) -> bool:
        """Whether an earlier certificate still serves, with the key that belongs to it."""
        if not (pair.cert.is_file() and pair.key.is_file()):
            return False
        cert = x509.load_pem_x509_certificate(pair.cert.read_bytes())
        key = serialization.load_pem_private_key(pair.key.read_bytes(), password=None)
        subject = [str(attribute.value) for attribute in cert.subject]
        names: list[x509.GeneralName] = []
        if hosts:
            names = list(cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        return (
            key.public_key() == cert.public_key()
            and cert.issuer == self._cert.subject
            and subject == [*groups, user]
            and names == _alternative_names(hosts)
            and cert.not_valid_after_utc - self._now > _RENEW_BEFORE
        )

    def signing_key(self, file_name: str) -> KeyPair:
        """A bare RSA key pair, which signs service account tokens; ``cert`` is the public key."""
        pair = KeyPair(self._directory / f"{file_name}.pub", self._directory / f"{file_name}.key")
        if not (pair.cert.is_file() and pair.key.is_file()):
            key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
            public = key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            write_atomic(pair.key, _pem(key))
            write_atomic(pair.cert, public.decode(), 0o644)
        return pair


def kubeconfig(server: str, ca: Path, user: dict[str, Any]) -> str:
    """A kubeconfig with the authority inside, for ``user`` as the file format spells it."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "gpudra-local",
                "cluster": {"server": server, "certificate-authority-data": _data(ca)},
            }
        ],
        "users": [{"name": "user", "user": user}],
        "contexts": [
            {"name": "gpudra-local", "context": {"cluster": "gpudra-local", "user": "user"}}
        ],
        "current-context": "gpudra-local",
    }
    return yaml.safe_dump(document, sort_keys=False)


def certificate_user(pair: KeyPair) -> dict[str, Any]:
    """The ``user`` of a kubeconfig that identifies itself with a certificate, embedded."""
    return {"client-certificate-data": _data(pair.cert), "client-key-data": _data(pair.key)}


def _data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
