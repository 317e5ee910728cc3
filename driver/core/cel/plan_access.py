# SPDX-License-Identifier: Apache-2.0
"""Plans for reading: ``a.b``, ``a[b]``, ``a.?b``, ``a[?b]``, ``has(a.b)``.

A whole chain of steps is one plan, as in cel-go: once a step is optional, so are all behind it, and
an absent one ends the chain. The usual chains from ``device`` become direct dictionary look-ups.
"""

import math
from typing import Any, NamedTuple

from gpudra.driver.core.cel.ast import Call, Ident, Literal, Node, Select
from gpudra.driver.core.cel.errors import CelValueError
from gpudra.driver.core.cel.plan import Plan, Run
from gpudra.driver.core.cel.values import (
    INT_MAX,
    INT_MIN,
    MAPS,
    NONE,
    Optional,
    Uint,
    Value,
    map_find,
)

_KEYS = (str, int, Uint, bool, float)
_EMPTY: dict[str, Value] = {}


class Step(NamedTuple):
    """One step of a chain: a key, or a plan for it, and whether the step is optional."""

    node: Node
    key: Value
    run: Run | None
    optional: bool


def unchain(node: Node) -> tuple[Node, list[tuple[Node, Value, Node | None, bool]]]:
    """The base of a chain, and its steps: (node, constant key, node of the key, optional)."""
    steps: list[tuple[Node, Value, Node | None, bool]] = []
    while True:
        if isinstance(node, Select) and node.value is None and (not node.test or not steps):
            steps.append((node, node.field, None, False))
            node = node.operand
        elif isinstance(node, Call) and node.function in {"_[_]", "_[?_]", "_?._"}:
            index = node.args[1]
            optional = node.function != "_[_]"
            if isinstance(index, Literal):
                steps.append((node, index.value, None, optional))
            else:
                steps.append((node, None, index, optional))
            node = node.args[0]
        else:
            return node, steps[::-1]


def is_device(node: Node) -> bool:
    """Whether the node names the ``device`` variable itself."""
    return isinstance(node, Ident) and node.name in {"device", ".device"} and node.value is None


def missing(key: Value) -> CelValueError:
    """The error of a key that is not there."""
    if isinstance(key, str):
        return CelValueError(
            f"there is no {key!r} on this device",
            hint="guard it: has(a.b), 'b' in a, or a.?b.orValue(default)",
        )
    return CelValueError(f"there is no element {key!r}", hint="guard it with size() or [?…]")


def _index(holder: tuple[Value, ...], key: Value) -> int | None:
    """The position that a key means in a list; None if it lies outside.

    Raises:
        CelValueError: the key is no whole number.
    """
    kind = type(key)
    if kind is float and not (math.isnan(key) or math.isinf(key)) and key.is_integer():
        position = int(key) if INT_MIN < key <= INT_MAX else -1
    elif kind in {int, Uint}:
        position = int(key)
    else:
        raise CelValueError(f"{key!r} is no position in a list", hint="use a whole number")
    return position if 0 <= position < len(holder) else None


def find(holder: Value, key: Value) -> tuple[bool, Value]:
    """A step that may fail: whether the key is there, and its value.

    Raises:
        CelValueError: the key is of a type that cannot be one.
    """
    if type(key) not in _KEYS:
        raise CelValueError(f"a {type(key).__name__} cannot be a key")
    if isinstance(holder, MAPS):
        return map_find(holder, key)
    if type(holder) is tuple:
        position = _index(holder, key)
        return (False, None) if position is None else (True, holder[position])
    return False, None


def take(holder: Value, key: Value) -> Value:
    """A step that must succeed.

    Raises:
        CelValueError: the key is not there.
    """
    if type(holder) is dict and type(key) is str:
        if key in holder:
            return holder[key]
        raise missing(key)
    present, value = find(holder, key)
    if not present:
        raise missing(key)
    return value


def plain_chain(base: Run, steps: list[Step]) -> Run:
    """The steps of a chain without counting cost."""
    pairs = [(step.key, step.run, step.optional) for step in steps]

    def run(frame: Any) -> Value:
        value = base(frame)
        optional = type(value) is Optional
        if optional:
            if not value.present:
                return value
            value = value.value
        for key, key_run, step_optional in pairs:
            name = key if key_run is None else key_run(frame)
            optional = optional or step_optional
            if optional:
                present, value = find(value, name)
                if not present:
                    return NONE
            else:
                value = take(value, name)
        return Optional(value) if optional else value

    return run


def counted_chain(base: Run, steps: list[Step], prices: tuple[int, int], *, test: bool) -> Run:
    """The steps of a chain; ``prices`` are that of the chain itself and that of a step.

    A step that is optional and absent is free. With ``test`` the last step asks for presence.
    """
    pairs = [(step.key, step.run, step.optional) for step in steps]
    last = len(pairs) - 1
    extra, unit = prices

    def walk(frame: Any) -> Value:
        value = base(frame)
        optional = type(value) is Optional
        if optional:
            if not value.present:
                return False if test else value
            value = value.value
        for position, (key, key_run, step_optional) in enumerate(pairs):
            optional = optional or step_optional
            if not optional or (test and position == last):
                frame.cost += unit  # due even if the key turns out to be an error
            name = key if key_run is None else key_run(frame)
            if test and position == last:
                return find(value, name)[0]
            if not optional:
                value = take(value, name)
                continue
            present, value = find(value, name)
            if not present:
                return False if test else NONE
            frame.cost += unit
        return Optional(value) if optional else value

    def run(frame: Any) -> Value:
        frame.cost += extra
        return walk(frame)

    return run


def presence(base: Run, steps: list[Step]) -> Run:
    """``has()`` without counting cost."""
    holder = plain_chain(base, steps[:-1]) if len(steps) > 1 else base
    key = steps[-1].key

    def run(frame: Any) -> Value:
        value = holder(frame)
        if type(value) is Optional:
            if not value.present:
                return False
            value = value.value
        return find(value, key)[0]

    return run


def direct(steps: list[Step]) -> Run | None:
    """A direct look-up for the usual chains from ``device``; None for others."""
    if any(step.run is not None or step.optional or type(step.key) is not str for step in steps):
        return None
    names = [step.key for step in steps]
    if names == ["driver"]:
        return lambda frame: frame.driver
    if names == ["allowMultipleAllocations"]:
        return lambda frame: frame.allow_multiple_allocations
    if len(names) == 2 and names[0] in {"attributes", "capacity"}:
        return _domain(names[0], names[1])
    if len(names) == 3 and names[0] in {"attributes", "capacity"}:
        return _entry(names[0], names[1], names[2])
    return None


def _domain(field: str, domain: str) -> Run:
    if field == "attributes":
        return lambda frame: frame.attributes.get(domain, _EMPTY)
    return lambda frame: frame.capacity.get(domain, _EMPTY)


def _entry(field: str, domain: str, name: str) -> Run:
    def attribute(frame: Any) -> Value:
        try:
            return frame.attributes[domain][name]
        except KeyError:
            raise missing(name) from None

    def capacity(frame: Any) -> Value:
        try:
            return frame.capacity[domain][name]
        except KeyError:
            raise missing(name) from None

    return attribute if field == "attributes" else capacity


def device_view(frame: Any) -> Value:
    """``device`` as a whole."""
    return frame.view()


def known_plan(run: Run) -> Plan:
    """A plan that depends on the device."""
    return Plan(run)
