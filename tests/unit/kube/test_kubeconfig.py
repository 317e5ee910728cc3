# SPDX-License-Identifier: Apache-2.0
"""Reading kubeconfig files and the service account of a pod."""

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpudra.api.errors import InputError
from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.kube.kubeconfig import (
    default_paths,
    load_in_cluster,
    load_kubeconfig,
    load_kubeconfig_document,
)
from tests.support.tls import Certificates, make_certificates


def document(
    user: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    name: str = "c",
) -> dict[str, Any]:
    """A kubeconfig with one context of this name."""
    return {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": cluster or {"server": "http://127.0.0.1:1/"}}],
        "users": [{"name": name, "user": user or {}}],
    }


def write(path: Path, content: Any) -> Path:
    """The content as a YAML file."""
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


async def authorization(user: dict[str, Any]) -> str | None:
    """The header for a user section."""
    connection = load_kubeconfig_document(document(user), None, VirtualClock())
    return await connection.credentials.authorization()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates for this file."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


async def test_users_give_their_header(tmp_path: Path) -> None:
    """Token, token file, password and nothing give the header that kubectl would send."""
    token_file = write(tmp_path / "token", "from-file\n")
    assert await authorization({"token": "t"}) == "Bearer t"
    both = {"token": "stale", "tokenFile": str(token_file)}
    assert await authorization(both) == "Bearer from-file"
    basic = "Basic " + base64.b64encode(b"u:p").decode()
    assert await authorization({"username": "u", "password": "p"}) == basic
    assert await authorization({}) is None


async def test_relative_paths_start_at_the_file(tmp_path: Path) -> None:
    """Paths in a kubeconfig are relative to its folder."""
    write(tmp_path / "tok", "x")
    path = write(tmp_path / "config", document({"tokenFile": "tok"}))
    connection = await load_kubeconfig([path], None, VirtualClock())
    assert await connection.credentials.authorization() == "Bearer x"
    assert connection.server == "http://127.0.0.1:1"


async def test_several_files_are_one(tmp_path: Path) -> None:
    """Of several files the first one to name a thing wins; missing ones are passed over."""
    first = write(tmp_path / "1", document({"token": "first"}, name="a"))
    second_document = document({"token": "second"}, name="b")
    second_document["users"].append({"name": "a", "user": {"token": "hidden"}})
    second = write(tmp_path / "2", second_document)
    paths = [tmp_path / "missing", first, second]
    for context, token in ((None, "first"), ("a", "first"), ("b", "second")):
        connection = await load_kubeconfig(paths, context, VirtualClock())
        assert await connection.credentials.authorization() == f"Bearer {token}"


def test_the_default_is_that_of_kubectl() -> None:
    """KUBECONFIG lists files; without it there is one in the home folder."""
    assert default_paths({"KUBECONFIG": "/a:/b:"}) == [Path("/a"), Path("/b")]
    assert default_paths({})[0].parts[-2:] == (".kube", "config")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- a list", "holds no mapping"),
        ("a: [", "not YAML"),
        ({"contexts": []}, "no current-context"),
        ({"current-context": "x"}, "no context called 'x'"),
        (
            {"current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "c"}}]},
            "no cluster called 'c'",
        ),
        (document(cluster={"server": "ftp://x"}), "not an http or https URL"),
        (document({"tokenFile": "nowhere"}), None),
        (
            document({}, {"server": "https://x", "certificate-authority": "nowhere"}),
            "certificate-authority: cannot read",
        ),
        (
            document({}, {"server": "https://x", "certificate-authority-data": "A"}),
            "not base64",
        ),
        (
            document({}, {"server": "https://x", "certificate-authority-data": "QUJD"}),
            "certificate authority cannot be used",
        ),
        (
            document(
                {"client-certificate-data": "QUJD", "client-key-data": "QUJD"},
                {"server": "https://x"},
            ),
            "client certificate and key cannot be used",
        ),
    ],
)
async def test_an_unusable_file_says_what_is_wrong(
    tmp_path: Path, content: Any, message: str | None
) -> None:
    """Each mistake in a kubeconfig is named; a missing token file when the token is needed."""
    path = write(tmp_path / "config", content)
    if message is None:
        connection = await load_kubeconfig([path], None, VirtualClock())
        with pytest.raises(InputError, match="cannot read the token"):
            await connection.credentials.authorization()
        return
    with pytest.raises(InputError, match=message):
        await load_kubeconfig([path], None, VirtualClock())


async def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A file that does not exist is named, alone or among several."""
    missing = tmp_path / "missing"
    with pytest.raises(InputError, match="missing"):
        await load_kubeconfig([missing], None, VirtualClock())
    with pytest.raises(InputError, match="no such file"):
        await load_kubeconfig([missing, missing], None, VirtualClock())


def test_tls_settings(certificates: Certificates) -> None:
    """CA, client certificate, other server name, proxy, skipped verification, impersonation."""
    data = base64.b64encode(certificates.ca.read_bytes()).decode()
    secure = load_kubeconfig_document(
        document(
            {
                "client-certificate": str(certificates.client.certificate),
                "client-key": str(certificates.client.key),
                "as": "someone",
            },
            {
                "server": "https://x:6443/",
                "certificate-authority-data": data,
                "tls-server-name": "fake.example",
                "proxy-url": "http://proxy:1",
            },
        ),
        None,
        VirtualClock(),
    )
    assert secure.ssl_context is not None
    assert secure.ssl_context.verify_mode is ssl.CERT_REQUIRED
    assert secure.server_name == "fake.example"
    assert secure.proxy == "http://proxy:1"
    assert secure.headers == {"Impersonate-User": "someone"}
    loose = load_kubeconfig_document(
        document({}, {"server": "https://x", "insecure-skip-tls-verify": True}),
        None,
        VirtualClock(),
    )
    assert loose.ssl_context is not None
    assert loose.ssl_context.verify_mode is ssl.CERT_NONE


async def test_in_a_pod(tmp_path: Path, certificates: Certificates) -> None:
    """A pod's account gives server, CA and a token that is read anew; IPv6 hosts get brackets."""
    (tmp_path / "ca.crt").write_bytes(certificates.ca.read_bytes())
    write(tmp_path / "token", "pod-token")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    connection = load_in_cluster(environ, VirtualClock(), tmp_path)
    assert connection.server == "https://[fd00::1]:443"
    assert await connection.credentials.authorization() == "Bearer pod-token"


def test_outside_a_pod_it_says_so(tmp_path: Path) -> None:
    """Without the variables or the files the message says what is missing."""
    with pytest.raises(InputError, match="KUBERNETES_SERVICE_HOST"):
        load_in_cluster({}, VirtualClock(), tmp_path)
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(InputError, match="service account's file is missing"):
        load_in_cluster(environ, VirtualClock(), tmp_path)


async def test_a_provider_needs_a_file() -> None:
    """A kubeconfig in memory cannot name an exec plugin."""
    with pytest.raises(InputError, match="need a kubeconfig file"):
        load_kubeconfig_document(document({"exec": {"command": "x"}}), None, VirtualClock())
