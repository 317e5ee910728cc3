# SPDX-License-Identifier: Apache-2.0
"""From cards to devices that claims can get, with their names and their order.

The order is policy for the stock scheduler, which takes the first device that fits. It depends on
the inventory and the policy only, never on what is allocated, so that unchanged hardware means
unchanged slices.

What a card cannot be at this moment is not offered: a card whose MIG mode switches with a reset
only (Ampere) is offered in parts while the mode is on, and whole or shared while it is off, unless
its policy lets the driver reset it. Later cards switch when the first instance is made, so they are
offered in every form at once.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from gpudra.api.errors import InputError
from gpudra.api.names import check_dns_label
from gpudra.driver.core.deviceorder import ordered_gpus
from gpudra.driver.core.forms import (
    EVERYTHING,
    ONE,
    CardForms,
    DeviceKind,
    DeviceOrder,
    MigMode,
    PublishPolicy,
    form_words,
)
from gpudra.driver.core.inventory import Gpu, Inventory, MigInfo, MigInstance, MigProfile, Placement

__all__ = [
    "AllocatableDevice",
    "CardOffer",
    "DeviceKind",
    "DeviceOrder",
    "PublishPolicy",
    "allocatable_devices",
    "card_offers",
    "gpu_name",
    "ordered_gpus",
]

_UUID_PREFIX = re.compile(r"[A-Za-z]+-")
_NOT_HEX = re.compile(r"[^0-9a-f]")
_NOT_NAME = re.compile(r"[^0-9a-z]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatableDevice:
    """One device as claims name it, tied to its card.

    Attributes:
        name: DNS label, unique on the node, the same for ever for the same card.
        kind: whole card, MIG placement, share or monitor.
        gpu: the card; for a MIG device its parent.
        profile: of a MIG device.
        placement: of a MIG device.
        instance: of a MIG device that exists already (static).
        memory_oversubscription: of a share.
    """

    name: str
    kind: DeviceKind
    gpu: Gpu
    profile: MigProfile | None = None
    placement: Placement | None = None
    instance: MigInstance | None = None
    memory_oversubscription: Decimal = ONE


@dataclass(frozen=True, slots=True, kw_only=True)
class CardOffer:
    """What one card is offered as.

    Attributes:
        gpu: the card.
        devices: in published order.
        withdrawn: names among them that are there only because a claim holds them.
        problems: forms that are left out, and why.
    """

    gpu: Gpu
    devices: tuple[AllocatableDevice, ...] = ()
    withdrawn: frozenset[str] = frozenset()
    problems: tuple[InputError, ...] = ()


def gpu_name(gpu: Gpu) -> str:
    """``gpu-<8 hex of the uuid>-<4 hex of its sha256>``; a card without uuid: its declared name.

    Never made of an index or a minor number: those change when a card falls off the bus. The hash
    keeps two cards apart whose uuids begin alike, without renaming the one that was there first.
    A card that tells no uuid and was not declared goes by its PCI address.

    Raises:
        InputError: nothing names the card, or the declared name is no DNS label.
    """
    if gpu.uuid is None:
        if gpu.declared_name is not None:
            return check_dns_label(gpu.declared_name, "name")
        if gpu.pci is None:
            raise InputError(
                "tells neither a uuid nor a PCI address", hint="declare it with a name"
            )
        return check_dns_label(f"gpu-pci-{_NOT_NAME.sub('-', gpu.pci.bus_id.lower())}", "pci")
    digest = hashlib.sha256(gpu.uuid.encode()).hexdigest()
    digits = _NOT_HEX.sub("", _UUID_PREFIX.sub("", gpu.uuid, count=1).lower())
    # A uuid of another vendor may hold fewer than eight hex digits.
    return f"gpu-{(digits + digest[4:])[:8]}-{digest[:4]}"


def allocatable_devices(
    inventory: Inventory, policy: PublishPolicy | None = None
) -> tuple[AllocatableDevice, ...]:
    """Everything that the node offers, in published order, each name once."""
    return tuple(device for offer in card_offers(inventory, policy) for device in offer.devices)


def card_offers(
    inventory: Inventory,
    policy: PublishPolicy | None = None,
    *,
    kept: Collection[str] = frozenset(),
) -> tuple[CardOffer, ...]:
    """What each card is offered as, in published order.

    Args:
        inventory: of the node.
        policy: of the node; without one, whole cards.
        kept: names of devices that claims hold: they are there even against the policy, as long
            as the card could be offered that way.
    """
    policy = policy or PublishPolicy()
    taken: set[str] = set()
    offers = []
    for gpu in ordered_gpus(inventory, policy.order):
        try:
            name = _unique_name(gpu, taken)
        except InputError as error:
            # A card that is not wanted may be called anything.
            problems = (error.within(obj=_label(gpu)),) if policy.of(gpu).kinds else ()
            offers.append(CardOffer(gpu=gpu, problems=problems))
            continue
        taken.add(name)
        offers.append(_offer(gpu, name, policy.of(gpu), kept))
    return tuple(offers)


def _unique_name(gpu: Gpu, taken: Collection[str]) -> str:
    name = gpu_name(gpu)
    if name in taken:
        raise InputError(f"another card is device {name} already", hint="declare distinct names")
    return name


def _offer(gpu: Gpu, name: str, forms: CardForms, kept: Collection[str]) -> CardOffer:
    wanted, problems = _named(_card_devices(gpu, name, forms))
    if forms.kinds - {DeviceKind.MONITOR} and not any(
        device.kind is not DeviceKind.MONITOR for device in wanted
    ):
        problems.append(_nothing_fits(gpu, forms))
    names = {device.name for device in wanted}
    held = set(kept) - names
    extra: list[AllocatableDevice] = []
    if held:
        everything, _ = _named(_card_devices(gpu, name, EVERYTHING.forms))
        extra = [device for device in everything if device.name in held]
    obj = _label(gpu)
    return CardOffer(
        gpu=gpu,
        devices=(*wanted, *extra),
        withdrawn=frozenset(device.name for device in extra),
        problems=tuple(error.within(obj=obj) for error in problems),
    )


def _nothing_fits(gpu: Gpu, forms: CardForms) -> InputError:
    """Why a card is offered to nobody although it should be."""
    what = f"cannot be offered as {form_words(forms.kinds)}"
    mig = gpu.mig
    if mig is None or not mig.profiles:
        return InputError(f"{what}: it has no MIG", hint="let a policy offer it whole")
    if not mig.enabled:
        return InputError(
            f"{what}: its MIG mode is off", hint="nvidia-smi mig, or let a policy offer it whole"
        )
    if forms.mig is MigMode.STATIC and DeviceKind.MIG in forms.kinds:
        return InputError(
            f"{what}: it has no MIG instance that can be used",
            hint="make some, or set mig: dynamic in its policy",
        )
    return InputError(f"{what}: its MIG mode is on", hint="turn it off, or let a policy offer mig")


def _named(
    devices: Iterator[AllocatableDevice],
) -> tuple[list[AllocatableDevice], list[InputError]]:
    """Those whose name the API takes; a declared card's name may be too long with its ending."""
    good: list[AllocatableDevice] = []
    problems: list[InputError] = []
    for device in devices:
        try:
            check_dns_label(device.name, "name")
        except InputError as error:
            problems.append(error)
            continue
        good.append(device)
    return good, problems


def _label(gpu: Gpu) -> str:
    return f"GPU {gpu.key or gpu.index}"


def _card_devices(gpu: Gpu, name: str, forms: CardForms) -> Iterator[AllocatableDevice]:
    kinds = possible_kinds(gpu, forms)
    if DeviceKind.WHOLE in kinds:
        yield AllocatableDevice(name=name, kind=DeviceKind.WHOLE, gpu=gpu)
    if DeviceKind.MIG in kinds and gpu.mig is not None:
        make = _instances if forms.mig is MigMode.STATIC else _placements
        yield from make(gpu, name, gpu.mig)
    if DeviceKind.SHARE in kinds:
        yield AllocatableDevice(
            name=f"{name}-share",
            kind=DeviceKind.SHARE,
            gpu=gpu,
            memory_oversubscription=forms.memory_oversubscription,
        )
    if DeviceKind.MONITOR in kinds:
        yield AllocatableDevice(name=f"{name}-monitor", kind=DeviceKind.MONITOR, gpu=gpu)


def possible_kinds(gpu: Gpu, forms: CardForms) -> frozenset[DeviceKind]:
    """The wanted forms that the card can have in the MIG mode in which it is now."""
    unparted = forms.kinds - {DeviceKind.MIG}
    parted = forms.kinds - {DeviceKind.WHOLE, DeviceKind.SHARE}
    mig = gpu.mig
    if mig is None or not mig.profiles:
        return unparted
    if forms.mig is MigMode.STATIC and DeviceKind.MIG in forms.kinds:
        # Whoever made the instances decides; with the mode on, the card does not compute as one.
        return parted if mig.enabled else unparted
    if mig.needs_reset and forms.mig is not MigMode.DYNAMIC_RESET:
        return parted if mig.enabled else unparted
    return forms.kinds


# --- MIG ----------------------------------------------------------------------------------------


def _placements(gpu: Gpu, name: str, mig: MigInfo) -> Iterator[AllocatableDevice]:
    """Every place of every profile, small profiles first, the place that blocks least first."""
    words = profile_words(mig)
    for profile in sorted(mig.profiles, key=_size):
        for place in sorted(profile.placements, key=lambda at: (_blocked(mig, at), at.start)):
            yield AllocatableDevice(
                name=f"{name}-mig-{words[profile.id]}-{place.start}",
                kind=DeviceKind.MIG,
                gpu=gpu,
                profile=profile,
                placement=place,
            )


def _instances(gpu: Gpu, name: str, mig: MigInfo) -> Iterator[AllocatableDevice]:
    """The instances that can be used: of a known profile, with a compute instance."""
    words = profile_words(mig)
    for instance in sorted(mig.instances or (), key=lambda one: one.placement):
        profile = mig.profile(instance.profile_id)
        if profile is None or instance.compute_instance_id is None:
            continue
        yield AllocatableDevice(
            name=f"{name}-mig-{words[profile.id]}-{instance.placement.start}",
            kind=DeviceKind.MIG,
            gpu=gpu,
            profile=profile,
            placement=instance.placement,
            instance=instance,
        )


def profile_words(mig: MigInfo) -> Mapping[int, str]:
    """How each profile is called in names of devices, by its id: ``1g.10gb+me`` → ``1g10gb-me``.

    Profiles are told apart by id. Where two would be called alike, the lowest id has the plain
    word and the others add their id.
    """
    words: dict[int, str] = {}
    used: Counter[str] = Counter()
    for profile in sorted(mig.profiles, key=lambda one: one.id):
        plain = _NOT_NAME.sub("-", profile.name.lower().replace(".", "")).strip("-")
        used[plain] += 1
        words[profile.id] = plain if used[plain] == 1 else f"{plain}-p{profile.id}"
    return words


def _size(profile: MigProfile) -> tuple[int, int, int]:
    return (profile.compute_slices, profile.memory_bytes or 0, profile.id)


def _blocked(mig: MigInfo, place: Placement) -> int:
    """Compute slices of all the places that cannot be had beside this one."""
    end = place.start + place.size
    return sum(
        profile.compute_slices
        for profile in mig.profiles
        for other in profile.placements
        if other.start < end and place.start < other.start + other.size
    )
