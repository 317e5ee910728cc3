# SPDX-License-Identifier: Apache-2.0
"""Credentials that change: token files and exec plugins."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from gpudra.api.errors import InputError
from gpudra.driver.kube.auth import ProviderCredentials, StaticCredentials, TokenFile
from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.kube.kubeconfig import load_kubeconfig
from tests.support.tls import make_certificates

PLUGIN = """
import json, pathlib
counter = pathlib.Path(__file__).with_name("count")
n = int(counter.read_text()) + 1 if counter.exists() else 1
counter.write_text(str(n))
status = {"token": f"t{n}", "expirationTimestamp": "2100-01-01T00:00:00Z"}
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
"""


def kubeconfig(folder: Path, script: str) -> Path:
    """A kubeconfig whose user runs a Python script."""
    plugin = folder / "plugin.py"
    plugin.write_text(script)
    command = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(plugin)],
    }
    path = folder / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {"exec": command}}],
            }
        )
    )
    return path


async def test_a_token_file_that_vanishes_for_a_moment_costs_nothing(tmp_path: Path) -> None:
    """While there is an older token, a missing or empty file is passed over."""
    clock = VirtualClock()
    path = tmp_path / "token"
    path.write_text("one")
    credentials = TokenFile(path, clock)
    assert await credentials.authorization() == "Bearer one"
    path.unlink()
    assert not await credentials.renew()
    path.write_text("")
    await clock.advance(61)
    assert await credentials.authorization() == "Bearer one"
    path.write_text("two")
    assert await credentials.authorization() == "Bearer two"


async def test_an_empty_token_file_is_named(tmp_path: Path) -> None:
    """An empty file at the start is an error with its path."""
    path = tmp_path / "token"
    path.write_text("\n")
    with pytest.raises(InputError, match=r"token: the token file is empty"):
        await TokenFile(path, VirtualClock()).authorization()


async def test_fixed_credentials_cannot_be_renewed() -> None:
    """A 401 for a fixed token is final."""
    assert not await StaticCredentials("Bearer x").renew()


async def test_an_exec_plugin_is_asked_by_way_of_the_client_library(tmp_path: Path) -> None:
    """A plugin's token is kept while it is valid, and asked for anew upon 401."""
    clock = VirtualClock()
    connection = await load_kubeconfig([kubeconfig(tmp_path, PLUGIN)], None, clock)
    credentials = connection.credentials
    assert await credentials.authorization() == "Bearer t1"
    await clock.advance(61)
    assert await credentials.authorization() == "Bearer t1"
    assert await credentials.renew()
    assert await credentials.authorization() == "Bearer t2"


async def test_an_exec_plugin_that_fails_is_named(tmp_path: Path) -> None:
    """A plugin without a result is named, with what to do."""
    path = kubeconfig(tmp_path, "raise SystemExit(1)")
    with pytest.raises(InputError, match="gave neither a token nor a certificate; run it by hand"):
        await load_kubeconfig([path], None, VirtualClock())


async def test_an_exec_plugin_may_give_a_certificate(tmp_path: Path) -> None:
    """A plugin's client certificate becomes part of the connection's TLS settings."""
    certificates = make_certificates(tmp_path)
    status = {
        "clientCertificateData": certificates.client.certificate.read_text(),
        "clientKeyData": certificates.client.key.read_text(),
    }
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": status,
    }
    path = kubeconfig(tmp_path, f"print({json.dumps(json.dumps(answer))})")
    document = yaml.safe_load(path.read_text())
    document["clusters"][0]["cluster"] = {
        "server": "https://127.0.0.1:1",
        "certificate-authority": str(certificates.ca),
    }
    path.write_text(yaml.safe_dump(document))
    connection = await load_kubeconfig([path], None, VirtualClock())
    assert await connection.credentials.authorization() is None
    assert connection.ssl_context is not None
    assert connection.ssl_context.get_ca_certs()


async def test_a_provider_that_breaks_later_is_an_error_of_the_request() -> None:
    """Whatever a provider raises costs a request, not the program."""
    clock = VirtualClock()

    class Broken:
        async def load_and_set(self, _: object) -> None:
            raise RuntimeError("provider is gone")

    credentials = ProviderCredentials(Broken(), object(), clock)
    await clock.advance(61)
    with pytest.raises(InputError, match="provider is gone"):
        await credentials.authorization()
