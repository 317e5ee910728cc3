# SPDX-License-Identifier: Apache-2.0
"""MIG of one card as NVML tells it: mode, profiles with their placements, instances.

Profiles are asked for by a running number, but known by the ``id`` in the answer: the numbers mean
other things on other boards, and two profiles may have one name.
"""

import ctypes
from typing import Any

import pynvml

from gpudra.driver.core.inventory import Engines, MigInfo, MigInstance, MigProfile, Placement
from gpudra.driver.devicelib.nvml.session import Asker

# More numbers than today's headers name: newer drivers add profiles at the end.
MAX_PROFILE_QUERY = 32
MAX_PLACEMENTS = 64
MAX_INSTANCES = 32
MIB = 2**20


def read_mig(handle: Any, asker: Asker, *, needs_reset: bool) -> MigInfo | None:
    """MIG of a card, or None for a card without.

    Raises:
        pynvml.NVMLError: the card is lost.
    """
    mode = asker.ask("migMode", pynvml.nvmlDeviceGetMigMode, handle)
    if mode is None:
        return None
    profiles = _read_profiles(handle, asker)
    enabled = bool(mode[0])
    return MigInfo(
        enabled=enabled,
        pending=bool(mode[1]),
        needs_reset=needs_reset,
        compute_slices=max((one.compute_slices for one in profiles), default=0),
        memory_slices=max(
            (at.start + at.size for one in profiles for at in one.placements), default=0
        ),
        profiles=profiles,
        instances=read_instances(handle, asker, profiles) if enabled else (),
    )


def _read_profiles(handle: Any, asker: Asker) -> tuple[MigProfile, ...]:
    found: dict[int, MigProfile] = {}
    memory = asker.ask("memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
    total_bytes = int(memory.total) if memory is not None else 0
    for query in range(MAX_PROFILE_QUERY):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, query, version=2)
        except pynvml.NVMLError_InvalidArgument:
            break
        except pynvml.NVMLError_NotSupported:
            continue
        except pynvml.NVMLError:
            info = asker.ask(
                "migProfile", pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, query, version=1
            )
        if info is None or info.id in found:
            continue
        places = _placements(handle, asker, info.id)
        if places:
            found[info.id] = _profile(info, places, total_bytes)
    return tuple(found[number] for number in sorted(found))


def _profile(info: Any, places: tuple[Placement, ...], total_bytes: int) -> MigProfile:
    raw = getattr(info, "name", b"")
    given = (raw.decode("ascii", "replace") if isinstance(raw, bytes) else raw).removeprefix("MIG ")
    return MigProfile(
        id=info.id,
        name=given
        or profile_name(
            info.sliceCount, info.memorySizeMB * MIB, total_bytes, media=_extra_media(info)
        ),
        compute_slices=info.sliceCount,
        memory_bytes=info.memorySizeMB * MIB,
        engines=Engines(
            multiprocessors=info.multiprocessorCount,
            copy_engines=info.copyEngineCount,
            decoders=info.decoderCount,
            encoders=info.encoderCount,
            jpeg_engines=info.jpegCount,
            ofa_engines=info.ofaCount,
        ),
        max_instances=info.instanceCount,
        placements=places,
    )


def _extra_media(info: Any) -> bool:
    """A small profile with the card's only optical-flow engine is the ``+me`` one."""
    return bool(info.ofaCount) and info.instanceCount == 1 and info.sliceCount == 1


def profile_name(slices: int, memory_bytes: int, total_bytes: int, *, media: bool = False) -> str:
    """The published naming rule, for drivers that give no name.

    The gigabytes are the profile's eighths of the card, rounded up, times the card's whole GiB
    (nvidia-smi and go-nvlib name profiles alike).
    """
    total_gib = -(-total_bytes // 2**30)
    eighths = -(-8 * memory_bytes // total_bytes) if total_bytes else 8
    gigabytes = (eighths * total_gib * 2 + 8) // 16
    return f"{slices}g.{gigabytes}gb{'+me' if media else ''}"


def _placements(handle: Any, asker: Asker, profile_id: int) -> tuple[Placement, ...]:
    room = (pynvml.c_nvmlGpuInstancePlacement_t * MAX_PLACEMENTS)()
    count = ctypes.c_uint(MAX_PLACEMENTS)
    done = asker.ask(
        "migPlacements",
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements,
        handle,
        profile_id,
        room,
        ctypes.byref(count),
    )
    if done is None:
        return ()
    return tuple(sorted({Placement(start=at.start, size=at.size) for at in room[: count.value]}))


def read_instances(
    handle: Any, asker: Asker, profiles: tuple[MigProfile, ...]
) -> tuple[MigInstance, ...] | None:
    """Every GPU instance, whoever made it; None where one profile could not be asked.

    Raises:
        pynvml.NVMLError: the card is lost.
    """
    uuids = mig_uuids(handle, asker)
    found: list[MigInstance] = []
    for profile in profiles:
        room = (pynvml.c_nvmlGpuInstance_t * MAX_INSTANCES)()
        count = ctypes.c_uint(MAX_INSTANCES)
        done = asker.ask(
            "migInstances",
            pynvml.nvmlDeviceGetGpuInstances,
            handle,
            profile.id,
            room,
            ctypes.byref(count),
        )
        if done is None:
            return None
        for number in range(count.value):
            info = asker.ask("migInstance", pynvml.nvmlGpuInstanceGetInfo, room[number])
            if info is not None:
                found.append(instance_of(info, uuids))
    return tuple(sorted(found, key=lambda one: (one.placement, one.gpu_instance_id)))


def instance_of(info: Any, uuids: dict[int, tuple[int, str]]) -> MigInstance:
    """A MigInstance from NVML's description and the table of ``mig_uuids``."""
    compute, uuid = uuids.get(info.id, (None, None))
    return MigInstance(
        uuid=uuid,
        profile_id=info.profileId,
        gpu_instance_id=info.id,
        compute_instance_id=compute,
        placement=Placement(start=info.placement.start, size=info.placement.size),
    )


def mig_uuids(handle: Any, asker: Asker) -> dict[int, tuple[int, str]]:
    """GPU instance id → id and uuid of its first compute instance.

    Raises:
        pynvml.NVMLError: the card is lost.
    """
    found: dict[int, tuple[int, str]] = {}
    for index in range(asker.ask("migDevices", pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError_NotFound:
            continue
        except pynvml.NVMLError as error:
            asker.note("migDevices", str(error))
            break
        gpu_instance = asker.ask("migDevices", pynvml.nvmlDeviceGetGpuInstanceId, device)
        compute = asker.ask("migDevices", pynvml.nvmlDeviceGetComputeInstanceId, device)
        uuid = asker.text("migDevices", pynvml.nvmlDeviceGetUUID, device)
        if gpu_instance is not None and compute is not None and uuid is not None:
            found.setdefault(gpu_instance, (compute, uuid))
    return found
