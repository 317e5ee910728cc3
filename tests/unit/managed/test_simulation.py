# SPDX-License-Identifier: Apache-2.0
"""Managed mode under random work and trouble: a few seeds. ``make simulate`` runs many, and longer."""

import pytest

from tests.support.simworkload import run

STEPS = 60


@pytest.mark.parametrize("seed", [3, 8])
async def test_no_rule_is_broken(seed: int) -> None:
    """Devices, gangs, limits at every step; same answer as a fresh controller; nothing left at the end."""
    counts = await run(seed, STEPS)
    assert counts.pods > 10, counts
