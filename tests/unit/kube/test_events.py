# SPDX-License-Identifier: Apache-2.0
"""The event recorder: series, folding, and never breaking its caller."""

import asyncio
import random
from typing import Any

from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.kube.events import MAX_NOTE_BYTES, EventRecorder
from gpudra.driver.kube.resources import EVENTS, Obj
from tests.support.storeapi import StoreApi

CLAIM: Obj = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "c", "namespace": "team", "uid": "u1"},
}


def make() -> tuple[VirtualClock, StoreApi, EventRecorder]:
    """A recorder on virtual time."""
    clock = VirtualClock()
    api = StoreApi(clock)
    recorder = EventRecorder(
        api, controller="gpu.gpudra.io", instance="node-1", clock=clock, rng=random.Random(0)
    )
    return clock, api, recorder


def events(api: StoreApi) -> list[dict[str, Any]]:
    """What is on the server."""
    return api.objects.list(EVENTS)


async def test_an_event_has_all_that_the_server_asks_for() -> None:
    """Every required field is set, in the namespace of the object."""
    _, api, recorder = make()
    recorder.event(CLAIM, "Warning", "PrepareFailed", "no device", action="Prepare")
    await recorder.flush()
    (event,) = events(api)
    assert event["metadata"]["namespace"] == "team"
    assert event["metadata"]["name"].startswith("c.")
    assert event["regarding"] == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "name": "c",
        "namespace": "team",
        "uid": "u1",
    }
    assert event["eventTime"] == "2026-01-01T00:00:00.000000Z"
    assert (event["type"], event["reason"], event["action"]) == (
        "Warning",
        "PrepareFailed",
        "Prepare",
    )
    assert (event["reportingController"], event["reportingInstance"]) == (
        "gpu.gpudra.io",
        "node-1",
    )
    assert event["note"] == "no device"
    assert "series" not in event


async def test_cluster_scoped_objects_have_events_in_default() -> None:
    """A node's event goes to the namespace default; a reference will do as the object."""
    _, api, recorder = make()
    node = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n"}
    recorder.event(node, "Normal", "Published", "8 devices", related=CLAIM)
    await recorder.flush()
    (event,) = events(api)
    assert event["metadata"]["namespace"] == "default"
    assert event["related"]["name"] == "c"
    assert event["action"] == "Published"


async def test_repetitions_are_one_event_with_a_series() -> None:
    """A hundred equal messages in a hundred seconds are one Event and a handful of writes."""
    clock, api, recorder = make()
    task = asyncio.create_task(recorder.run())
    for _ in range(100):
        recorder.event(CLAIM, "Warning", "PrepareFailed", "no device")
        await clock.advance(1)
    await clock.advance(60)
    task.cancel()
    (event,) = events(api)
    assert event["series"]["count"] == 100
    assert len(api.writes) <= 6


async def test_a_repetition_after_a_long_pause_is_a_new_event() -> None:
    """After six silent minutes the same message is a new Event."""
    clock, api, recorder = make()
    recorder.event(CLAIM, "Warning", "PrepareFailed", "no device")
    await recorder.flush()
    await clock.advance(361)
    recorder.event(CLAIM, "Warning", "PrepareFailed", "no device")
    await recorder.flush()
    assert len(events(api)) == 2


async def test_a_flood_of_differing_notes_is_folded() -> None:
    """Notes that differ each time become at most eleven Events; other reasons are not touched."""
    _, api, recorder = make()
    for number in range(200):
        recorder.event(CLAIM, "Warning", "PrepareFailed", f"attempt {number}")
    recorder.event(CLAIM, "Normal", "Prepared", "fine")
    await recorder.flush()
    notes = [event["note"] for event in events(api)]
    assert len(notes) == 12
    folded = [event for event in events(api) if event["note"].startswith("(combined")]
    assert folded[0]["series"]["count"] == 190
    assert "fine" in notes


async def test_a_server_that_is_away_gets_the_event_later() -> None:
    """Retryable failures keep the event; its count goes on meanwhile."""
    clock, api, recorder = make()
    api.faults.unavailable()
    task = asyncio.create_task(recorder.run())
    recorder.event(CLAIM, "Warning", "PrepareFailed", "no device")
    await clock.advance(5)
    recorder.event(CLAIM, "Warning", "PrepareFailed", "no device")
    assert events(api) == []
    api.faults.unavailable(on=False)
    await clock.advance(120)
    task.cancel()
    (event,) = events(api)
    assert event["series"]["count"] == 2


async def test_a_refusal_is_given_up() -> None:
    """An event that the server refuses is not tried again."""
    clock, api, recorder = make()
    api.faults.fail(status=403, times=None)
    task = asyncio.create_task(recorder.run())
    recorder.event(CLAIM, "Warning", "PrepareFailed", "no device")
    await clock.advance(600)
    task.cancel()
    assert len(api.writes) == 1


async def test_an_expired_event_is_made_anew() -> None:
    """When the server has forgotten the Event of a series, a new one carries the count."""
    clock, api, recorder = make()
    recorder.event(CLAIM, "Warning", "PrepareFailed", "no device")
    await recorder.flush()
    (event,) = events(api)
    api.objects.delete(EVENTS, event["metadata"]["name"], "team")
    await clock.advance(30)
    recorder.event(CLAIM, "Warning", "PrepareFailed", "no device")
    await recorder.flush()
    (event,) = events(api)
    assert event["series"]["count"] == 2


async def test_a_long_note_is_cut_at_whole_characters() -> None:
    """Notes stay within 1024 bytes, whatever their alphabet."""
    _, api, recorder = make()
    recorder.event(CLAIM, "Normal", "Long", "ä" * 2000)
    await recorder.flush()
    (event,) = events(api)
    assert len(event["note"].encode()) <= MAX_NOTE_BYTES
    assert event["note"].endswith("ä…")


async def test_nonsense_never_breaks_the_caller() -> None:
    """An object without a name costs only its event."""
    _, api, recorder = make()
    recorder.event({"kind": "Odd"}, "Normal", "X", "y")
    await recorder.flush()
    assert events(api) == []
