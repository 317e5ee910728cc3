# SPDX-License-Identifier: Apache-2.0
"""Where the time of a claim goes, what is cleaned up, and how both become metrics."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gpudra.driver.core.sharing import Backend, NodeSharing, Places
from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.observability.metrics import Component, Metrics
from gpudra.kubelet_plugin.meters import Meters
from gpudra.kubelet_plugin.sharing import DaemonReport
from gpudra.kubelet_plugin.sharing_care import CHECK_PERIOD, SharingCare
from gpudra.kubelet_plugin.spent import Account, Phase, note_form, opened, spending
from tests.support.formsnode import FormsNode, hardware, isolation
from tests.support.plugin import Killed, Node, claim_object, uid


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node with two cards."""
    return Node(tmp_path)


async def test_time_is_booked_by_phase_through_tasks_and_threads() -> None:
    """Also that of a block that fails; outside of an account nothing happens."""
    clock = VirtualClock()
    account = Account(clock.monotonic)

    async def fails() -> None:
        with spending(Phase.CDI):
            await clock.sleep(3)
            raise ValueError("no")

    async def work() -> None:
        with spending(Phase.API):
            await clock.sleep(2)
        with pytest.raises(ValueError, match="no"):
            await fails()
        with spending(Phase.API):
            await clock.sleep(4)
        await asyncio.to_thread(note_form, "gpu")

    with opened(account):
        running = asyncio.create_task(work())
    await clock.advance(10)
    await running
    assert account.seconds == {Phase.API: 6.0, Phase.CDI: 3.0}
    assert account.form == "gpu"
    with spending(Phase.LOCK):
        note_form("mig")
    assert Phase.LOCK not in account.seconds


async def test_each_claim_of_a_call_has_its_own_account(tmp_path: Path) -> None:
    """Forms are told of what succeeds, of what is there already, and of what is taken back."""
    with hardware("simulated", tmp_path) as found:
        node = FormsNode(tmp_path / "node", found.lib)
        none = (isolation("none"),)
        refs = [
            node.claim(1, node.device(0)),
            node.claim(2, node.device(1, "1g10gb-0")),
            node.claim(3, node.share(2), config=none),
            node.claim(4, {"device": node.device(3, "monitor"), "adminAccess": True}),
            node.claim(5, node.device(4), node.device(5, "1g10gb-0")),
        ]
        forms = ["gpu", "mig", "share", "monitor", "mixed"]
        instance = await node.start()
        for _ in range(2):
            assert all(one.ok for one in await instance.prepare(*refs))
        assert all(one.ok for one in await instance.unprepare(*refs))
        assert sorted(one.form for one in instance.report.accounts) == sorted(forms * 3)
        await instance.unprepare(refs[0])
        await instance.prepare(node.claim(6, "gpu-of-another-node"))
        assert [one.form for one in instance.report.accounts[-2:]] == ["none", "unknown"]


async def test_waiting_for_a_card_is_booked_as_such(node: Node) -> None:
    """The second claim waits while the first one's API call takes its time."""
    instance = await node.start()
    ref = node.api.put(claim_object(uid(1), "c1", "gpu-0"))
    async with instance.state._cards.held(["GPU-00000000"]):
        call = asyncio.create_task(instance.prepare(ref))
        await node.clock.advance(7)
    (answer,) = await call
    assert answer.ok
    (account,) = instance.report.accounts
    assert account.seconds[Phase.LOCK] == 7.0


async def test_what_is_taken_back_is_counted_by_kind(node: Node) -> None:
    """Half-made claims, orphans, files of no claim, and what a killed writer left."""
    first = await node.start()
    ref = node.api.put(claim_object(uid(1), "c1", "gpu-0"))
    assert (await first.prepare(ref))[0].ok
    first.end()

    def die(point: str) -> None:
        if point == "do:cdi-file:before":
            raise Killed

    half = node.api.put(claim_object(uid(2), "c2", "gpu-1"))
    killed = await node.start(observe=die)
    with pytest.raises(Killed):
        await killed.state._prepare(half)
    killed.end()
    (node.cdi_dir / "gpu.example.com-claim_99999999-0000-4000-8000-000000000009.json").touch()
    (node.cdi_dir / ".gpu.example.com-claim_abc.json.x.tmp").touch()
    node.api.drop(ref)
    counted: dict[str, int] = {}

    def took_back(kind: str, count: int) -> None:
        counted[kind] = counted.get(kind, 0) + count

    last = await node.start(took_back=took_back)
    await last.recovery.sweep()
    assert last.state.records == {}
    assert counted == {"half_made": 1, "orphan": 1, "cdi_file": 1, "temporary": 1}


class Isolation:
    """Backends of a node, as a test says."""

    def __init__(self) -> None:
        self.why: dict[Backend, str] = dict.fromkeys(Backend, "")
        self.reports: list[DaemonReport] = []

    @property
    def node(self) -> NodeSharing:
        """See Backends."""
        return NodeSharing(
            backends=dict(self.why),
            allowed=frozenset(Backend) - {Backend.NONE},
            default=None,
            places=Places(),
        )

    def check(self) -> tuple[DaemonReport, ...]:
        """See Backends."""
        found, self.reports = tuple(self.reports), []
        return found

    def sweep(self, live: Any) -> tuple[str, ...]:
        """See Backends."""
        assert list(live) == ["alive"]
        return ("a folder",)


async def test_backends_are_told_as_usable_or_not_and_their_incidents_counted() -> None:
    """At start and at every look; a backend that policy forbids is not usable."""
    backends: Any = Isolation()
    clock = VirtualClock()
    metrics = Metrics(Component.AGENT, process=False)
    meters = Meters(metrics)
    care = SharingCare(
        backends,
        lambda: {"alive": None},  # type: ignore[dict-item] # uids are all that is asked for
        clock=clock,
        warn=lambda _reason, _note: None,
        on_usable=meters.backend,
        on_incident=meters.incident,
        took_back=meters.took_back,
        sweeps=(("metadata", lambda _live: ("one", "two")),),
    )
    backends.why[Backend.MPS] = "no MPS control program is configured"
    await care.start()

    def shown() -> dict[str, str]:
        lines = metrics.render()[0].decode().splitlines()
        mine = ("gpudra_isolation", "gpudra_gc")
        return dict(line.rsplit(" ", 1) for line in lines if line.startswith(mine))

    usable = 'gpudra_isolation_backend_usable{backend="%s"}'
    assert shown() == {
        usable % "mps": "0.0",
        usable % "hami-core": "1.0",
        usable % "time-slice": "1.0",
        usable % "none": "0.0",
        'gpudra_gc_actions_total{kind="isolation"}': "1.0",
        'gpudra_gc_actions_total{kind="metadata"}': "2.0",
    }
    backends.why[Backend.MPS] = ""
    backends.reports = [
        DaemonReport(device="gpu-0", healthy=True, message="again"),
        DaemonReport(device="gpu-1", healthy=False, message="gone"),
    ]
    running = asyncio.create_task(care.run())
    await clock.advance(CHECK_PERIOD)
    async with asyncio.timeout(60):
        while shown()[usable % "mps"] != "1.0":  # noqa: ASYNC110 - a thread looks
            await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    for outcome in ("restored", "lost"):
        assert shown()[f'gpudra_isolation_incidents_total{{outcome="{outcome}"}}'] == "1.0"
