# SPDX-License-Identifier: Apache-2.0
"""The parts of the allocator that answer small questions of their own."""

from typing import Any

import pytest

from gpudra.api.meta import NodeSelector
from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import Device, ResourceClaim
from gpudra.driver.core.allocator.constraints import number_elements
from gpudra.driver.core.allocator.consumable_capacity import Fit, Misfit, capacity_fit
from gpudra.driver.core.allocator.counters import charge, join_groups
from gpudra.driver.core.allocator.holdings import Holdings
from gpudra.driver.core.allocator.nodeselector import matches, selector_problem
from gpudra.driver.core.allocator.reads import Reads, reads_of
from gpudra.driver.core.allocator.types import Node
from gpudra.driver.core.cel.parser import parse

NODE = Node("node-a", {"zone": "x", "cards": "8"})


def _selector(
    *expressions: dict[str, Any], fields: tuple[dict[str, Any], ...] = ()
) -> NodeSelector:
    term = {"matchExpressions": list(expressions), "matchFields": list(fields)}
    return NodeSelector.from_dict({"nodeSelectorTerms": [term]})


@pytest.mark.parametrize(
    ("key", "operator", "values", "holds"),
    [
        ("zone", "In", ["x", "y"], True),
        ("zone", "In", ["y"], False),
        ("zone", "NotIn", ["y"], True),
        ("rack", "NotIn", ["y"], True),
        ("zone", "Exists", [], True),
        ("rack", "Exists", [], False),
        ("rack", "DoesNotExist", [], True),
        ("cards", "Gt", ["7"], True),
        ("cards", "Gt", ["8"], False),
        ("cards", "Lt", ["9"], True),
        ("zone", "Gt", ["1"], False),
        ("rack", "Lt", ["1"], False),
    ],
)
def test_requirement(key: str, operator: str, values: list[str], holds: bool) -> None:
    """A requirement on a label holds as Kubernetes defines its operator."""
    selector = _selector({"key": key, "operator": operator, "values": values})
    assert selector_problem(selector) == ""
    assert matches(selector, NODE) is holds


@pytest.mark.parametrize(
    ("expression", "piece"),
    [
        ({"key": "zone", "operator": "Near", "values": ["x"]}, "unknown operator"),
        ({"key": "zone", "operator": "In", "values": []}, "bad values"),
        ({"key": "zone", "operator": "Exists", "values": ["x"]}, "bad values"),
        ({"key": "cards", "operator": "Gt", "values": ["many"]}, "bad values"),
        ({"key": "", "operator": "Exists"}, "without key"),
    ],
)
def test_malformed_requirement_matches_nothing(expression: dict[str, Any], piece: str) -> None:
    """A selector that breaks the rules is told and fails closed."""
    selector = _selector(expression)
    assert piece in selector_problem(selector)
    assert matches(selector, NODE) is False


def test_fields_and_empty_terms() -> None:
    """The name is the only field; an empty term matches nothing; terms are alternatives."""
    named = {"key": "metadata.name", "operator": "In", "values": ["node-a"]}
    assert matches(_selector(fields=(named,)), NODE)
    assert "unknown field" in selector_problem(_selector(fields=({**named, "key": "spec.x"},)))
    assert not matches(_selector(), NODE)
    either = NodeSelector.from_dict({"nodeSelectorTerms": [{}, {"matchFields": [named]}]})
    assert matches(either, NODE)
    assert "2 terms" in selector_problem(either)


@pytest.mark.parametrize(
    ("expression", "attributes", "everything"),
    [
        ('device.driver == "d"', set(), False),
        ('device.attributes["d"].a == 1', {("d", "a")}, False),
        ('device.attributes["d"]["a"] == 1', {("d", "a")}, False),
        ('"a" in device.attributes["d"]', {("d", "a")}, False),
        ('has(device.attributes["d"].a)', {("d", "a")}, False),
        ('device.attributes["d"].?a.orValue(1) == 1', {("d", "a")}, False),
        ('[1].exists(x, device.attributes["d"].a == x)', {("d", "a")}, False),
        ('device.attributes["d"].exists(k, k == "a")', set(), True),
        ('cel.bind(all, device.attributes["d"], all.a == 1)', set(), True),
        ("[1].all(device, device > 0)", set(), True),
    ],
)
def test_reads(expression: str, attributes: set[tuple[str, str]], everything: bool) -> None:
    """What an expression can see is told from its text; in doubt it is everything."""
    assert reads_of(parse(expression).root) == Reads(frozenset(attributes), frozenset(), everything)


def test_capacity_reads() -> None:
    """Capacities are told apart from attributes of the same name."""
    found = reads_of(parse('device.capacity["d"].m.isGreaterThan(quantity("1"))').root)
    assert found.capacity == {("d", "m")}
    assert not found.attributes


def test_elements_are_numbered_by_first_appearance() -> None:
    """Two nodes whose values repeat in the same pattern get the same numbers."""
    one = [(("string", "u1"),), (("string", "u2"),), (("string", "u1"),)]
    two = [(("string", "x"),), (("string", "y"),), (("string", "x"),)]
    islands = [0, 1, 2]
    assert number_elements(one, islands) == number_elements(two, islands) == ((1, 2, 1), (0, 2, 0))


def test_charge_and_groups() -> None:
    """Counters never fall below zero; groups shrink to what all devices have in common."""
    assert charge((3, 1), ((0, 2), (1, 1))) == (1, 0)
    assert charge((3, 1), ((0, 2), (1, 2))) is None
    held = join_groups((), (("card", frozenset({"a", "b"})),))
    assert held is not None
    assert join_groups(held, (("card", frozenset({"b", "c"})),)) == (("card", frozenset({"b"})),)
    assert join_groups(held, (("card", frozenset()),)) is None


def test_fit_names_what_is_missing() -> None:
    """A misfit names the capacity and the amounts."""
    device = Device.from_dict({"name": "gpu-0", "capacity": {"memory": {"value": "10Gi"}}})
    lacking = capacity_fit(device, "d", {"vram": Quantity.parse("1Gi")})
    short = capacity_fit(device, "d", {"memory": Quantity.parse("11Gi")})
    assert isinstance(lacking, Misfit)
    assert "no capacity vram" in lacking.detail
    assert isinstance(short, Misfit)
    assert "11Gi asked, the device has 10Gi" in short.detail
    assert isinstance(capacity_fit(device, "d", {}), Fit)


def test_holdings_come_and_go() -> None:
    """What a claim holds is taken back with the claim, and only that."""

    def claim(uid: str, device: str) -> ResourceClaim:
        result = {"request": "r", "driver": "d", "pool": "p", "device": device}
        return ResourceClaim.from_dict(
            {
                "metadata": {"name": "a", "namespace": "n", "uid": uid},
                "status": {"allocation": {"devices": {"results": [result]}}},
            }
        )

    holdings = Holdings()
    assert holdings.put(claim("1", "gpu-0")) == {("d", "p")}
    holdings.put(claim("2", "gpu-0"))
    assert len(holdings.of_pool(("d", "p"))["gpu-0"]) == 2
    holdings.put(claim("1", "gpu-1"))
    assert set(holdings.of_pool(("d", "p"))) == {"gpu-0", "gpu-1"}
    holdings.remove("n/a/1")
    holdings.remove("n/a/2")
    assert holdings.of_pool(("d", "p")) == {}
    assert holdings.remove("n/a/2") == set()
