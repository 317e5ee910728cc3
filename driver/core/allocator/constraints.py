# SPDX-License-Identifier: Apache-2.0
"""matchAttribute and distinctAttribute.

A value is the set of its elements: a scalar has one, a list has many (KEP-5491), and an element
knows its type, so ``1``, ``true`` and ``"1"`` differ. On one node each distinct element gets a bit.
Then *match* is the running AND of the devices' bits, never empty, and *distinct* is an OR that
no further device may touch. Both states are plain integers: a try that is dropped leaves nothing
behind to be put right.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpudra.api.attributes import AttributeValue, UnknownValue
from gpudra.api.names import split_qualified_name
from gpudra.api.resource_v1 import Device, DeviceConstraint
from gpudra.api.semver import Semver

ANY = -1
"""State of a match constraint that no device has narrowed yet: all bits set."""

Element = tuple[str, object]


@dataclass(frozen=True, slots=True)
class ConstraintPlan:
    """One constraint of a claim.

    Attributes:
        attribute: fully qualified name.
        distinct: distinctAttribute; otherwise matchAttribute.
        requests: names as written, ``req`` or ``req/sub``; empty means all.
    """

    attribute: str
    distinct: bool
    requests: frozenset[str]

    @classmethod
    def of(cls, constraint: DeviceConstraint) -> "ConstraintPlan | None":
        """The plan of a constraint, or None for a kind that this version does not know."""
        if constraint.match_attribute is not None:
            return cls(constraint.match_attribute, False, frozenset(constraint.requests))
        if constraint.distinct_attribute is not None:
            return cls(constraint.distinct_attribute, True, frozenset(constraint.requests))
        return None

    def covers(self, base: str, full: str) -> bool:
        """Whether it applies to a request (``base``), served by an alternative (``full``)."""
        return not self.requests or base in self.requests or full in self.requests

    @property
    def kind(self) -> str:
        """The name of the API field."""
        return "distinctAttribute" if self.distinct else "matchAttribute"

    @property
    def start(self) -> int:
        """The state before any device."""
        return 0 if self.distinct else ANY

    def add(self, state: int, bits: int) -> int | None:
        """The state with one more device, or None if the device breaks the constraint."""
        if not bits:
            return None
        if self.distinct:
            return None if state & bits else state | bits
        return (state & bits) or None


def lookup_attribute(device: Device, driver: str, name: str) -> AttributeValue | None:
    """The value under a fully qualified name; a plain name belongs to the driver's domain."""
    value = device.attributes.get(name)
    if value is None:
        domain, identifier = split_qualified_name(name, driver)
        if domain == driver:
            value = device.attributes.get(identifier)
    return value


def elements(value: AttributeValue | None) -> tuple[Element, ...]:
    """The typed elements of a value. Missing, empty and unknown forms have none: they fail."""
    if value is None or isinstance(value, UnknownValue):
        return ()
    if isinstance(value, tuple):
        return tuple(_element(item) for item in value)
    return (_element(value),)


def _element(value: object) -> Element:
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, int):
        return ("int", value)
    if isinstance(value, Semver):
        # The text, not the precedence: build metadata tells versions apart here.
        return ("version", value.text)
    return ("string", value)


def number_elements(
    values: Sequence[tuple[Element, ...]], islands: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Gives each distinct element of a node a bit and each device its bits.

    Elements are numbered by first appearance, so two nodes whose values differ but repeat in the
    same pattern get the same numbers, and share one answer.

    Args:
        values: elements per device, in the order of the node.
        islands: island (see template) per device; a device may come several times, once for each
            source that a constraint has for it.

    Returns:
        Bits per device, and per island the mask of the bits that no other island has.
    """
    number: dict[Element, int] = {}
    owner: dict[int, int] = {}
    bits: list[int] = []
    for own, island in zip(values, islands, strict=True):
        mask = 0
        for element in own:
            bit = number.setdefault(element, len(number))
            mask |= 1 << bit
            if owner.setdefault(bit, island) != island:
                owner[bit] = -1
        bits.append(mask)
    local = [0] * (max(islands, default=-1) + 1)
    for bit, island in owner.items():
        if island >= 0:
            local[island] |= 1 << bit
    return tuple(bits), tuple(local)
