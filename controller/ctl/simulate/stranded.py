# SPDX-License-Identifier: Apache-2.0
"""How much free GPU amount the expected next request cannot use, and why; and what gangs fit."""

from dataclasses import replace

import numpy as np

from gpudra.controller.ctl.simulate.results import Stranded
from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.state import ClusterState, IntArray
from gpudra.driver.core.placement.types import FULL_CARD, Request, whole_cards


def stranded_now(state: ClusterState, mix: DemandMix) -> Stranded:
    """Stranded amount of the whole cluster (definition: :class:`Stranded`)."""
    free = state.compute.sum(axis=1)
    totals = dict.fromkeys(("cpu", "memory", "fragmentation", "model"), 0.0)
    weight = 0.0
    for request, probability in zip(mix.kinds, mix.probabilities, strict=True):
        if not request.cards:
            continue
        weight += probability
        for cause, milli in _by_cause(state, request, free).items():
            totals[cause] += probability * milli
    scale = 100.0 / (weight * state.capacity_milli) if weight else 0.0
    return Stranded(**{cause: milli * scale for cause, milli in totals.items()})


def _by_cause(state: ClusterState, request: Request, free: IntArray) -> dict[str, int]:
    """Free milli-cards out of reach of one request, by the first cause that applies."""
    floor = FULL_CARD if request.whole else request.card_milli
    wide = state.compute >= floor
    usable = np.where(wide, state.compute, 0).sum(axis=1)
    usable = np.where(wide.sum(axis=1) >= request.cards, usable, 0)
    allowed = np.array([not request.models or m in request.models for m in state.models])
    right_model = allowed[state.model]
    no_cpu = right_model & (state.cpu < request.cpu_milli)
    no_memory = right_model & ~no_cpu & (state.memory < request.memory_mib)
    return {
        "model": int(free[~right_model].sum()),
        "fragmentation": int((free - usable)[right_model].sum()),
        "cpu": int(usable[no_cpu].sum()),
        "memory": int(usable[no_memory].sum()),
    }


def gang_member(mix: DemandMix) -> Request:
    """The most frequent request for one whole card, without a model limit: what a gang is made of."""
    for request in mix.kinds:
        if request.whole and request.cards == 1:
            return replace(request, models=frozenset())
    return whole_cards(1)


def largest_gang(state: ClusterState, member: Request) -> int:
    """Members that would fit all at once, over all nodes."""
    count = (state.compute == FULL_CARD).sum(axis=1)
    if member.cpu_milli:
        count = np.minimum(count, state.cpu // member.cpu_milli)
    if member.memory_mib:
        count = np.minimum(count, state.memory // member.memory_mib)
    return int(count.sum())
