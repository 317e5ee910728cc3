# SPDX-License-Identifier: Apache-2.0
"""Cards in all their forms, as agents really publish them: where shares and MIG devices go."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpudra.api.resource_v1 import ResourceSlice
from gpudra.driver.core.features import ServerFeatures
from gpudra.driver.core.forms import EVERY_FORM, CardForms, MigMode, PublishPolicy
from gpudra.driver.core.managed import ManagedState
from gpudra.driver.core.placement.types import Weights
from gpudra.driver.core.resourceslices import build_pool, resource_slices
from gpudra.driver.devicelib.simulated import open_simulated
from tests.support import managedscene as scene

FORMS = PublishPolicy(forms=CardForms(kinds=EVERY_FORM, mig=MigMode.DYNAMIC_RESET))
FEATURES = ServerFeatures(counters=True, consumable_capacity=True, device_taints=True)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Sequence[ResourceSlice]:
    """The slices of a DGX A100: eight cards, whole, as shares, and in every MIG place."""
    lib = open_simulated(
        "dgx-a100-8x40", state_dir=Path(tmp_path_factory.mktemp("sim")), node_name="n"
    )
    try:
        pool = build_pool(lib.discover(), node_name="n", features=FEATURES, policy=FORMS)
    finally:
        lib.close()
    return resource_slices(pool)


@pytest.fixture
def state(published: Sequence[ResourceSlice]) -> ManagedState:
    """A cluster of this node."""
    made = scene.cluster(0)
    made.put_class(scene.device_class("mig"))
    made.put_node(scene.node("n"))
    for one in published:
        made.put_slice(one)
    return made


def profile(name: str) -> str:
    """A selector for a MIG profile."""
    return f'device.attributes["gpu.gpudra.io"].profile == "{name}"'


def names(state: ManagedState) -> dict[str, str]:
    """Device by pod, as the next plan would have it."""
    return {
        placement.pods[0].name: result.device
        for placement in state.plan(0.0).placements
        for result in placement.claims[0].allocation.devices.results
    }


def card(device: str) -> str:
    """The card of a device, by its name."""
    return device.partition("-mig")[0].removesuffix("-share")


def test_small_instances_share_a_card(state: ManagedState) -> None:
    """Seven of 1g go onto one card, so seven cards stay whole."""
    scene.submit(state, "m", kind="mig", selector=profile("1g.5gb"), pods=7)
    found = names(state)
    assert len(set(found.values())) == 7
    assert len({card(one) for one in found.values()}) == 1


def test_instances_are_charged_by_their_part(state: ManagedState) -> None:
    """A 3g of an A100 has four of eight memory slices: half a card."""
    scene.submit(state, "m", kind="mig", selector=profile("3g.20gb"))
    (placement,) = state.plan(0.0).placements
    assert placement.amounts.of("gpus") == 500


def test_forms_of_one_card_exclude_each_other(state: ManagedState) -> None:
    """Whole, MIG and share never meet on a card, and all of eight cards are used."""
    scene.submit(state, "w", pods=6)
    scene.submit(state, "m", kind="mig", selector=profile("2g.10gb"))
    scene.submit(state, "s", kind="share", capacity={"memory": "10Gi", "compute": "20"})
    scene.submit(state, "late", created=1.0)
    found = names(state)
    assert "late-0" not in found
    cards = [card(device) for device in found.values()]
    assert len(set(cards)) == len(cards) == 8


def test_shares_fill_a_begun_card(state: ManagedState) -> None:
    """Four quarters are one card."""
    scene.submit(state, "s", kind="share", capacity={"memory": "10Gi", "compute": "25"}, pods=4)
    assert len({card(one) for one in names(state).values()}) == 1


def test_capacity_counts_each_card_once(state: ManagedState) -> None:
    """Whatever forms a card has, the book knows eight cards."""
    assert state.book.capacity.of("gpus") == 8000


def test_weights_for_this_cluster_can_be_worked_out(state: ManagedState) -> None:
    """The answer is one of the placement's rows, and plans go on with it."""
    scene.submit(state, "s", kind="share", capacity={"memory": "10Gi", "compute": "25"}, pods=2)
    weights = state.calibrated()
    assert isinstance(weights, Weights)
    assert weights == state.calibrated()
    state.set_weights(weights)
    assert len(names(state)) == 2
