# SPDX-License-Identifier: Apache-2.0
"""From a Hardware file to what a driver would tell about it: pure, used by SimulatedLib and CLI."""

import dataclasses
import uuid as uuidlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpudra.api.hardware import (
    Board,
    EnginesSpec,
    GpuSpec,
    Hardware,
    MigSpec,
    PciPlace,
    Reading,
    Unreadable,
)
from gpudra.driver.core.inventory import (
    Engines,
    FabricInfo,
    FabricState,
    Gpu,
    Inventory,
    LinkPeer,
    MigInfo,
    MigInstance,
    MigProfile,
    NvLink,
    PciInfo,
    Placement,
    ReadingProblem,
)

# Any fixed value does; it keeps our uuids apart from others made by the same rule.
_NAMESPACE = uuidlib.UUID("5f0c3a44-6d0e-5c1b-9a57-0d2d5a3f7c11")

# Reading in a Hardware file -> field of Gpu, where the two are spelled differently.
_FIELDS: Mapping[Reading, str] = {
    Reading.PRODUCT_NAME: "product_name",
    Reading.DRIVER_VERSION: "driver_version",
    Reading.CUDA_DRIVER_VERSION: "cuda_version",
    Reading.CUDA_COMPUTE_CAPABILITY: "compute_capability",
    Reading.ADDRESSING_MODE: "addressing_mode",
    Reading.MEMORY: "memory_bytes",
    Reading.NUMA_NODE: "numa_node",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CardState:
    """What changes on a card while it runs."""

    lost: bool = False
    mig_enabled: bool = False
    mig_pending: bool = False
    instances: tuple[MigInstance, ...] = ()


def card_uuid(hardware: Hardware, index: int, node_name: str) -> str:
    """The uuid of a card: as the file says, else made of file name, place and node name."""
    given = hardware.spec.gpus[index].uuid
    if given is not None:
        return given
    made = uuidlib.uuid5(_NAMESPACE, f"{hardware.metadata.name}\0{index}\0{node_name}")
    return f"GPU-{made}"


def initial_states(hardware: Hardware, node_name: str) -> dict[str, CardState]:
    """State of every card at start, by uuid."""
    states = {}
    for index, gpu in enumerate(hardware.spec.gpus):
        key = card_uuid(hardware, index, node_name)
        mig = hardware.spec.boards[gpu.board].mig
        instances = tuple(
            mig_instance(key, mig, one.profile, one.start, number)
            for number, one in enumerate(gpu.mig.instances, start=1)
            if mig is not None
        )
        enabled = gpu.mig.enabled or bool(instances)
        states[key] = CardState(mig_enabled=enabled, mig_pending=enabled, instances=instances)
    return states


def mig_instance(
    gpu: str, mig: MigSpec, profile_id: int, start: int, gpu_instance_id: int
) -> MigInstance:
    """An instance with the uuid that follows from its place."""
    profile = next(one for one in mig.profiles if one.id == profile_id)
    made = uuidlib.uuid5(_NAMESPACE, f"{gpu}\0{profile_id}\0{start}\0{gpu_instance_id}")
    return MigInstance(
        uuid=f"MIG-{made}",
        profile_id=profile_id,
        gpu_instance_id=gpu_instance_id,
        compute_instance_id=0,
        placement=Placement(start=start, size=profile.placements.size),
    )


def build_inventory(
    hardware: Hardware, *, node_name: str = "", states: Mapping[str, CardState] | None = None
) -> Inventory:
    """Everything that a driver would tell of this hardware.

    Args:
        hardware: with its boards filled in.
        node_name: salt of the uuids that the file does not give.
        states: by uuid; the state at start if not given.
    """
    states = states if states is not None else initial_states(hardware, node_name)
    gpus, problems = [], []
    for index, spec in enumerate(hardware.spec.gpus):
        key = card_uuid(hardware, index, node_name)
        gpu = _gpu(hardware, index, key, states[key])
        for reading, why in spec.unreadable.items():
            silent: dict[str, Any] = {_FIELDS.get(reading, str(reading)): None}
            gpu = dataclasses.replace(gpu, **silent)
            if why is not Unreadable.NOT_SUPPORTED:
                problems.append(ReadingProblem(gpu=key, reading=reading, message=str(why)))
        gpus.append(gpu)
    return Inventory(gpus=tuple(gpus), problems=tuple(problems))


def _gpu(hardware: Hardware, index: int, key: str, state: CardState) -> Gpu:
    spec = hardware.spec.gpus[index]
    board = hardware.spec.boards[spec.board]
    driver = hardware.spec.driver
    cuda_major, _, cuda_minor = driver.cuda.partition(".")
    return Gpu(
        uuid=key,
        vendor=board.vendor,
        index=index,
        minor=minor(hardware, index),
        product_name=board.product_name,
        brand=board.brand,
        architecture=board.architecture,
        serial=spec.serial,
        driver_version=driver.version,
        cuda_version=1000 * int(cuda_major) + 10 * int(cuda_minor),
        compute_capability=_capability(board),
        addressing_mode=board.addressing_mode,
        memory_bytes=board.memory,
        unified_memory=board.unified_memory,
        engines=_engines(board.engines),
        pci=_pci(spec.pci, board),
        numa_node=spec.numa_node if spec.numa_node is not None and spec.numa_node >= 0 else None,
        nvlinks=_nvlinks(hardware, index, board),
        fabric=_fabric(hardware),
        mig=_mig(board.mig, state) if board.mig else None,
        lost=state.lost,
    )


def minor(hardware: Hardware, index: int) -> int:
    """Number of the card's device file."""
    given: GpuSpec = hardware.spec.gpus[index]
    return given.minor if given.minor is not None else index


def _capability(board: Board) -> tuple[int, int] | None:
    if board.compute_capability is None:
        return None
    major, _, minor_part = board.compute_capability.partition(".")
    return int(major), int(minor_part)


def _engines(spec: EnginesSpec) -> Engines:
    return Engines(
        multiprocessors=spec.multiprocessors,
        copy_engines=spec.copy_engines,
        decoders=spec.decoders,
        encoders=spec.encoders,
        jpeg_engines=spec.jpeg_engines,
        ofa_engines=spec.ofa_engines,
    )


def _pci(place: PciPlace, board: Board) -> PciInfo:
    first = place.bridges[0] if place.bridges else place.bus_id
    return PciInfo(
        bus_id=place.bus_id,
        bridges=place.bridges,
        root=place.root or f"pci{first.rpartition(':')[0]}",
        vendor_id=board.pci.vendor_id,
        device_id=board.pci.device_id,
        subsystem_id=board.pci.subsystem_id,
    )


def _nvlinks(hardware: Hardware, index: int, board: Board) -> tuple[NvLink, ...]:
    """All links of a card: over the switches in turn, or to the cards it is bridged with."""
    if board.nvlink is None:
        return ()
    layout = hardware.spec.nvlink
    version = board.nvlink.version
    if layout.switched:
        switches = layout.switches
        return tuple(
            NvLink(
                index=number,
                active=True,
                peer=LinkPeer.SWITCH,
                peer_bus_id=switches[number % len(switches)] if switches else None,
                version=version,
            )
            for number in range(board.nvlink.links)
        )
    peers = [
        hardware.spec.gpus[other].pci.bus_id
        for bridge in layout.bridges
        for one, other in (bridge.between, bridge.between[::-1])
        if one == index
        for _ in range(bridge.links)
    ][: board.nvlink.links]
    unused = board.nvlink.links - len(peers)
    return tuple(
        NvLink(index=number, active=True, peer=LinkPeer.GPU, peer_bus_id=peer, version=version)
        for number, peer in enumerate(peers)
    ) + tuple(
        NvLink(index=len(peers) + number, active=False, version=version) for number in range(unused)
    )


def _fabric(hardware: Hardware) -> FabricInfo | None:
    spec = hardware.spec.fabric
    if spec is None:
        return None
    return FabricInfo(
        state=FabricState(spec.state),
        status=spec.status,
        cluster_uuid=spec.cluster_uuid,
        clique_id=spec.clique_id,
    )


def _mig(spec: MigSpec, state: CardState) -> MigInfo:
    return MigInfo(
        enabled=state.mig_enabled,
        pending=state.mig_pending,
        needs_reset=spec.needs_reset,
        compute_slices=spec.compute_slices,
        memory_slices=spec.memory_slices,
        profiles=tuple(
            MigProfile(
                id=one.id,
                name=one.name,
                compute_slices=one.slices,
                memory_bytes=one.memory,
                engines=_engines(one.engines),
                max_instances=one.max,
                placements=tuple(
                    Placement(start=start, size=one.placements.size)
                    for start in one.placements.starts
                ),
            )
            for one in sorted(spec.profiles, key=lambda profile: profile.id)
        ),
        instances=state.instances,
    )
