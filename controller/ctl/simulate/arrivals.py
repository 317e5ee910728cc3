# SPDX-License-Identifier: Apache-2.0
"""The published arrival order: shuffle the list, then sample from it, until enough is requested.

How a seed becomes a stream (also what the checker repeats): with
``rng = random.Random(seed)`` and ``order = list(range(n))`` for the n tasks of
the list in file order, ``rng.shuffle(order)`` gives the first n arrivals; every
later arrival is ``rng.randrange(n)`` of the same generator. The stream ends with
the arrival that brings the requested GPU amount to ``until`` times the capacity.
"""

import random
from collections.abc import Iterator, Sequence

from gpudra.api.errors import InputError

LONGEST = 5_000_000
"""Arrivals of one run at most; lists that would need more ask for almost no GPU."""


def check_amounts(amounts: Sequence[int], capacity_milli: int, until: float) -> None:
    """Refuses lists whose stream would never (or hardly ever) reach the wanted amount."""
    total = sum(amounts)
    if not total:
        raise InputError(
            "no task asks for a GPU, so the requested amount never grows", obj="task list"
        )
    expected = until * capacity_milli / (total / len(amounts))
    if expected > LONGEST:
        raise InputError(
            f"the stream would need about {expected:.0f} tasks (limit {LONGEST})",
            obj="task list",
            hint="lower --until, or leave out CPU-only tasks",
        )


def published_order(
    amounts: Sequence[int], capacity_milli: int, seed: int, until: float
) -> Iterator[int]:
    """Indices into the task list in order of arrival; ``amounts`` are GPU milli-cards per task."""
    rng = random.Random(seed)  # noqa: S311 - a reproducible stream, not a secret
    order = list(range(len(amounts)))
    rng.shuffle(order)
    wanted, requested, position = until * capacity_milli, 0, 0
    while requested < wanted:
        index = order[position] if position < len(order) else rng.randrange(len(amounts))
        position += 1
        requested += amounts[index]
        yield index
