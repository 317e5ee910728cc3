# SPDX-License-Identifier: Apache-2.0
"""What the probe concludes from a server's answers."""

import pytest

from gpudra.api.errors import ForbiddenError, InvalidError
from gpudra.controller.resourceslices import probe_features
from gpudra.driver.core.resourceslices import ALL_FEATURES, ServerFeatures
from gpudra.driver.kube.resources import RESOURCE_SLICES
from tests.unit.resourceslices.harness import DRIVER, NODE, World, world


async def _probe(it: World) -> ServerFeatures:
    return await probe_features(it.client, driver=DRIVER, node_name=NODE)


async def test_a_server_that_keeps_everything_has_every_feature() -> None:
    """Nothing is dropped, nothing is written."""
    it = world()
    assert await _probe(it) == ALL_FEATURES
    assert it.client.writes == []
    assert it.slices() == []


@pytest.mark.parametrize(
    ("dropped", "missing"),
    [
        ("spec.sharedCounters", "counters"),
        ("spec.devices[*].consumesCounters", "counters"),
        ("spec.devices[*].allowMultipleAllocations", "consumable_capacity"),
        ("spec.devices[*].capacity[*].requestPolicy", "consumable_capacity"),
        ("spec.devices[*].taints", "device_taints"),
    ],
)
async def test_a_dropped_field_costs_its_feature_alone(dropped: str, missing: str) -> None:
    """Each feature is concluded from its own write."""
    it = world()
    it.objects.drop_fields(RESOURCE_SLICES, dropped)
    features = await _probe(it)
    for name in ("counters", "consumable_capacity", "device_taints", "list_attributes"):
        assert getattr(features, name) is (name != missing)


async def test_a_refused_form_is_a_missing_feature() -> None:
    """A server that refuses what is left of an object does not have the feature either."""
    it = world()
    it.client.fail("dry-create", *[InvalidError("spec: Invalid value") for _ in range(5)])
    assert await _probe(it) == ServerFeatures()


async def test_a_server_that_does_not_answer_tells_nothing() -> None:
    """Not to be allowed is not the same as not to have the feature."""
    it = world()
    it.client.fail("dry-create", ForbiddenError("may not create resourceslices", status=403))
    with pytest.raises(ForbiddenError):
        await _probe(it)
