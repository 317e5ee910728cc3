# SPDX-License-Identifier: Apache-2.0
"""Case 35, the rows about single requests: tokens, throttling, conflicts, unknown fields."""

import asyncio
import random
from pathlib import Path

import orjson
import pytest

from gpudra.api.errors import ConflictError, ForbiddenError, TooManyRequestsError, UnavailableError
from gpudra.driver.kube.client import ClientOptions, KubeClient
from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.kube.reflector import Reflector
from gpudra.driver.kube.resources import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Obj
from tests.support.apiscript import Answer, ApiScript, failed, listed, slice_object, watched


def claim(allocated_to: str | None = None) -> Obj:
    """A claim, allocated to a device or not."""
    status = {"allocation": {"devices": {"results": [{"device": allocated_to}]}}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default", "uid": "u", "resourceVersion": "5"},
        "status": status if allocated_to else {},
    }


def answer(obj: Obj) -> Answer:
    """The object as the body of a success."""
    return Answer(body=orjson.dumps(obj))


async def test_token_rotated_is_read_upon_401(tmp_path: Path) -> None:
    """A 401 makes the client read the token file anew and repeat the request."""
    token = tmp_path / "token"
    token.write_text("old\n")
    script = ApiScript(listed("1"), failed(401, "Unauthorized"), listed("2"))
    async with script:
        client = await script.client(user={"tokenFile": str(token)})
        await client.list(RESOURCE_SLICES)
        token.write_text("new\n")
        result = await client.list(RESOURCE_SLICES)
        assert result.resource_version == "2"
        sent = [headers["Authorization"] for headers in script.headers]
        assert sent == ["Bearer old", "Bearer old", "Bearer new"]


async def test_token_rotated_is_read_within_a_minute(tmp_path: Path) -> None:
    """Without any 401 the token file is read again after a minute."""
    clock = VirtualClock()
    token = tmp_path / "token"
    token.write_text("old")
    script = ApiScript(*[listed("1")] * 3)
    async with script:
        client = await script.client(ClientOptions(clock=clock), {"tokenFile": str(token)})
        for passed in (0, 59.0, 1.0):
            await clock.advance(passed)
            await client.list(RESOURCE_SLICES)
            token.write_text("new")
        sent = [headers["Authorization"] for headers in script.headers]
        assert sent == ["Bearer old", "Bearer old", "Bearer new"]


async def test_token_rotated_reaches_watches_too(tmp_path: Path) -> None:
    """A watch refused with 401 is opened with the new token without a new list."""
    token = tmp_path / "token"
    token.write_text("old")
    script = ApiScript(listed("1"), failed(401, "Unauthorized"), watched())
    async with script:
        client = await script.client(user={"tokenFile": str(token)})
        reflector = Reflector(client, RESOURCE_SLICES, lambda raw: raw)
        task = asyncio.create_task(reflector.run())
        await reflector.wait_synced()
        token.write_text("new")
        asked = await script.asked_for(3)
        task.cancel()
        assert asked == ["LIST", "WATCH 1", "WATCH 1"]
        assert script.headers[2]["Authorization"] == "Bearer new"


async def test_a_token_that_did_not_change_is_not_tried_again(tmp_path: Path) -> None:
    """A 401 with the newest token is an error that names the verb and the object."""
    token = tmp_path / "token"
    token.write_text("only")
    script = ApiScript(failed(401, "Unauthorized", "Unauthorized"))
    async with script:
        client = await script.client(user={"tokenFile": str(token)})
        with pytest.raises(ForbiddenError, match="pod default/p: get refused") as caught:
            await client.get(PODS, "p", "default")
        assert caught.value.status == 401
        assert len(script.asked) == 1


async def test_unknown_field_is_kept() -> None:
    """A field that we do not know goes through a read and a write unharmed."""
    stored = slice_object("s1", futureField={"a": [1, 2]})
    script = ApiScript(answer(stored), answer(stored))
    async with script:
        client = await script.client()
        got = await client.get(RESOURCE_SLICES, "s1")
        await client.update(RESOURCE_SLICES, got)
        assert orjson.loads(script.bodies[1])["spec"]["futureField"] == {"a": [1, 2]}


async def test_unknown_field_value_costs_only_its_object() -> None:
    """An object that the decoder refuses is reported and left out; the others are used."""

    def decode(raw: Obj) -> str:
        mode = raw["spec"].get("mode", "ExactCount")
        if mode not in ("ExactCount", "All"):
            raise ValueError(f"unknown allocation mode {mode!r}")
        return str(raw["metadata"]["name"])

    troubles: list[str] = []
    script = ApiScript(
        listed("1", slice_object("good", newField=1), slice_object("odd", mode="Guess"))
    )
    async with script:
        client = await script.client()
        reflector = Reflector(
            client,
            RESOURCE_SLICES,
            decode,
            on_error=lambda trouble: troubles.append(trouble.message),
        )
        task = asyncio.create_task(reflector.run())
        await reflector.wait_synced()
        task.cancel()
        assert reflector.store.values() == ["good"]
        assert dict(reflector.undecodable) == {"odd": "unknown allocation mode 'Guess'"}
        assert troubles == ["ResourceSlice odd cannot be used: unknown allocation mode 'Guess'"]


async def test_conflict_is_handed_to_the_caller() -> None:
    """A 409 is never repeated by the client; the caller reads and finds the other's allocation."""
    script = ApiScript(failed(409, "Conflict"), answer(claim("gpu-of-somebody-else")))
    async with script:
        client = await script.client()
        with pytest.raises(ConflictError):
            await client.update_status(RESOURCE_CLAIMS, claim("mine"))
        found = await client.get(RESOURCE_CLAIMS, "c", "default")
        assert found["status"]["allocation"]["devices"]["results"][0]["device"].startswith("gpu-of")
        assert script.asked == ["PUT status", "GET c"]


async def test_too_many_waits_as_long_as_the_server_asks() -> None:
    """After 429 with Retry-After 2 the next request comes after two seconds or a little more."""
    clock = VirtualClock()
    script = ApiScript(failed(429, "TooManyRequests", Retry_After="2"), listed("1"))
    async with script:
        client = await script.client(ClientOptions(clock=clock, rng=random.Random(1)))
        task = asyncio.create_task(client.list(RESOURCE_SLICES))
        await clock.until_sleeping()
        wait = clock.pending()[0]
        assert 2.0 <= wait <= 2.2
        await clock.advance(1.9)
        assert len(script.asked) == 1
        await clock.advance(0.3)
        assert (await task).resource_version == "1"


async def test_too_many_in_a_reflector_is_waited_for_without_a_budget() -> None:
    """A wait that the client does not take upon itself is kept by the reflector."""
    clock = VirtualClock()
    script = ApiScript(failed(429, "TooManyRequests", Retry_After="120"), listed("1"), watched())
    async with script:
        client = await script.client(ClientOptions(clock=clock))
        reflector = Reflector(client, RESOURCE_SLICES, lambda raw: raw, clock=clock)
        task = asyncio.create_task(reflector.run())
        await clock.until_sleeping()
        assert clock.pending()[0] >= 120
        await clock.advance(clock.pending()[0])
        assert await script.asked_for(3) == ["LIST", "LIST", "WATCH 1"]
        task.cancel()


async def test_too_many_for_an_eviction_is_an_answer() -> None:
    """429 for an eviction means that a disruption budget says no; it is not waited out."""
    script = ApiScript(failed(429, "TooManyRequests", Retry_After="1"))
    async with script:
        client = await script.client()
        with pytest.raises(TooManyRequestsError) as caught:
            await client.create_subresource(PODS, "p", "eviction", {}, "default")
        assert caught.value.retry_after == 1.0


async def test_a_server_that_is_not_there_is_named() -> None:
    """No connection gives a retryable error that names the server."""
    script = ApiScript()
    async with script:
        url = script.url
    document = {
        "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": url}}],
        "contexts": [{"name": "x", "context": {"cluster": "x"}}],
    }
    async with await KubeClient.from_document(document) as client:
        with pytest.raises(UnavailableError, match="no answer from http://127") as caught:
            await client.get(PODS, "p", "default")
        assert caught.value.retryable
