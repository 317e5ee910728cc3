# SPDX-License-Identifier: Apache-2.0
"""All policies by name, and how to make one: used by ``gpudra simulate`` and managed mode."""

from collections.abc import Callable, Sequence

from gpudra.driver.core.placement.baselines import (
    BestFit,
    DotProduct,
    FirstFit,
    RandomFit,
    Spread,
)
from gpudra.driver.core.placement.calibrate import Goal, calibrated_weights
from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.fgd import Fgd
from gpudra.driver.core.placement.rows import RowPlacer
from gpudra.driver.core.placement.state import ClusterState
from gpudra.driver.core.placement.types import NodeSpec, PlacementError, Weights
from gpudra.driver.core.placement.waste import WastePlacer

OURS = "gpudra"
ANCHOR = "fgd"

Maker = Callable[[ClusterState, int], RowPlacer]
"""Binds a prepared policy to a fresh cluster state; the number is the run's seed."""

PLAIN: dict[str, Callable[[ClusterState], RowPlacer]] = {
    FirstFit.name: FirstFit,
    BestFit.name: BestFit,
    Spread.name: Spread,
    DotProduct.name: DotProduct,
}

NAMES = (OURS, ANCHOR, *PLAIN, RandomFit.name)
"""Every policy name, ours first."""


def prepare(
    name: str,
    nodes: Sequence[NodeSpec],
    mix: DemandMix,
    *,
    goal: Goal = Goal.FILL,
    weights: Weights | None = None,
) -> Maker:
    """Does a policy's set-up for a cluster and a demand mix, and returns its maker.

    The set-up sees the demand mix and the empty cluster, never a coming request,
    and does not depend on a run's seed. ``goal`` is what our policy
    calibrates itself for; ``weights`` skips that. Raises PlacementError for a name that does not exist.
    """
    if name == OURS:
        chosen = weights or calibrated_weights(nodes, mix, goal)
        return lambda state, _seed: WastePlacer(state, mix, chosen)
    if name == ANCHOR:
        return lambda state, _seed: Fgd(state, mix)
    if name == RandomFit.name:
        return RandomFit
    if name in PLAIN:
        plain = PLAIN[name]
        return lambda state, _seed: plain(state)
    raise PlacementError(f"no policy named {name!r}", hint=f"use one of {', '.join(NAMES)}")
