# SPDX-License-Identifier: Apache-2.0
"""Connections of the client: TLS in all forms, pods' accounts, stale connections."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from gpudra.api.errors import ApiError, InputError, NotFoundError, UnavailableError
from gpudra.driver.kube.client import ClientOptions, KubeClient
from gpudra.driver.kube.fakeserver import FakeApiServer
from gpudra.driver.kube.reflector import Reflector, ReflectorOptions
from gpudra.driver.kube.resources import NODES, PODS, Obj
from tests.support.apiscript import Answer, ApiScript, listed
from tests.support.tls import Certificates, make_certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates for this file."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


def server_context(certificates: Certificates, *, mutual: bool = False) -> ssl.SSLContext:
    """TLS settings of a server, optionally one that asks for a client certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.server.certificate, certificates.server.key)
    if mutual:
        context.load_verify_locations(certificates.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def connect(server: FakeApiServer, user: Obj, **cluster: Any) -> KubeClient:
    """A client with this user and cluster section."""
    document = {
        "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": server.url, **cluster}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "users": [{"name": "x", "user": user}],
    }
    return await KubeClient.from_document(document)


async def test_a_trusted_server_is_believed_and_another_is_not(certificates: Certificates) -> None:
    """The cluster's CA decides; the server's name may be given; verification may be skipped."""
    async with FakeApiServer(ssl_context=server_context(certificates)) as server:
        ca = {"certificate-authority": str(certificates.ca)}
        for cluster in (
            ca,
            {**ca, "tls-server-name": "fake.example"},
            {"insecure-skip-tls-verify": True},
        ):
            async with await connect(server, {}, **cluster) as client:
                assert (await client.list(NODES)).items == []
        for cluster in ({}, {**ca, "tls-server-name": "other.example"}):
            async with await connect(server, {}, **cluster) as client:
                with pytest.raises(UnavailableError, match="certificate verify failed"):
                    await client.list(NODES)


async def test_a_client_certificate_opens_the_door(certificates: Certificates) -> None:
    """A server that asks for a certificate lets in those who have one."""
    context = server_context(certificates, mutual=True)
    ca = {"certificate-authority": str(certificates.ca)}
    user = {
        "client-certificate": str(certificates.client.certificate),
        "client-key": str(certificates.client.key),
    }
    async with FakeApiServer(ssl_context=context) as server:
        async with await connect(server, user, **ca) as client:
            assert (await client.list(NODES)).items == []
        async with await connect(server, {}, **ca) as client:
            with pytest.raises(UnavailableError):
                await client.list(NODES)


async def test_a_pod_uses_its_account(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pod its account is used, by `load` too, and a rotated token is read upon 401."""
    (tmp_path / "ca.crt").write_bytes(certificates.ca.read_bytes())
    token = tmp_path / "token"
    token.write_text("first")
    async with FakeApiServer(ssl_context=server_context(certificates)) as server:
        server.tokens = {"first"}
        host, port = server.url.removeprefix("https://").split(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        with pytest.raises(InputError, match="service account's file is missing"):
            await KubeClient.load()
        async with await KubeClient.in_cluster(folder=tmp_path) as client:
            assert (await client.list(NODES)).items == []
            server.tokens = {"second"}
            token.write_text("second")
            assert (await client.list(NODES)).items == []


async def test_without_a_pod_kubectls_file_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`load` outside a pod reads KUBECONFIG, and a named context."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with FakeApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", server.kubeconfig(tmp_path / "config"))
        async with await KubeClient.load() as client:
            assert client.server == server.url
        async with await KubeClient.load(context="fake") as client:
            assert client.server == server.url
        with pytest.raises(InputError, match="no context called 'other'"):
            await KubeClient.load(context="other")


async def test_a_kept_connection_that_was_closed_costs_a_get_nothing() -> None:
    """A GET on a connection that the server closed meanwhile is sent again."""
    async with FakeApiServer() as server:
        client = await server.client()
        await client.list(NODES)
        await server.stop()
        await server.start()
        client = await server.client()
        assert (await client.list(NODES)).items == []


async def test_a_server_that_never_answers_is_given_up() -> None:
    """A plain request ends with its time-out, as a retryable error."""
    script = ApiScript(Answer(chunks=(), end="hang"))
    async with script:
        client = await script.client(ClientOptions(timeout=0.05))
        with pytest.raises(UnavailableError, match="no answer from"):
            await client.get(PODS, "p", "default")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b""])
async def test_a_success_that_is_no_object_is_not_believed(body: bytes) -> None:
    """A proxy's page with status 200 is an error or an empty object, never a crash."""
    script = ApiScript(Answer(body=body))
    async with script:
        client = await script.client()
        if body == b"[]":
            assert await client.get(PODS, "p", "default") == {}
            return
        with pytest.raises(UnavailableError):
            await client.get(PODS, "p", "default")


async def test_a_list_that_expires_again_and_again_is_read_in_one_piece() -> None:
    """After three lists with expired pages the client asks for everything at once."""
    expired = Answer(status=410, body=b'{"kind":"Status","code":410,"reason":"Expired"}')
    item = {"metadata": {"name": "p"}}
    script = ApiScript(
        listed("1", item, token="t1"),
        expired,
        listed("2", item, token="t2"),
        expired,
        listed("3", item, item),
    )
    async with script:
        client = await script.client()
        result = await client.list(PODS)
        assert result.resource_version == "3"
        assert len(result.items) == 2


async def test_a_cancelled_request_leaves_the_client_usable() -> None:
    """Cancelling a call closes its connection only."""
    script = ApiScript(Answer(chunks=(), end="hang"), Answer(body=b'{"metadata":{"name":"p"}}'))
    async with script:
        client = await script.client()
        task = asyncio.create_task(client.get(PODS, "p", "default"))
        await script.asked_for(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.get(PODS, "p", "default"))["metadata"]["name"] == "p"


async def test_a_token_that_is_late_is_waited_for(tmp_path: Path) -> None:
    """Without a token file a request is worth trying again, and a reflector does so."""
    async with FakeApiServer() as server:
        server.tokens = {"late"}
        async with await connect(server, {"tokenFile": str(tmp_path / "token")}) as client:
            with pytest.raises(UnavailableError, match=r"node n: no credentials: .*token"):
                await client.get(NODES, "n")
            reflector = Reflector(
                client,
                NODES,
                lambda raw: raw,
                options=ReflectorOptions(backoff_base=0.001, backoff_cap=0.002),
            )
            task = asyncio.create_task(reflector.run())
            await asyncio.sleep(0)
            (tmp_path / "token").write_text("late")
            await asyncio.wait_for(reflector.wait_synced(), 10)
            task.cancel()
            assert server.requests[0].status == 200


async def test_redirects_are_not_followed() -> None:
    """Nobody can lead our credentials elsewhere."""
    script = ApiScript(Answer(status=302, headers={"Location": "/elsewhere"}))
    async with script:
        client = await script.client(user={"token": "secret"})
        with pytest.raises(ApiError, match="302"):
            await client.get(PODS, "p", "default")
        assert len(script.asked) == 1


async def test_paths_are_escaped() -> None:
    """Odd names cannot leave their place in the URL."""
    async with FakeApiServer() as server:
        client = await server.client()
        with pytest.raises(NotFoundError):
            await client.get(PODS, "a/../b", "default")
        assert server.requests[-1].name == "a/../b"
