# SPDX-License-Identifier: Apache-2.0
"""Ranges of sizes and costs, saturating at 64 bits (cel-go, checker/cost.go)."""

import math
from typing import NamedTuple

MAX = 2**64 - 1
STRING_FACTOR = 0.1
REGEX_FACTOR = 0.25
LIST_BASE = 10
MAP_BASE = 30
NAME_COST = 1


class Range(NamedTuple):
    """From ``low`` to ``high``, both included."""

    low: int
    high: int

    def plus(self, other: "Range") -> "Range":
        """The sum of both."""
        return Range(min(self.low + other.low, MAX), min(self.high + other.high, MAX))

    def times(self, other: "Range") -> "Range":
        """The product of both."""
        return Range(min(self.low * other.low, MAX), min(self.high * other.high, MAX))

    def scaled(self, factor: float) -> "Range":
        """Each bound times a factor, rounded up."""
        return Range(_scaled(self.low, factor), _scaled(self.high, factor))

    def union(self, other: "Range") -> "Range":
        """The smallest range that holds both."""
        return Range(min(self.low, other.low), max(self.high, other.high))


def _scaled(number: int, factor: float) -> int:
    product = float(number) * factor
    return MAX if product >= 2.0**64 else min(math.ceil(product), MAX)


def fixed(number: int) -> Range:
    """A range of one number."""
    return Range(number, number)


NOTHING = Range(0, 0)
ONE = Range(1, 1)
UNKNOWN = Range(0, MAX)


class Estimate(NamedTuple):
    """What a call costs, and how large its result is (None: not known)."""

    cost: Range
    size: Range | None = None
