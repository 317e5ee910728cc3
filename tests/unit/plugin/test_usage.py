# SPDX-License-Identifier: Apache-2.0
"""What claims use: attributed to the right one, told as metrics, gone with the claim."""

import asyncio
import struct
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpudra.api.errors import HardwareError, UnavailableError
from gpudra.driver.core.sharing.edits import CACHE_FILE
from gpudra.driver.devicelib.protocol import GpuProcess, GpuUsage
from gpudra.driver.observability.metrics import Component, Metrics
from gpudra.kubelet_plugin import usage as module
from gpudra.kubelet_plugin.records import ClaimRef
from gpudra.kubelet_plugin.sharing import region
from gpudra.kubelet_plugin.usage import UsageCollector, pod_of
from tests.support.formsnode import FormsNode, decoy_library, hardware, isolation
from tests.support.plugin import Instance, uid

GIB = 2**30
POD_A, POD_B = "11111111-aaaa-4000-8000-000000000001", "22222222-bbbb-4000-8000-000000000002"


class Cards:
    """Usage of cards, in memory: what a test says, or what it says goes wrong."""

    def __init__(self) -> None:
        self.found: dict[str, list[GpuProcess]] = {}
        self.percent: dict[str, int | None] = {}
        self.broken: dict[str, Exception] = {}
        self.hangs: dict[str, threading.Event] = {}

    def usage(self, gpu: str) -> GpuUsage:
        """See UsageLib."""
        if gpu in self.hangs:
            self.hangs[gpu].wait()
        if gpu in self.broken:
            raise self.broken[gpu]
        return GpuUsage(gpu_percent=self.percent.get(gpu))

    def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        """See UsageLib."""
        return tuple(self.found.get(gpu, ()))


class Scene:
    """A node with claims, and its collector."""

    def __init__(self, node: FormsNode, folder: Path) -> None:
        self.node = node
        self.cards = Cards()
        self.proc = folder / "proc"
        self.metrics = Metrics(Component.AGENT, process=False)
        self.instance: Instance | None = None
        self.collector: UsageCollector | None = None

    async def start(self) -> Instance:
        """An agent, and the collector on its records."""
        instance = self.instance = await self.node.start()
        self.collector = UsageCollector(
            self.cards,
            hami=instance.backends.usage,
            api=self.node.api,
            records=lambda: instance.state.records,
            devices=lambda: self.node.devices,
            metrics=self.metrics,
            clock=self.node.clock,
            proc=self.proc,
        )
        return instance

    async def prepare(self, *refs: ClaimRef) -> None:
        """Prepares claims; all have to succeed."""
        instance = self.instance or await self.start()
        for answer in await instance.prepare(*refs):
            assert answer.ok, answer.error

    async def look(self) -> None:
        """One round."""
        assert self.collector is not None
        await self.collector.look()

    def runs_in(self, pid: int, pod: str, driver: str = "systemd") -> None:
        """A process of the host, in a pod."""
        folder = self.proc / str(pid)
        folder.mkdir(parents=True)
        name = f"kubepods-besteffort-pod{pod.replace('-', '_')}.slice"
        path = f"/kubepods.slice/{name}/cri-containerd-abc.scope"
        if driver == "cgroupfs":
            path = f"/kubepods/besteffort/pod{pod}/abc"
        (folder / "cgroup").write_text(f"0::{path}\n")

    def shown(self, name: str, label: str = "") -> dict[Any, float]:
        """Values of a metric by claim and form, or by one label."""
        text = self.metrics.render()[0].decode()
        return {
            one.labels[label] if label else (one.labels["claim"], one.labels["form"]): one.value
            for family in text_string_to_metric_families(text)
            for one in family.samples
            if one.name == f"gpudra_claim_{name}"
        }

    def errors(self) -> dict[str, float]:
        """Failed readings by source."""
        text = self.metrics.render()[0].decode()
        return {
            one.labels["source"]: one.value
            for family in text_string_to_metric_families(text)
            for one in family.samples
            if one.name == "gpudra_usage_errors_total"
        }


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A simulated node of every form."""
    with hardware("simulated", tmp_path) as found:
        made = Scene(FormsNode(tmp_path / "node", found.lib), tmp_path)
        yield made
        if made.collector is not None:
            made.collector.close()


def share(scene: Scene, number: int, pod: str, backend: str = "none") -> ClaimRef:
    """A claim with 10 GiB of the first card, used by one pod."""
    config = (isolation(backend),)
    ref = scene.node.claim(number, scene.node.share(0, share_id=number), config=config)
    claim = scene.node.api.objects[f"default/c{number}"]
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": pod}]
    return ref


async def test_a_whole_card_is_its_holders(scene: Scene) -> None:
    """All processes count, and the card's own rate is the claim's."""
    node = scene.node
    await scene.prepare(node.claim(1, node.device(0)), node.claim(2, node.device(1)))
    scene.cards.found[node.cards[0]] = [
        GpuProcess(pid=10, memory_bytes=3 * GIB),
        GpuProcess(pid=11, memory_bytes=GIB),
    ]
    scene.cards.percent[node.cards[0]] = 87
    await scene.look()
    assert scene.shown("memory_used_bytes") == {("c1", "gpu"): 4 * GIB, ("c2", "gpu"): 0}
    assert scene.shown("memory_bytes")["c1", "gpu"] == 81559 * 2**20
    assert scene.shown("compute_percent") == {("c1", "gpu"): 87}
    assert scene.shown("processes") == {("c1", "gpu"): 2, ("c2", "gpu"): 0}


async def test_processes_of_parts_go_by_their_instance(scene: Scene) -> None:
    """Two claims on one card, and somebody else's process; no rates, since there are none."""
    node = scene.node
    await scene.prepare(
        node.claim(1, node.device(0, "1g10gb-0")), node.claim(2, node.device(0, "1g10gb-1"))
    )
    (instances,) = node.instances().values()
    by_start = {one.placement.start: one.gpu_instance_id for one in instances}
    scene.cards.found[node.cards[0]] = [
        GpuProcess(pid=10, memory_bytes=GIB, gpu_instance_id=by_start[0]),
        GpuProcess(pid=11, memory_bytes=2 * GIB, gpu_instance_id=by_start[1]),
        GpuProcess(pid=12, memory_bytes=4 * GIB, gpu_instance_id=99),
    ]
    await scene.look()
    assert scene.shown("memory_used_bytes") == {("c1", "mig"): GIB, ("c2", "mig"): 2 * GIB}
    assert scene.shown("compute_percent") == {}
    assert scene.shown("processes") == {("c1", "mig"): 1, ("c2", "mig"): 1}


@pytest.mark.parametrize("driver", ["systemd", "cgroupfs"])
async def test_processes_of_shares_go_by_their_pod(scene: Scene, driver: str) -> None:
    """The cgroup names the pod, the claim names its pods; strangers belong to nobody."""
    card = scene.node.cards[0]
    await scene.prepare(share(scene, 1, POD_A), share(scene, 2, POD_B))
    scene.runs_in(10, POD_A, driver)
    scene.runs_in(11, POD_B, driver)
    scene.runs_in(12, POD_B, driver)
    scene.runs_in(13, uid(5), driver)
    scene.cards.found[card] = [
        GpuProcess(pid=pid, memory_bytes=GIB, compute_percent=pid) for pid in (10, 11, 12, 13, 14)
    ]
    scene.cards.percent[card] = 60
    await scene.look()
    assert scene.shown("memory_used_bytes") == {("c1", "share"): GIB, ("c2", "share"): 2 * GIB}
    assert scene.shown("compute_percent") == {("c1", "share"): 10, ("c2", "share"): 23}
    assert scene.shown("memory_bytes")["c1", "share"] == 10 * GIB


async def test_what_a_driver_does_not_tell_is_not_told(scene: Scene) -> None:
    """An unknown amount is absent, never zero."""
    node = scene.node
    await scene.prepare(node.claim(1, node.device(0)))
    scene.cards.found[node.cards[0]] = [
        GpuProcess(pid=10, memory_bytes=GIB),
        GpuProcess(pid=11),
    ]
    await scene.look()
    assert scene.shown("memory_used_bytes") == {}
    assert scene.shown("processes") == {("c1", "gpu"): 2}


async def test_a_card_that_fails_costs_only_its_claims(scene: Scene) -> None:
    """The others are told, the failure is counted, and the card comes back."""
    node = scene.node
    await scene.prepare(node.claim(1, node.device(0)), node.claim(2, node.device(1)))
    scene.cards.broken[node.cards[0]] = HardwareError("is lost")
    await scene.look()
    assert scene.shown("processes") == {("c2", "gpu"): 0}
    assert scene.errors() == {"card": 1}
    scene.cards.broken.clear()
    await scene.look()
    assert scene.shown("processes") == {("c1", "gpu"): 0, ("c2", "gpu"): 0}


async def test_a_card_that_hangs_is_left_alone_until_it_answers(scene: Scene) -> None:
    """One thread waits for it, however many rounds go by; the other cards are told."""
    node = scene.node
    await scene.prepare(node.claim(1, node.device(0)), node.claim(2, node.device(1)))
    release = scene.cards.hangs[node.cards[0]] = threading.Event()
    assert scene.collector is not None
    round_ = asyncio.create_task(scene.look())
    while list(scene.collector._hanging) != [node.cards[0]]:  # noqa: ASYNC110 - threads end it
        await asyncio.sleep(0)
    await node.clock.advance(module.CARD_SECONDS)
    await round_
    assert scene.shown("processes") == {("c2", "gpu"): 0}
    await scene.look()
    assert list(scene.collector._hanging) == [node.cards[0]]
    hanging = scene.collector._hanging[node.cards[0]]
    release.set()
    await hanging
    scene.cards.hangs.clear()
    await scene.look()
    assert scene.shown("processes") == {("c1", "gpu"): 0, ("c2", "gpu"): 0}


async def test_pods_are_asked_for_seldom_and_an_old_answer_is_kept(scene: Scene) -> None:
    """A minute passes between questions; without the API the old answer holds."""
    card = scene.node.cards[0]
    await scene.prepare(share(scene, 1, POD_A))
    scene.runs_in(10, POD_A)
    scene.cards.found[card] = [GpuProcess(pid=10, memory_bytes=GIB)]
    before = len(scene.node.api.calls)
    await scene.look()
    await scene.look()
    assert len(scene.node.api.calls) == before + 1
    await scene.node.clock.advance(module.PODS_SECONDS)
    scene.node.api.error = UnavailableError("no connection", obj="the API server")
    await scene.look()
    assert scene.shown("memory_used_bytes") == {("c1", "share"): GIB}


async def test_a_share_whose_pods_are_not_known_costs_only_itself(scene: Scene) -> None:
    """Without the API nothing is guessed about it; whole cards are told."""
    node = scene.node
    config = (isolation("none"),)
    await scene.prepare(node.claim(1, node.share(0), config=config), node.claim(2, node.device(1)))
    node.api.go_away()
    await scene.look()
    assert scene.shown("processes") == {("c2", "gpu"): 0}
    assert scene.errors() == {"claim": 1}


async def test_series_end_with_the_claim(scene: Scene) -> None:
    """Right after the kubelet's call, not with the next round."""
    node = scene.node
    first, second = node.claim(1, node.device(0)), node.claim(2, node.device(1))
    await scene.prepare(first, second)
    await scene.look()
    assert scene.instance is not None
    await scene.instance.unprepare(first)
    assert scene.collector is not None
    scene.collector.prune()
    for name in ("memory_bytes", "memory_used_bytes", "processes"):
        assert list(scene.shown(name)) == [("c2", "gpu")]


def write_region(path: Path, uuids: Mapping[int, str], used: Mapping[int, int], sm: int) -> None:
    """A region of HAMi-core with one process."""
    raw = bytearray(region.REGION_BYTES + 1)
    struct.pack_into("<iII", raw, 0, region.INITIALISED, region.MAJOR, 2)
    struct.pack_into("<Q", raw, region.AT_DEVICES, len(uuids))
    for index, text in uuids.items():
        at = region.AT_UUIDS + index * region.UUID_BYTES
        raw[at : at + len(text)] = text.encode()
    struct.pack_into("<i", raw, region.AT_PROCESSES, 1)
    slot = region.AT_SLOTS
    struct.pack_into("<ii", raw, slot, 7, 4711)
    struct.pack_into("<i", raw, slot + region.AT_STATUS, 1)
    for index, amount in used.items():
        at = slot + region.AT_USED + index * region.USED_BYTES + region.AT_TOTAL
        struct.pack_into("<Q", raw, at, amount)
        at = slot + region.AT_UTILISATION + index * region.UTILISATION_BYTES + region.AT_SM
        struct.pack_into("<Q", raw, at, sm)
    path.write_bytes(raw)


@pytest.mark.parametrize("told", ["by uuid", "by order"])
async def test_shares_under_hami_core_say_it_themselves(
    scene: Scene, tmp_path: Path, told: str
) -> None:
    """The region counts per card of the container; the card itself is not even asked."""
    node = scene.node
    node.hami_library = str(decoy_library(tmp_path))
    ref = node.claim(1, node.share(1), node.share(0, share_id=2), config=(isolation("hami-core"),))
    await scene.prepare(ref)
    await scene.look()
    assert scene.shown("memory_used_bytes") == {("c1", "share"): 0}
    (cache,) = node.run_dir.glob(f"*/{ref.uid}/cache")
    uuids = {0: node.cards[0], 1: node.cards[1]} if told == "by uuid" else {}
    write_region(cache / CACHE_FILE, uuids, {0: 3 * GIB, 1: 5 * GIB}, 30)
    for card in node.cards:
        scene.cards.broken[card] = HardwareError("must not be asked")
    await scene.look()
    amounts = {node.device(0, "share"): 3 * GIB, node.device(1, "share"): 5 * GIB}
    assert scene.shown("memory_used_bytes", "device") == amounts
    assert set(scene.shown("compute_percent", "device").values()) == {30}
    assert scene.errors() == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"0::/kubepods/burstable/pod{POD_A}/abc\n", POD_A),
        (f"0::/../../kubepods-pod{POD_A.replace('-', '_')}.slice/cri-containerd-x.scope", POD_A),
        (f"12:memory:/kubepods/pod{POD_A}/x\n1:name=systemd:/kubepods/pod{POD_A}/x\n", POD_A),
        ("0::/system.slice/sshd.service\n", ""),
        ("0::/kubepods/podwithout/abc\n", ""),
    ],
)
def test_pods_are_read_from_cgroups(tmp_path: Path, text: str, found: str) -> None:
    """Both cgroup drivers, both versions, and from inside a container."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(text)
    assert pod_of(tmp_path, 7) == found
    assert pod_of(tmp_path, 8) == ""


async def test_the_number_of_series_is_bounded(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the checkpoint holds, Prometheus gets no more than the bound."""
    monkeypatch.setattr(module, "MAX_DEVICES", 2)
    node = scene.node
    await scene.prepare(*(node.claim(n, node.device(n)) for n in range(4)))
    await scene.look()
    assert len(scene.shown("processes")) == 2


async def test_a_node_without_usage_says_nothing(scene: Scene) -> None:
    """Simulated and declared cards tell no usage, and that is no error."""
    node = scene.node
    await scene.prepare(node.claim(1, node.device(0)))
    assert scene.collector is not None
    scene.collector._lib = None
    await scene.look()
    assert scene.shown("processes") == {}
    assert scene.errors() == {}
