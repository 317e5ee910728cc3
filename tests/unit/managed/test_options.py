# SPDX-License-Identifier: Apache-2.0
"""Flags of managed mode."""

import pytest

from gpudra.api.errors import InputError
from gpudra.controller.options import parse


def test_the_defaults_take_back_but_move_nobody() -> None:
    """Evictions are on; defragmentation and past use are off."""
    found = parse([], {})
    assert (found.plan.evictions, found.plan.moves, found.half_life) == (True, 0, 0.0)


def test_they_can_be_set() -> None:
    """By flag or by variable; a duration as Kubernetes writes it, or plain seconds."""
    found = parse(["--evictions=off", "--defrag-moves=4"], {"GPUDRA_FAIRNESS_HALF_LIFE": "1h30m"})
    assert (found.plan.evictions, found.plan.moves, found.half_life) == (False, 4, 5400.0)
    assert parse(["--fairness-half-life=90"], {}).half_life == 90.0


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--defrag-moves=-1", "--defrag-moves"),
        ("--defrag-moves=1000", "from 0 to 64"),
        ("--defrag-moves=two", "'two'"),
        ("--fairness-half-life=a while", "'a while'"),
        ("--fairness-half-life=-5", "--fairness-half-life"),
        ("--fairness-half-life=99999999999", "longer than"),
    ],
)
def test_what_cannot_be_used_is_refused(flag: str, said: str) -> None:
    """With the flag and the value."""
    with pytest.raises(InputError) as raised:
        parse([flag], {})
    assert said in str(raised.value)
