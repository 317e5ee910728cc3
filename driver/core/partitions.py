# SPDX-License-Identifier: Apache-2.0
"""Counters: what the forms of one card take from it, so that the scheduler never takes it twice.

A card has one counter set (KEP-4815). The whole card and the share take all of it, so they exclude
each other and every partition. A MIG placement takes its memory slices one by one, which makes
overlapping places exclude each other, and amounts of compute slices and engines. A test proves
that the layouts which the counters allow are exactly those that the hardware allows.

The totals of engines are the widest profile's: NVML tells no others, and no layout can use more.
"""

from collections.abc import Iterable, Iterator

from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import Counter, CounterConsumption, CounterSet
from gpudra.driver.core.allocatable import gpu_name
from gpudra.driver.core.inventory import Engines, Gpu, MigInfo, MigInstance, MigProfile, Placement

MEMORY_SLICE = "memory-slice-"
COMPUTE_SLICES = "compute-slices"
# The one counter of a card that cannot be partitioned: free or taken.
CARD = "card"
_ENGINES = {
    "multiprocessors": "multiprocessors",
    "copy-engines": "copy_engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpeg-engines": "jpeg_engines",
    "ofa-engines": "ofa_engines",
}


def counter_set(gpu: Gpu, *, partitioned: bool, in_use: Iterable[MigInstance] = ()) -> CounterSet:
    """Everything of a card that its forms can take.

    Args:
        gpu: the card.
        partitioned: whether MIG placements are among its forms.
        in_use: instances that are not ours: what they take is not there to be taken.
    """
    amounts = {CARD: 1}
    if partitioned and gpu.mig is not None:
        amounts = dict(_totals(gpu.mig))
        for instance in in_use:
            profile = gpu.mig.profile(instance.profile_id)
            for name, amount in _taken(profile, instance.placement).items():
                if name in amounts:
                    amounts[name] = max(0, amounts[name] - amount)
    return CounterSet(name=gpu_name(gpu), counters=_counters(amounts))


def consume_all(everything: CounterSet) -> tuple[CounterConsumption, ...]:
    """What the whole card takes, and the share with its first user: the set to the last counter."""
    return (CounterConsumption(counter_set=everything.name, counters=everything.counters),)


def consume_placement(
    everything: CounterSet, profile: MigProfile, place: Placement
) -> tuple[CounterConsumption, ...]:
    """What one MIG instance takes. Counters that it takes nothing of are left out."""
    amounts = _taken(profile, place)
    taken = {name: amount for name, amount in amounts.items() if name in everything.counters}
    return (CounterConsumption(counter_set=everything.name, counters=_counters(taken)),)


def fits(everything: CounterSet, taken: Iterable[CounterConsumption]) -> bool:
    """Whether an otherwise free card has what a device takes."""
    return all(
        amount.value <= everything.counters[name].value
        for entry in taken
        for name, amount in entry.counters.items()
    )


def _taken(profile: MigProfile | None, place: Placement) -> dict[str, int]:
    """What an instance takes; of an unknown profile at least its memory is known."""
    amounts = {f"{MEMORY_SLICE}{place.start + number}": 1 for number in range(place.size)}
    if profile is not None:
        amounts |= {COMPUTE_SLICES: profile.compute_slices, **dict(_engines(profile.engines))}
    return amounts


def _totals(mig: MigInfo) -> Iterator[tuple[str, int]]:
    for number in range(mig.memory_slices):
        yield f"{MEMORY_SLICE}{number}", 1
    yield COMPUTE_SLICES, mig.compute_slices
    for counter, field in _ENGINES.items():
        of_profiles = [getattr(profile.engines, field) for profile in mig.profiles]
        # An engine that one profile does not tell cannot be counted; the slices still are.
        if of_profiles and None not in of_profiles and max(of_profiles):
            yield counter, max(of_profiles)


def _engines(engines: Engines) -> Iterator[tuple[str, int]]:
    for counter, field in _ENGINES.items():
        amount = getattr(engines, field)
        if amount:
            yield counter, amount


def _counters(amounts: dict[str, int]) -> dict[str, Counter]:
    return {name: Counter(value=Quantity.of(amount)) for name, amount in amounts.items()}
