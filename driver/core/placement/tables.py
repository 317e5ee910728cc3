# SPDX-License-Identifier: Apache-2.0
"""Look-up tables of our policy, made once per demand mix (formulas: docs/placement.md).

All recursions run over the free amount of one card in milli-cards; a request
for several cards counts once per card with its CPU and memory divided evenly.
"""

from dataclasses import dataclass
from math import erfc, exp, pi, sqrt

import numpy as np

from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.rows import FloatArray
from gpudra.driver.core.placement.state import IntArray
from gpudra.driver.core.placement.types import FULL_CARD, MigTable, Request

PSI_REACH = 8.0
PSI_STEPS = 256
"""Steps per unit of the loss table, read with linear interpolation: the error stays below 1e-6."""


@dataclass(frozen=True, slots=True)
class WasteTables:
    """What a card with a given free amount is expected to see; index = free milli-cards.

    ``columns`` [1001, 5]: expected never-filled amount (cards), mean and variance
    of the CPU (milli-cores) and of the memory (MiB) still to be asked for through
    the card. ``cpu_per_card`` and ``memory_per_card`` are what
    requests for cards ask for, per card.
    ``groups`` [G + 1]: free cards times the part of the GPU demand that needs
    more cards at once; ``group_demand`` maps a card count to its part.
    """

    columns: FloatArray
    cpu_per_card: float
    memory_per_card: float
    groups: FloatArray
    group_demand: dict[int, float]


def waste_tables(mix: DemandMix, widest: int, horizon: float) -> WasteTables:
    """Tables for a mix; an empty mix gives the waste "everything free stays free"."""
    sizes = _card_demand(mix)
    columns = _recursion(sizes, horizon)
    cards = sum(p * r.amount_milli for r, p in _pairs(mix)) / FULL_CARD
    cpu = sum(p * r.cpu_milli for r, p in _pairs(mix) if r.cards)
    memory = sum(p * r.memory_mib for r, p in _pairs(mix) if r.cards)
    demand: dict[int, float] = {}
    for request, probability in _pairs(mix):
        if request.cards > 1:
            amount = probability * request.amount_milli / FULL_CARD / cards
            demand[request.cards] = demand.get(request.cards, 0.0) + amount
    groups = np.array(
        [free * sum(d for n, d in demand.items() if n > free) for free in range(widest + 1)]
    )
    return WasteTables(
        columns, max(1.0, cpu / cards if cards else 1.0), max(1.0, memory / cards if cards else 1.0),
        groups.astype(np.float64), demand,
    )  # fmt: skip


def _pairs(mix: DemandMix) -> list[tuple[Request, float]]:
    return list(zip(mix.kinds, mix.probabilities, strict=True))


def _card_demand(mix: DemandMix) -> dict[int, FloatArray]:
    """Per size on one card: probability, then first and second moments of CPU and memory."""
    sizes: dict[int, FloatArray] = {}
    for request, probability in _pairs(mix):
        size = max(request.card_milli, request.card_memory_milli)
        if not size:
            continue
        per_card = probability * request.cards
        cpu, memory = request.cpu_milli / request.cards, request.memory_mib / request.cards
        moments = per_card * np.array([1.0, cpu, cpu * cpu, memory, memory * memory])
        sizes[size] = sizes.get(size, np.zeros(5)) + moments
    total = sum(float(m[0]) for m in sizes.values())
    return {size: moments / total for size, moments in sorted(sizes.items())}


def _recursion(sizes: dict[int, FloatArray], horizon: float) -> FloatArray:
    """w(g) = (h g + sum q_s w(g - s)) / (h + sum q_s) over s <= g, with the moments beside it."""
    milli = np.array(list(sizes), dtype=np.int64)
    moments = np.array(list(sizes.values())).reshape(len(sizes), 5)
    waste, first_cpu, second_cpu, first_memory, second_memory = (
        np.zeros(FULL_CARD + 1) for _ in range(5)
    )
    for free in range(FULL_CARD + 1):
        fit = int(np.searchsorted(milli, free, side="right"))
        q, c, cc, m, mm = moments[:fit].T
        left = free - milli[:fit]
        scale = 1.0 / (horizon + q.sum())
        waste[free] = (horizon * free / FULL_CARD + q @ waste[left]) * scale
        first_cpu[free] = (c.sum() + q @ first_cpu[left]) * scale
        second_cpu[free] = (cc.sum() + 2 * (c @ first_cpu[left]) + q @ second_cpu[left]) * scale
        first_memory[free] = (m.sum() + q @ first_memory[left]) * scale
        second_memory[free] = (
            mm.sum() + 2 * (m @ first_memory[left]) + q @ second_memory[left]
        ) * scale
    return np.stack(
        [
            waste,
            first_cpu,
            np.maximum(0.0, second_cpu - first_cpu**2),
            first_memory,
            np.maximum(0.0, second_memory - first_memory**2),
        ],
        axis=1,
    )


def loss_table() -> FloatArray:
    """psi(z) = phi(z) - z (1 - PHI(z)) on [-8, 8]: the newsvendor's expected shortage."""
    steps = int(2 * PSI_REACH * PSI_STEPS) + 1
    return np.array(
        [
            exp(-z * z / 2) / sqrt(2 * pi) - z * 0.5 * erfc(z / sqrt(2))
            for z in np.linspace(-PSI_REACH, PSI_REACH, steps)
        ]
    )


_PSI = loss_table()
_PSI_STEP = np.append(np.diff(_PSI), 0.0)
_PSI_LAST = float(len(_PSI) - 1)


def expected_shortage(
    have: FloatArray | IntArray, need: FloatArray, deviation: FloatArray
) -> FloatArray:
    """Expected amount that is asked for beyond ``have`` when demand is normal.

    All in one unit; ``deviation`` below 1 counts as 1, so that a sure need
    gives the plain difference.
    """
    spread = np.maximum(deviation, 1.0)
    lack = need - have
    place = np.clip((PSI_REACH - lack / spread) * PSI_STEPS, 0.0, _PSI_LAST)
    index = place.astype(np.int64)
    loss = _PSI[index] + (place - index) * _PSI_STEP[index]
    # Left of the table the loss is the lack itself.
    return np.asarray(np.maximum(spread * loss, lack))


def mig_waste(table: MigTable, mix: DemandMix, horizon: float) -> FloatArray:
    """[2^slices]: expected never-used part of a MIG card by its mask of taken slices.

    The same recursion as for shares, over masks: a profile that still fits goes
    where it leaves the least. Index 0 is the untouched card.
    """
    wanted = _profile_demand(table, mix)
    size = 1 << table.slices
    waste = np.zeros(size)
    for taken in sorted(range(size), key=lambda m: -m.bit_count()):
        free = (table.slices - taken.bit_count()) / table.slices
        weight, total = horizon, horizon * free
        for masks, probability in wanted:
            after = [float(waste[taken | mask]) for mask in masks if not taken & mask]
            if after:
                weight += probability
                total += probability * min(after)
        waste[taken] = total / weight
    return waste


def _profile_demand(table: MigTable, mix: DemandMix) -> list[tuple[tuple[int, ...], float]]:
    """Masks and probability per profile of the table; all alike where the mix names none."""
    asked = {p.name: 0.0 for p in table.profiles}
    for request, probability in _pairs(mix):
        if request.mig_profile in asked:
            asked[request.mig_profile] += probability
    total = sum(asked.values())
    return [
        (
            tuple(profile.mask(start) for start in profile.starts),
            asked[profile.name] / total if total else 1.0 / len(table.profiles),
        )
        for profile in table.profiles
    ]
