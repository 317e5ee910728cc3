# SPDX-License-Identifier: Apache-2.0
"""A relist tells exactly the difference, for any two states of the server."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpudra.api.errors import ApiError, ExpiredError, NotFoundError, UnavailableError
from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.kube.reflector import Event, EventKind, Reflector, ReflectorError
from gpudra.driver.kube.resources import PODS, Obj, Resource
from gpudra.driver.kube.verbs import ListPage
from gpudra.driver.kube.watch import WatchEvent

# name -> (uid, resourceVersion, whether it can be decoded)
State = dict[str, tuple[str, str, bool]]

states = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]),
    st.tuples(st.sampled_from(["u1", "u2"]), st.sampled_from(["1", "2", "3"]), st.booleans()),
)


def raw(name: str, uid: str, version: str, good: bool = True) -> Obj:
    """A pod."""
    return {
        "metadata": {"name": name, "uid": f"{name}-{uid}", "resourceVersion": version},
        "good": good,
    }


def decode(obj: Obj) -> tuple[str, str, str]:
    """Name, uid and version; refuses what is not good."""
    if not obj["good"]:
        raise ValueError("not good")
    meta = obj["metadata"]
    return meta["name"], meta["uid"], meta["resourceVersion"]


class Script:
    """A list-watcher that hands out lists and watch events one after the other, then waits."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.asked: list[str] = []
        self.lasting: VirtualClock | None = None
        self.idle = asyncio.Event()

    async def list_page(
        self, resource: Resource, namespace: str | None = None, **_: Any
    ) -> ListPage:
        self.asked.append("list")
        step = await self._next()
        return ListPage(step, "100", "", None)

    async def watch(
        self, resource: Resource, namespace: str | None = None, **options: Any
    ) -> AsyncIterator[WatchEvent]:
        self.asked.append(f"watch {options['resource_version']}")
        step = await self._next()
        for kind, obj in step:
            yield WatchEvent(kind, obj)

    async def _next(self) -> Any:
        if self.lasting:
            await self.lasting.sleep(60)
        if not self.steps:
            self.idle.set()
            await asyncio.Event().wait()
        step = self.steps.pop(0)
        if isinstance(step, ApiError):
            raise step
        return step


async def mirror(
    script: Script, clock: VirtualClock | None = None
) -> tuple[
    Reflector[tuple[str, str, str]], list[Event[tuple[str, str, str]]], list[ReflectorError]
]:
    """Run a reflector until the script is at its end."""
    events: list[Event[tuple[str, str, str]]] = []
    troubles: list[ReflectorError] = []
    clock = clock or VirtualClock()
    reflector = Reflector(
        script,
        PODS,
        decode,
        on_event=events.append,
        on_error=troubles.append,
        clock=clock,
        rng=random.Random(0),
        indexes={"uid": lambda value: [value[1]]},
    )
    task = asyncio.create_task(reflector.run())
    while not script.idle.is_set():
        await clock.advance(5)
    task.cancel()
    return reflector, events, troubles


def objects(state: State) -> list[Obj]:
    """The state as a list."""
    return [raw(name, *rest) for name, rest in state.items()]


def replayed(events: list[Event[tuple[str, str, str]]]) -> dict[str, tuple[str, str, str]]:
    """What a handler that believes the events holds; refuses contradictions."""
    held: dict[str, tuple[str, str, str]] = {}
    for event in events:
        name = event.object[0]
        if event.kind is EventKind.ADD:
            assert name not in held
        else:
            assert held[name] == event.old
        if event.kind is EventKind.UPDATE:
            assert event.old is not None
            assert event.new is not None
            assert event.old[1] == event.new[1]
            assert event.old != event.new
        if event.new is None:
            del held[name]
        else:
            held[name] = event.new
    return held


@given(states, states)
def test_a_relist_tells_exactly_the_difference(before: State, after: State) -> None:
    """Events lead any handler from one list to the other; nothing is told twice or of the wrong uid."""
    expired = ExpiredError("old", status=410)
    script = Script(objects(before), expired, objects(after))
    reflector, events, _ = asyncio.run(mirror(script))
    held = replayed(events)
    assert held == {value[0]: value for value in reflector.store.values()}
    for name, (uid, version, good) in after.items():
        if good:
            assert held[name] == (name, f"{name}-{uid}", version)
        else:
            last = before.get(name)
            keeps = last is not None and last[2] and last[0] == uid
            assert (name in held) == keeps
            same_version = keeps and last is not None and last[1] == version
            assert (name in reflector.undecodable) != same_version
    assert held.keys() <= after.keys()


changes = st.lists(
    st.tuples(
        st.sampled_from(["ADDED", "MODIFIED", "DELETED"]),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["u1", "u2"]),
        st.booleans(),
    ),
    max_size=25,
)


@given(states, changes)
def test_a_watch_is_never_contradicted(
    before: State, stream: list[tuple[str, str, str, bool]]
) -> None:
    """Whatever a stream says, even nonsense, the events stay consistent with the store."""
    lines = [
        (kind, raw(name, uid, str(200 + at), good))
        for at, (kind, name, uid, good) in enumerate(stream)
    ]
    script = Script(objects(before), lines)
    reflector, events, _ = asyncio.run(mirror(script))
    assert replayed(events) == {value[0]: value for value in reflector.store.values()}
    assert reflector.resource_version == (str(199 + len(lines)) if lines else "100")
    for value in reflector.store.values():
        assert reflector.store.by_index("uid", value[1]) == [value]


async def test_trouble_is_told_once_until_it_works_again() -> None:
    """Equal failures in a row are told once; after a success the next one is news."""
    down = UnavailableError("down", status=503)
    script = Script(down, down, down, [], down, down, [], NotFoundError("gone", status=404))
    # The first two lists fail alike, then a list works; the watch fails alike twice and works.
    _, _, troubles = await mirror(script)
    assert [trouble.kind for trouble in troubles][:2] == [
        "list:UnavailableError503",
        "watch:UnavailableError503",
    ]
    assert len([t for t in troubles if t.kind == "list:UnavailableError503"]) == 1


async def test_a_restart_of_the_server_makes_nobody_list() -> None:
    """Watches refused with 503 or without an answer are tried again from the same version."""
    outage = [UnavailableError("down", status=code) for code in (503, 0, 503, 502, 504, 0)]
    script = Script([], *outage)
    await mirror(script)
    assert script.asked == ["list", *["watch 100"] * 7]


async def test_a_version_that_the_server_cannot_read_is_dropped() -> None:
    """Three internal errors in a row, or one about the version, lead to a new list."""
    broken = UnavailableError("boom", status=500)
    script = Script([], broken, broken, broken, [])
    await mirror(script)
    assert script.asked == ["list", "watch 100", "watch 100", "watch 100", "list", "watch 100"]
    future = UnavailableError("future", status=504, reason="ResourceVersionTooLarge")
    script = Script([], future, [])
    await mirror(script)
    assert script.asked == ["list", "watch 100", "list", "watch 100"]


async def test_a_failing_handler_costs_only_its_call() -> None:
    """Other handlers and later events are served, and the failure is told once."""
    script = Script([raw("a", "u1", "1"), raw("b", "u1", "1")])
    troubles: list[ReflectorError] = []
    seen: list[str] = []

    def failing(_: Event[Any]) -> None:
        raise RuntimeError("handler bug")

    reflector = Reflector(
        script, PODS, decode, on_event=failing, on_error=troubles.append, clock=VirtualClock()
    )
    reflector.add_handler(lambda event: seen.append(event.object[0]))
    task = asyncio.create_task(reflector.run())
    await reflector.wait_synced()
    task.cancel()
    assert seen == ["a", "b"]
    assert [trouble.kind for trouble in troubles] == ["handler:RuntimeError"]


async def test_a_late_handler_hears_of_everything() -> None:
    """A handler that is added later first hears of what is there."""
    reflector, _, _ = await mirror(Script([raw("a", "u1", "1")]))
    seen: list[Event[Any]] = []
    reflector.add_handler(seen.append)
    assert [(event.kind, event.object[0]) for event in seen] == [(EventKind.ADD, "a")]


async def test_a_watch_that_ends_at_once_is_no_busy_loop() -> None:
    """A stream that ends at once without a word is opened again after a growing pause."""
    clock = VirtualClock()
    script = Script([], [], [], [], [])
    reflector = Reflector(script, PODS, decode, clock=clock, rng=random.Random(0))
    task = asyncio.create_task(reflector.run())
    pauses = []
    for _ in range(4):
        await clock.advance(0)
        pauses.append(clock.pending()[0])
        await clock.advance(pauses[-1])
    task.cancel()
    assert pauses == sorted(pauses)
    assert pauses[0] >= 0.1


async def test_a_server_that_stays_silent_is_listed_again() -> None:
    """Three whole watches without even a bookmark cast doubt on the version: list again."""
    clock = VirtualClock()
    script = Script([], [], [], [], [])
    script.lasting = clock
    await mirror(script, clock)
    assert script.asked[:5] == ["list", "watch 100", "watch 100", "watch 100", "list"]
