# SPDX-License-Identifier: Apache-2.0
"""What a container gets so that it keeps to its part: variables and mounts per backend.

HAMi-core reads a limit per index. CUDA's own order is by speed; with CUDA_DEVICE_ORDER set to
PCI_BUS_ID it is the order of bus addresses, which is also NVML's, so the index is known here. It
reads ``<number>m`` as MiB and does not understand ``MiB`` (get_limit_from_env).

A client of MPS finds the daemon by CUDA_MPS_PIPE_DIRECTORY and shares /dev/shm with it; its device
is always number 0, since a daemon serves one device.
"""

from collections.abc import Mapping, Sequence

from gpudra.driver.core.edits import ContainerEdits, Mount
from gpudra.driver.core.inventory import Gpu
from gpudra.driver.core.sharing.types import Places, Preload, Sharing

HAMI_INSIDE = "/run/gpudra/hami-core"
HAMI_LIBRARY = f"{HAMI_INSIDE}/libvgpu.so"
HAMI_CACHE = f"{HAMI_INSIDE}/cache"
CACHE_FILE = "usage.cache"
PRELOAD_FILE = "ld.so.preload"
MPS_INSIDE = "/run/gpudra/mps"

_WRITABLE = ("rw", "nosuid", "nodev", "rbind", "rprivate")
_READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")


def cuda_order(cards: Mapping[str, Gpu]) -> tuple[str, ...]:
    """Keys of the cards in the order in which CUDA numbers them by bus address."""
    return tuple(
        sorted(cards, key=lambda key: (_address(cards[key]), key)),
    )


def _address(gpu: Gpu) -> str:
    return gpu.pci.bus_id.lower() if gpu.pci else ""


def hami_edits(
    shares: Sequence[Sharing], cards: Mapping[str, Gpu], places: Places
) -> ContainerEdits:
    """The edits of every device in one view.

    Args:
        shares: what the view's containers may use, one per card.
        cards: every card in the view, shared or not: all of them count for the index.
        places: see Places.
    """
    by_card = {one.card: one for one in shares}
    order = cuda_order(cards)
    env = [("CUDA_DEVICE_ORDER", "PCI_BUS_ID")]
    env += [
        (f"CUDA_DEVICE_MEMORY_LIMIT_{index}", f"{by_card[card].memory_mib}m")
        for index, card in enumerate(order)
        if card in by_card
    ]
    env += _sm_limits([by_card[card].compute if card in by_card else 0 for card in order])
    env.append(("CUDA_DEVICE_MEMORY_SHARED_CACHE", f"{HAMI_CACHE}/{CACHE_FILE}"))
    folder = places.hami_folder(shares[0].claim_uid)
    mounts = [
        Mount(host_path=places.hami_library, container_path=HAMI_LIBRARY, options=_READ_ONLY),
        Mount(host_path=f"{folder}/cache", container_path=HAMI_CACHE, options=_WRITABLE),
    ]
    if places.preload is Preload.FILE:
        mounts.append(
            Mount(
                host_path=f"{folder}/{PRELOAD_FILE}",
                container_path="/etc/ld.so.preload",
                options=_READ_ONLY,
            )
        )
    else:
        env.append(("LD_PRELOAD", HAMI_LIBRARY))
    return ContainerEdits(env=tuple(env), mounts=tuple(mounts))


def _sm_limits(computes: Sequence[int]) -> list[tuple[str, str]]:
    """Nothing for 0. One variable for all cards if they agree, else one per card."""
    if computes and computes[0] and len(set(computes)) == 1:
        return [("CUDA_DEVICE_SM_LIMIT", str(computes[0]))]
    return [
        (f"CUDA_DEVICE_SM_LIMIT_{index}", str(compute))
        for index, compute in enumerate(computes)
        if compute
    ]


def mps_edits(one: Sharing, places: Places) -> ContainerEdits:
    """The edits of a device behind an MPS daemon."""
    folder = places.mps_folder(one.device)
    env = [("CUDA_MPS_PIPE_DIRECTORY", f"{MPS_INSIDE}/pipe")]
    if one.memory_mib is not None:
        env.append(("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", f"0={one.memory_mib}M"))
    if one.compute:
        env.append(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", str(one.compute)))
    mounts = (
        Mount(host_path=f"{folder}/pipe", container_path=f"{MPS_INSIDE}/pipe", options=_WRITABLE),
        Mount(host_path=f"{folder}/shm", container_path="/dev/shm", options=_WRITABLE),  # noqa: S108
    )
    return ContainerEdits(env=tuple(env), mounts=mounts)
