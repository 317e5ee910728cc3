# SPDX-License-Identifier: Apache-2.0
"""Choosing weights by trials: the same answer every time, and an answer for every cluster."""

from gpudra.driver.core.placement import calibrate
from gpudra.driver.core.placement.demand import DemandMix
from gpudra.driver.core.placement.types import FULL_CARD, NodeSpec, Request, share, whole_cards

CLUSTER = [NodeSpec(f"n{i}", 64_000, 1 << 20, 4, "T4") for i in range(6)]
MIX = DemandMix.of(
    [share(470, cpu_milli=8000)] * 3 + [share(810, cpu_milli=4000)] * 3 + [whole_cards(1)] * 4
)


def test_the_same_cluster_and_mix_give_the_same_weights() -> None:
    """Trials use fixed seeds, so two set-ups agree and choose one of the candidates."""
    first = calibrate.calibrated_weights(CLUSTER, MIX)
    assert first == calibrate.calibrated_weights(CLUSTER, MIX)
    assert first in calibrate.CANDIDATES


def test_mixes_that_cannot_be_tried_get_the_first_candidate() -> None:
    """Without any request for cards, or with too few of them, there is nothing to fill a cluster with."""
    for mix in (
        DemandMix((), ()),
        DemandMix.of([Request(cpu_milli=1000)]),
        DemandMix.weighted({Request(cpu_milli=1): 1e6, share(1): 1.0}),
    ):
        assert calibrate.calibrated_weights(CLUSTER, mix) == calibrate.CANDIDATES[0]


def test_streams_hold_the_mix_and_end_at_the_wanted_amount() -> None:
    """A stream ends with the request that reaches 1.3 clusters, and holds kinds by their frequency."""
    stream = calibrate.draw_stream(CLUSTER, MIX, 1)
    capacity = 24 * FULL_CARD
    amounts = [request.amount_milli for request in stream]
    assert sum(amounts[:-1]) < 1.3 * capacity <= sum(amounts)
    assert stream == calibrate.draw_stream(CLUSTER, MIX, 1)
    assert stream != calibrate.draw_stream(CLUSTER, MIX, 2)
    assert 0.3 < sum(r == whole_cards(1) for r in stream) / len(stream) < 0.5


def test_the_small_copy_keeps_the_proportions_of_node_types() -> None:
    """Of 600 wide and 300 narrow nodes, a part of each type remains, in list order."""
    wide = [NodeSpec(f"w{i}", 96_000, 1 << 20, 8, "G2") for i in range(600)]
    narrow = [NodeSpec(f"t{i}", 96_000, 1 << 20, 2, "T4") for i in range(300)]
    copy = calibrate.small_copy(wide + narrow)
    kept = [node.model for node in copy]
    assert kept == sorted(kept)
    assert kept.count("G2") == 2 * kept.count("T4")
    assert abs(sum(node.cards for node in copy) - calibrate.SMALL_CLUSTER) < 400


def test_a_small_cluster_is_its_own_copy() -> None:
    """Nothing is left out of a cluster that is small already."""
    assert calibrate.small_copy(CLUSTER) == CLUSTER


def test_the_goal_decides_what_a_trial_is_worth() -> None:
    """Filling up rewards the end above a floor; a steady cluster rewards refusing nothing early."""
    squeezing = calibrate.Trial(end=89.0, full=87.0, loaded=83.0)
    patient = calibrate.Trial(end=88.0, full=87.5, loaded=88.0)
    assert squeezing.score(calibrate.Goal.FILL, 86.0) > patient.score(calibrate.Goal.FILL, 86.0)
    assert squeezing.score(calibrate.Goal.FILL, 87.5) < patient.score(calibrate.Goal.FILL, 87.5)
    assert squeezing.score(calibrate.Goal.STEADY, 0.0) < patient.score(calibrate.Goal.STEADY, 0.0)
    steady = calibrate.calibrated_weights(CLUSTER, MIX, calibrate.Goal.STEADY)
    assert steady in calibrate.CANDIDATES
