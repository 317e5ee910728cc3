# SPDX-License-Identifier: Apache-2.0
"""Who uses how much: attributes what cards and processes tell to claims and their devices.

Pure; gpudra.kubelet_plugin.usage asks the hardware and publishes the outcome. A whole card's
processes are its holder's, those of a MIG device tell their instance. Processes of a shared card
belong to the claims of the pods that they run in; under HAMi-core they are asked themselves.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpudra.driver.core.allocatable import DeviceKind
from gpudra.driver.core.sharing import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevice:
    """One device of a prepared claim.

    Attributes:
        claim_uid: of the claim.
        namespace: of the claim.
        claim: its name.
        device: name of the device.
        form: in which it is held.
        card: key of its card.
        gpu_instance_id: of a MIG device, if it is known.
        memory_bytes: what it has, None if the card does not tell.
        backend: of a share.
    """

    claim_uid: str
    namespace: str
    claim: str
    device: str
    form: DeviceKind
    card: str
    gpu_instance_id: int | None = None
    memory_bytes: int | None = None
    backend: Backend | None = None

    @property
    def by_pod(self) -> bool:
        """Whether its processes are told from those of others by the pods that they run in."""
        return self.form is DeviceKind.SHARE and self.backend is not Backend.HAMI_CORE


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process on a card; None where nobody tells. ``pod_uid`` is empty outside of pods."""

    pid: int
    pod_uid: str = ""
    memory_bytes: int | None = None
    compute_percent: int | None = None
    gpu_instance_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardReading:
    """One card now. ``compute_percent`` is that of the whole card, None where it is not told."""

    processes: tuple[Process, ...] = ()
    compute_percent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """What a claim uses of a device; None where nobody tells."""

    memory_bytes: int | None = None
    compute_percent: int | None = None
    processes: int | None = None


def usage_of(held: HeldDevice, card: CardReading, pods: frozenset[str]) -> DeviceUsage:
    """What a claim uses of one device that is not under HAMi-core.

    Args:
        held: the device.
        card: its card now.
        pods: uids of the pods that use the claim; asked of shares alone.
    """
    mine = [one for one in card.processes if _belongs(held, one, pods)]
    memory = [one.memory_bytes for one in mine]
    if held.form is DeviceKind.SHARE:
        compute = _total(one.compute_percent for one in mine)
        if not mine and card.compute_percent is None:
            compute = None  # under MIG, or a driver that tells no rates: 0 would be a guess
    else:
        # NVML tells no rates of MIG instances.
        compute = card.compute_percent if held.form is DeviceKind.WHOLE else None
    return DeviceUsage(
        memory_bytes=_total(memory),
        compute_percent=None if compute is None else min(100, compute),
        processes=len(mine),
    )


def _belongs(held: HeldDevice, process: Process, pods: frozenset[str]) -> bool:
    if held.form is DeviceKind.MIG:
        known = held.gpu_instance_id is not None
        return known and process.gpu_instance_id == held.gpu_instance_id
    if held.form is DeviceKind.SHARE:
        return process.pod_uid in pods
    return True


def _total(amounts: Iterable[int | None]) -> int | None:
    """The sum; None if one is not known, since the rest would pass for everything."""
    found = list(amounts)
    known = [one for one in found if one is not None]
    return sum(known) if len(known) == len(found) else None


def by_device(
    held: Iterable[HeldDevice],
    uuids: Mapping[int, str],
    order: Iterable[str],
    amounts: Mapping[int, int],
) -> dict[str, int]:
    """Amounts by index of the card in a container, as amounts by name of the device.

    Args:
        held: devices of one claim.
        uuids: by index, as processes saw them; none before the first has looked.
        order: keys of the claim's cards in the order of their bus addresses, which is that of
            containers.
        amounts: by index.
    """
    cards = dict(enumerate(order)) | {index: uuid for index, uuid in uuids.items() if uuid}
    devices = {one.card: one.device for one in held}
    return {
        devices[card]: amounts.get(index, 0) for index, card in cards.items() if card in devices
    }
