# SPDX-License-Identifier: Apache-2.0
"""How much free GPU amount the expected next request cannot use, and why."""

import numpy as np

from gpudra.controller.ctl.simulate.results import Stranded
from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.state import ClusterState, IntArray
from gpudra.driver.core.placement.types import FULL_CARD, Request


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
    small = np.where(wide, 0, state.compute).sum(axis=1)
    allowed = np.array([not request.models or m in request.models for m in state.models])
    no_model = ~allowed[state.model]
    no_cpu = ~no_model & (state.cpu < request.cpu_milli)
    no_memory = ~no_model & ~no_cpu & (state.memory < request.memory_mib)
    reachable = ~no_model & ~no_cpu & ~no_memory
    too_few = wide.sum(axis=1) < request.cards
    return {
        "model": int(free[no_model].sum()),
        "cpu": int(free[no_cpu].sum()),
        "memory": int(free[no_memory].sum()),
        "fragmentation": int(np.where(too_few, free, small)[reachable].sum()),
    }
