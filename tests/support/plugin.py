# SPDX-License-Identifier: Apache-2.0
"""A node without hardware, kubelet or API server, on which the plugin's state machine runs.

``Node`` is what outlives a process: folders, boot, claims in the API. ``Instance`` is one process
of the plugin: it can be stopped, killed, and started beside another one.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpudra.api.attributes import AttributeValue
from gpudra.api.errors import ApiError, NotFoundError, UnavailableError
from gpudra.driver.core.allocatable import AllocatableDevice, DeviceKind
from gpudra.driver.core.attributes import device_attributes
from gpudra.driver.core.edits import ContainerEdits, DeviceNode
from gpudra.driver.core.inventory import Gpu, Inventory
from gpudra.driver.core.topology import Topology
from gpudra.driver.devicelib.protocol import DeviceLib
from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.kube.resources import PODS, RESOURCE_CLAIMS, Obj, Resource
from gpudra.driver.kube.verbs import ListResult
from gpudra.kubelet_plugin import files
from gpudra.kubelet_plugin.cdi_store import CdiStore
from gpudra.kubelet_plugin.checkpoint import Checkpoint
from gpudra.kubelet_plugin.checkpoint_file import CheckpointFile
from gpudra.kubelet_plugin.claims import ClaimReader
from gpudra.kubelet_plugin.device_state import DeviceState, TookBack, nobody
from gpudra.kubelet_plugin.dra_service import DraService
from gpudra.kubelet_plugin.forms import Forms, UserReader, mig_uuid
from gpudra.kubelet_plugin.instance_lock import InstanceLock
from gpudra.kubelet_plugin.metadata_files import MetadataFiles, MetadataStep
from gpudra.kubelet_plugin.mig import MigSurvey, Partitions
from gpudra.kubelet_plugin.proto import dra_v1_pb2 as pb
from gpudra.kubelet_plugin.records import ClaimRef
from gpudra.kubelet_plugin.recovery import Recovery
from gpudra.kubelet_plugin.sharing import MpsLaunch, SharingSettings, open_backends
from gpudra.kubelet_plugin.spent import Account
from gpudra.kubelet_plugin.step_handlers import step_handlers
from gpudra.kubelet_plugin.steps import StepHandler, StepRunner

DRIVER = "gpu.example.com"
NODE = "node-a"


class Killed(BaseException):
    """The process ends here: not an Exception, so nothing of the code under test handles it."""


async def inline(function: Callable[..., Any], *arguments: Any) -> Any:
    """Runs "blocking" work at once, so that every run of a test takes the same path."""
    return function(*arguments)


@dataclass
class Answer:
    """What the kubelet got for one claim."""

    error: str
    devices: list[tuple[list[str], str, str, list[str]]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the claim is prepared (or unprepared)."""
        return not self.error


def uid(number: int) -> str:
    """A claim's uid."""
    return f"{number:08x}-0000-4000-8000-{number:012x}"


def claim_object(
    claim_uid: str,
    name: str,
    *devices: str | Mapping[str, Any],
    namespace: str = "default",
    reserved: bool = True,
    config: tuple[Any, ...] = (),
) -> Obj:
    """An allocated ResourceClaim; a device is a name or a whole result."""
    results = [
        {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": one}
        if isinstance(one, str)
        else {"request": "gpu", "driver": DRIVER, "pool": NODE, **one}
        for one in devices
    ]
    status: dict[str, Any] = {"allocation": {"devices": {"results": results}}}
    if config:
        status["allocation"]["devices"]["config"] = list(config)
    if reserved:
        status["reservedFor"] = [{"resource": "pods", "name": f"pod-{name}", "uid": uid(9999)}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace, "uid": claim_uid},
        "spec": {"devices": {"requests": [{"name": "gpu"}]}},
        "status": status,
    }


class FakeClaims:
    """The API server, as far as claims go. ``error`` is raised by every call while it is set."""

    def __init__(self) -> None:
        self.objects: dict[str, Obj] = {}
        self.pods: dict[str, Obj] = {}
        self.error: ApiError | None = None
        self.calls: list[str] = []

    def put(self, claim: Obj) -> ClaimRef:
        """Creates or replaces."""
        meta = claim["metadata"]
        self.objects[f"{meta['namespace']}/{meta['name']}"] = claim
        return ClaimRef(meta["uid"], meta["namespace"], meta["name"])

    def drop(self, ref: ClaimRef) -> None:
        """Deletes."""
        self.objects.pop(f"{ref.namespace}/{ref.name}", None)

    def go_away(self) -> None:
        """No answer from now on."""
        self.error = UnavailableError("no connection", obj="the API server")

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        """GET of a claim, or of a pod."""
        assert resource in (RESOURCE_CLAIMS, PODS)
        if self.error:
            raise self.error
        if resource == PODS:
            if name not in self.pods:
                raise NotFoundError("not found", status=404, obj=f"pod {namespace}/{name}")
            return self.pods[name]
        self.calls.append(f"get {namespace}/{name}")
        found = self.objects.get(f"{namespace}/{name}")
        if found is None:
            raise NotFoundError("not found", status=404, obj=f"resourceclaim {namespace}/{name}")
        return found

    async def list(self, resource: Resource, namespace: str | None = None) -> ListResult:
        """LIST of claims."""
        assert resource == RESOURCE_CLAIMS
        self.calls.append("list")
        if self.error:
            raise self.error
        return ListResult(items=list(self.objects.values()), resource_version="1")


class FakeLib:
    """Device nodes that are regular files in a folder."""

    name = "fake"
    partitions = tuning = health = usage = None

    def __init__(self, folder: Path, cards: Mapping[str, int]) -> None:
        self._folder = folder
        self._cards = cards
        for minor in cards.values():
            self.node(minor).touch()

    def node(self, minor: int) -> Path:
        """The host's file of a card."""
        return self._folder / f"nvidia{minor}"

    def fingerprint(self) -> object:
        """Changes with the cards."""
        return self.discover()

    def readiness(self) -> Any:
        """Not asked here."""
        raise AssertionError("the state machine asks for edits alone")

    def discover(self) -> Inventory:
        """Not asked here."""
        raise AssertionError("the state machine asks for edits alone")

    def common_edits(self) -> ContainerEdits:
        """Nothing."""
        return ContainerEdits()

    def gpu_edits(self, gpu: str) -> ContainerEdits:
        """The card's node."""
        minor = self._cards[gpu]
        node = DeviceNode(path=f"/dev/nvidia{minor}", host_path=str(self.node(minor)))
        return ContainerEdits(device_nodes=(node,))

    def close(self) -> None:
        """Nothing to close."""


class Outcomes:
    """The service's Report, kept."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[str, str]] = []
        self.failures: list[tuple[str, str]] = []
        self.accounts: list[Account] = []
        self.in_flight = 0

    def began(self, operation: str) -> None:
        """See Report."""
        self.in_flight += 1

    def ended(self, operation: str, outcome: str, seconds: float, account: Account) -> None:
        """See Report."""
        self.in_flight -= 1
        self.accounts.append(account)
        self.outcomes.append((operation, outcome))

    def call_ended(self) -> None:
        """See Report."""

    def claim_failed(self, ref: ClaimRef, operation: str, message: str) -> None:
        """See Report."""
        self.failures.append((ref.uid, message))


class Node:
    """Everything that outlives a process of the plugin."""

    def __init__(self, folder: Path, cards: int = 2) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        self.cdi_dir = folder / "cdi"
        self.dev_dir = folder / "dev"
        for one in (self.state_dir, self.cdi_dir, self.dev_dir):
            one.mkdir(exist_ok=True)
        self.run_dir = folder / "run"
        self.hami_library = ""
        self.mps: MpsLaunch | None = None
        self.api = FakeClaims()
        self.clock = VirtualClock()
        self.boot_id = "boot-1"
        self.gpus = tuple(Gpu(uuid=f"GPU-{n:08x}", minor=n) for n in range(cards))
        self.lib: DeviceLib = FakeLib(self.dev_dir, {gpu.key: n for n, gpu in enumerate(self.gpus)})
        self.devices = {
            f"gpu-{n}": AllocatableDevice(name=f"gpu-{n}", kind=DeviceKind.WHOLE, gpu=gpu)
            for n, gpu in enumerate(self.gpus)
        }

    def attributes(self, device: AllocatableDevice) -> Mapping[str, AttributeValue]:
        """Of a device, as they would be published."""
        return device_attributes(device, Topology.of(Inventory(gpus=self.gpus)))

    def cdi_files(self) -> list[str]:
        """Every file in the CDI folder, temporary ones included."""
        return sorted(path.name for path in self.cdi_dir.iterdir())

    async def start(self, **options: Any) -> "Instance":
        """A new process of the plugin, ready for calls."""
        instance = Instance(self, **options)
        await instance.recovery.start()
        return instance


class Instance:
    """One process of the plugin on a node."""

    def __init__(
        self,
        node: Node,
        *,
        observe: files.Observe = files.ignore,
        handlers: Mapping[str, StepHandler] | None = None,
        blocking: Any = inline,
        took_back: TookBack = nobody,
        handover: float = 0.0,
    ) -> None:
        self.node = node
        self.warnings: list[tuple[str, str]] = []
        self.report = Outcomes()
        store = CdiStore(node.cdi_dir, DRIVER, observe=observe)
        self.metadata = MetadataFiles(node.run_dir, DRIVER, observe=observe)
        metadata = MetadataStep(self.metadata, node.attributes)
        sharing = SharingSettings(
            runtime_dir=node.run_dir, hami_library=node.hami_library, mps=node.mps
        )
        self.backends = open_backends(
            sharing, node.lib, target_of=lambda one, plan: mig_uuid(one, plan.steps)
        )
        partitions = Partitions(node.lib)
        self.checkpoint = Checkpoint(
            CheckpointFile(node.state_dir, observe=observe),
            boot_id=node.boot_id,
            blocking=blocking,
            monotonic=node.clock.monotonic,
        )
        self.instances = InstanceLock(
            node.state_dir,
            clock=node.clock,
            on_acquired=lambda: self.recovery.reread(),  # noqa: PLW0108 - it comes later
        )
        self.state = DeviceState(
            driver=DRIVER,
            pool=NODE,
            runner=StepRunner(
                self.checkpoint,
                {
                    **step_handlers(
                        node.lib,
                        partitions,
                        self.backends,
                        store=store,
                        metadata=metadata,
                        places=sharing.places,
                        records=lambda: self.checkpoint.records,
                    ),
                    **(handlers or {}),
                },
                blocking=blocking,
                observe=observe,
            ),
            instances=self.instances,
            claims=ClaimReader(node.api, DRIVER, clock=node.clock, rng=random.Random(1)),
            forms=Forms(
                UserReader(node.api, DRIVER),
                MigSurvey(partitions),
                self.backends,
                blocking=blocking,
            ),
            devices=lambda: node.devices,
            took_back=took_back,
            clock=node.clock,
            handover=handover,
        )
        self.recovery = Recovery(
            self.state,
            self.checkpoint,
            store,
            clock=node.clock,
            warn=lambda reason, note: self.warnings.append((reason, note)),
            took_back=took_back,
        )
        self.service = DraService(self.state, self.report, clock=node.clock)

    async def prepare(self, *refs: ClaimRef) -> list[Answer]:
        """One call of NodePrepareResources; answers in the order of the claims."""
        request = pb.NodePrepareResourcesRequest(claims=[_message(ref) for ref in refs])
        response = await self.service.prepare(request)
        assert set(response.claims) == {ref.uid for ref in refs}
        return [_answer(response.claims[ref.uid]) for ref in refs]

    async def unprepare(self, *refs: ClaimRef) -> list[Answer]:
        """One call of NodeUnprepareResources."""
        request = pb.NodeUnprepareResourcesRequest(claims=[_message(ref) for ref in refs])
        response = await self.service.unprepare(request)
        assert set(response.claims) == {ref.uid for ref in refs}
        return [Answer(response.claims[ref.uid].error) for ref in refs]

    def end(self) -> None:
        """The process is gone; the kernel frees its locks."""
        self.instances.close()


def _message(ref: ClaimRef) -> pb.Claim:
    return pb.Claim(uid=ref.uid, namespace=ref.namespace, name=ref.name)


def _answer(response: pb.NodePrepareResourceResponse) -> Answer:
    devices = [
        (list(one.request_names), one.pool_name, one.device_name, list(one.cdi_device_ids))
        for one in response.devices
    ]
    return Answer(response.error, devices)
