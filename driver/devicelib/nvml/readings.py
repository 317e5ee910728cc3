# SPDX-License-Identifier: Apache-2.0
"""One card's readings, each on its own.

What NVML answers differs by card, driver and age: texts come as bytes or text, unified-memory
boards have no memory size, consumer cards no fabric. Every reading is asked for by itself.
"""

import ctypes
import uuid as uuids
from typing import Any

import pynvml

from gpudra.driver.core.inventory import (
    FabricInfo,
    FabricState,
    Gpu,
    HealthReadings,
    LinkPeer,
    NvLink,
    PciInfo,
    RecoveryAction,
)
from gpudra.driver.devicelib.nvml.migreadings import read_mig
from gpudra.driver.devicelib.nvml.session import Asker
from gpudra.driver.devicelib.pci import PciTree, normal_address

_BRANDS = {
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_NVIDIA: "Nvidia",
    pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
    pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
}
_ARCHITECTURES = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "Ada Lovelace",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
    pynvml.NVML_DEVICE_ARCH_RUBIN: "Rubin",
}
_ADDRESSING = {0: "None", 1: "HMM", 2: "ATS"}
_PEERS = {
    pynvml.NVML_NVLINK_DEVICE_TYPE_GPU: LinkPeer.GPU,
    pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU: LinkPeer.CPU,
    pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH: LinkPeer.SWITCH,
}
_FABRIC_STATES = {
    pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED: FabricState.NOT_SUPPORTED,
    pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED: FabricState.NOT_STARTED,
    pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS: FabricState.IN_PROGRESS,
    pynvml.NVML_GPU_FABRIC_STATE_COMPLETED: FabricState.COMPLETED,
}
_RECOVERY = {
    pynvml.NVML_GPU_RECOVERY_ACTION_NONE: RecoveryAction.NONE,
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: RecoveryAction.GPU_RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: RecoveryAction.NODE_REBOOT,
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: RecoveryAction.DRAIN_P2P,
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: RecoveryAction.DRAIN_AND_RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: RecoveryAction.RECOVER_IMEX_DOMAIN,
    # A reset of the bus or the system is the same to us as one of the card or the node.
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: RecoveryAction.GPU_RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: RecoveryAction.NODE_REBOOT,
}


def read_gpu(
    handle: Any, asker: Asker, tree: PciTree, index: int, *, driver: str | None, cuda: int | None
) -> Gpu:
    """Everything of one card.

    Args:
        handle: NVML's.
        asker: notes what could not be read.
        tree: the host's PCI devices.
        index: place in NVML's list now.
        driver: driver version, the same for all cards.
        cuda: CUDA version of the driver, as NVML packs it.

    Raises:
        pynvml.NVMLError: the card is lost.
    """
    ask = asker.ask
    pci = _read_pci(handle, asker, tree)
    numa = tree.node(pci.bus_id).numa_node if pci else None
    capability = ask("cudaComputeCapability", pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    architecture = _named(
        "architecture", pynvml.nvmlDeviceGetArchitecture, handle, asker, _ARCHITECTURES
    )
    memory = _read_memory(handle, asker)
    addressing = ask("addressingMode", pynvml.nvmlDeviceGetAddressingMode, handle)
    return Gpu(
        uuid=asker.gpu,
        index=index,
        minor=ask("minor", pynvml.nvmlDeviceGetMinorNumber, handle),
        product_name=asker.text("productName", pynvml.nvmlDeviceGetName, handle),
        brand=_named("brand", pynvml.nvmlDeviceGetBrand, handle, asker, _BRANDS),
        architecture=architecture,
        serial=asker.text("serial", pynvml.nvmlDeviceGetSerial, handle),
        driver_version=driver,
        cuda_version=cuda,
        compute_capability=(capability[0], capability[1]) if capability else None,
        addressing_mode=_ADDRESSING.get(addressing) if addressing is not None else None,
        memory_bytes=memory,
        unified_memory=memory is None,
        pci=pci,
        numa_node=numa if numa is not None else _numa_by_nvml(handle, asker),
        nvlinks=_read_links(handle, asker),
        fabric=_read_fabric(handle, asker),
        mig=read_mig(handle, asker, needs_reset=architecture == "Ampere"),
        health=_read_health(handle, asker),
    )


def _named(reading: str, call: Any, handle: Any, asker: Asker, names: dict[int, str]) -> str | None:
    number = asker.ask(reading, call, handle)
    return names.get(number) if number is not None else None


def _read_memory(handle: Any, asker: Asker) -> int | None:
    info = asker.ask("memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
    return int(info.total) if info is not None and info.total else None


def _read_pci(handle: Any, asker: Asker, tree: PciTree) -> PciInfo | None:
    info = asker.ask("pciBusID", pynvml.nvmlDeviceGetPciInfo, handle)
    if info is None:
        return None
    raw = info.busId
    address = normal_address(raw.decode() if isinstance(raw, bytes) else raw)
    node = tree.node(address)
    return PciInfo(
        bus_id=address,
        bridges=node.bridges,
        root=node.root,
        # NVML packs device and vendor into one number: 0x233010DE.
        vendor_id=info.pciDeviceId & 0xFFFF,
        device_id=info.pciDeviceId >> 16,
        subsystem_id=info.pciSubSystemId,
    )


def _numa_by_nvml(handle: Any, asker: Asker) -> int | None:
    node = asker.ask("numaNode", pynvml.nvmlDeviceGetNumaNodeId, handle)
    return node if node is not None and node >= 0 else None


def _read_links(handle: Any, asker: Asker) -> tuple[NvLink, ...]:
    links = []
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        active = asker.ask("nvlink", pynvml.nvmlDeviceGetNvLinkState, handle, number)
        if active is None:
            break  # links are numbered without gaps: the first one that is not there ends them
        if not active:
            links.append(NvLink(index=number, active=False))
            continue
        peer = asker.ask("nvlink", pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number)
        remote = asker.ask("nvlink", pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, number)
        links.append(
            NvLink(
                index=number,
                active=True,
                peer=_PEERS.get(peer, LinkPeer.UNKNOWN) if peer is not None else LinkPeer.UNKNOWN,
                peer_bus_id=normal_address(_as_text(remote.busId)) if remote else None,
                version=asker.ask("nvlink", pynvml.nvmlDeviceGetNvLinkVersion, handle, number),
            )
        )
    return tuple(links)


def _as_text(value: str | bytes) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def _read_fabric(handle: Any, asker: Asker) -> FabricInfo | None:
    """Version 3, else 2, else the first form: whatever this driver knows."""
    for make, version in (
        (pynvml.c_nvmlGpuFabricInfo_v3_t, pynvml.nvmlGpuFabricInfo_v3),
        (pynvml.c_nvmlGpuFabricInfo_v2_t, pynvml.nvmlGpuFabricInfo_v2),
        (pynvml.c_nvmlGpuFabricInfo_t, None),
    ):
        info = make()
        call = pynvml.nvmlDeviceGetGpuFabricInfo
        if version is not None:
            info.version = version
            call = pynvml.nvmlDeviceGetGpuFabricInfoV
        if asker.ask("fabric", call, handle, ctypes.byref(info)) is None:
            continue
        # The state is one byte in the library and a word in the binding.
        state = _FABRIC_STATES.get(info.state & 0xFF, FabricState.NOT_SUPPORTED)
        if state is FabricState.NOT_SUPPORTED:
            return None
        return FabricInfo(
            state=state,
            status=info.status,
            cluster_uuid=str(uuids.UUID(bytes=bytes(info.clusterUuid))),
            clique_id=info.cliqueId,
            health_mask=getattr(info, "healthMask", None),
        )
    return None


def _read_health(handle: Any, asker: Asker) -> HealthReadings:
    fields = asker.ask(
        "recoveryAction",
        pynvml.nvmlDeviceGetFieldValues,
        handle,
        [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION],
    )
    action = None
    if fields and fields[0].nvmlReturn == pynvml.NVML_SUCCESS:
        action = _RECOVERY.get(fields[0].value.uiVal)
    uncorrected = asker.ask(
        "uncorrectedEcc",
        pynvml.nvmlDeviceGetTotalEccErrors,
        handle,
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_VOLATILE_ECC,
    )
    mode = asker.ask("eccMode", pynvml.nvmlDeviceGetEccMode, handle)
    return HealthReadings(
        recovery_action=action,
        ecc_enabled=bool(mode[0]) if mode else None,
        uncorrected_ecc=uncorrected,
    )
