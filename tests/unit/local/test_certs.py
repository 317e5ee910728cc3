# SPDX-License-Identifier: Apache-2.0
"""Certificates of the local cluster."""

import datetime as dt
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from gpudra.controller.ctl.local.certs import Authority, KeyPair, certificate_user, kubeconfig


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """A fresh authority."""
    return Authority(tmp_path)


def read(pair: KeyPair) -> x509.Certificate:
    """The certificate in a file."""
    return x509.load_pem_x509_certificate(pair.cert.read_bytes())


def test_a_client_certificate_says_user_and_groups(authority: Authority) -> None:
    """Kubernetes reads the user from CN and groups from O; the authority signed it."""
    pair = authority.issue("kubelet", "system:node:node-1", ["system:nodes"])

    cert = read(pair)
    assert cert.subject.rfc4514_string() == "CN=system:node:node-1,O=system:nodes"
    cert.verify_directly_issued_by(read(authority.ca))
    uses = cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_a_server_certificate_is_valid_for_names_and_addresses(authority: Authority) -> None:
    """Addresses are written as addresses: clients compare them with nothing else."""
    pair = authority.issue("server", "server", hosts=["localhost", "127.0.0.1"])

    names = read(pair).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


def test_keys_are_readable_by_their_owner_alone(authority: Authority) -> None:
    """That holds for the authority's key most of all."""
    pairs = [authority.ca, authority.issue("a", "a"), authority.signing_key("sa")]

    assert {pair.key.stat().st_mode & 0o777 for pair in pairs} == {0o600}


def test_good_certificates_are_kept(tmp_path: Path, authority: Authority) -> None:
    """Running ``up`` again changes no file, so nothing restarts."""
    pairs = [authority.ca, authority.issue("a", "a", ["g"], ["h"]), authority.signing_key("sa")]
    before = [pair.cert.read_bytes() + pair.key.read_bytes() for pair in pairs]

    again = Authority(tmp_path)
    again.issue("a", "a", ["g"], ["h"])
    again.signing_key("sa")

    assert [pair.cert.read_bytes() + pair.key.read_bytes() for pair in pairs] == before


@pytest.mark.parametrize("change", ["user", "groups", "hosts", "age", "key"])
def test_a_certificate_that_does_not_fit_is_issued_anew(
    tmp_path: Path, authority: Authority, change: str
) -> None:
    """Other names, a near end, or a key that is not its own make it useless."""
    pair = authority.issue("a", "a", ["g"], ["h"])
    before = pair.cert.read_bytes()
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=3640 if change == "age" else 0)
    if change == "key":
        pair.key.write_bytes(authority.ca.key.read_bytes())

    user, groups, hosts = "a", ["g"], ["h"]
    Authority(tmp_path, later).issue(
        "a",
        "b" if change == "user" else user,
        ["x"] if change == "groups" else groups,
        ["10.0.0.1"] if change == "hosts" else hosts,
    )

    assert pair.cert.read_bytes() != before


def test_half_an_authority_is_made_anew(tmp_path: Path, authority: Authority) -> None:
    """A start that was killed between key and certificate does not block the next one."""
    authority.ca.cert.unlink()

    read(Authority(tmp_path).issue("a", "a")).verify_directly_issued_by(read(authority.ca))


def test_a_kubeconfig_holds_everything_it_needs(authority: Authority) -> None:
    """It can be copied away: authority and certificate are inside."""
    text = kubeconfig(
        "https://127.0.0.1:1", authority.ca.cert, certificate_user(authority.issue("a", "a"))
    )

    document = yaml.safe_load(text)
    assert document["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"
    assert set(document["users"][0]["user"]) == {"client-certificate-data", "client-key-data"}
    assert document["current-context"] == document["contexts"][0]["name"]
