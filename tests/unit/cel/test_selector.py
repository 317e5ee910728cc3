# SPDX-License-Identifier: Apache-2.0
"""Compiled selectors: the interface that the allocator and explain use."""

import pytest

from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import Device
from gpudra.api.semver import Semver
from gpudra.driver.core.cel import (
    COST_LIMIT,
    CelCompileError,
    CelCostExceeded,
    CelDevice,
    CelEvaluationError,
    CelTypeError,
    compile_selector,
)

DRIVER = "gpu.example.com"
DEVICE = CelDevice(
    DRIVER,
    {DRIVER: {"model": "H100", "version": Semver.parse("1.2.3"), "numbers": (1, 2)}},
    {DRIVER: {"memory": Quantity.parse("80Gi")}},
)
THREE = (
    f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].model == "H100" && '
    f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0'
)


def test_equal_texts_share_one_compilation() -> None:
    """The cache gives the same object; the two environments are kept apart."""
    assert compile_selector(THREE) is compile_selector(THREE)
    assert compile_selector(THREE) is not compile_selector(THREE, list_attributes=True)


def test_failures_are_not_cached() -> None:
    """A refused text is refused each time."""
    for _ in range(2):
        with pytest.raises(CelCompileError):
            compile_selector("device.")


def test_matches_and_evaluate_agree() -> None:
    """evaluate() gives the answer of matches() and the cost beside it."""
    selector = compile_selector(THREE)
    assert selector.matches(DEVICE)
    assert selector.evaluate(DEVICE) == (True, selector.cost_estimate)


def test_one_selector_serves_many_devices() -> None:
    """Nothing of one device is left behind for the next."""
    selector = compile_selector(
        f'cel.bind(a, device.attributes["{DRIVER}"], has(a.model) && a.model == "H100")'
    )
    other = CelDevice(DRIVER, {DRIVER: {"model": "A100"}}, {})
    answers = [
        selector.matches(device) for device in (DEVICE, other, DEVICE, CelDevice("x", {}, {}))
    ]
    assert answers == [True, False, True, False]


def test_names_without_domain_belong_to_the_driver() -> None:
    """A device of the API is laid out by domain."""
    device = Device.from_dict(
        {
            "name": "d",
            "attributes": {"model": {"string": "H100"}, "o.io/model": {"int": 1}},
            "capacity": {"memory": {"value": "1Gi"}},
            "allowMultipleAllocations": True,
        }
    )
    seen = CelDevice.from_device(DRIVER, device)
    assert seen.attributes == {DRIVER: {"model": "H100"}, "o.io": {"model": 1}}
    assert seen.capacity == {DRIVER: {"memory": Quantity.parse("1Gi")}}
    assert seen.allow_multiple_allocations is True


def test_missing_names_say_what_to_do() -> None:
    """The error names the attribute and the guard."""
    with pytest.raises(CelEvaluationError, match=r"'colour'.*has"):
        compile_selector(f'device.attributes["{DRIVER}"].colour == "red"').matches(DEVICE)


def test_cost_limit_stops_an_evaluation() -> None:
    """Loops beyond a million units end in an error of their own, which || does not absorb."""
    selector = compile_selector(
        "lists.range(100000).all(x, lists.range(100000).all(y, y >= 0)) || true"
    )
    assert selector.cost_estimate > COST_LIMIT
    assert selector.too_costly
    with pytest.raises(CelCostExceeded):
        selector.matches(DEVICE)


def test_the_limit_holds_where_the_estimate_is_too_low() -> None:
    """flatten() is estimated by the outer list; looping over the result is counted all the same."""
    selector = compile_selector(
        "cel.bind(f, [lists.range(9000), lists.range(9000)].flatten(), f.all(x, f.all(y, y >= 0)))"
    )
    assert not selector.too_costly
    with pytest.raises(CelCostExceeded):
        selector.matches(DEVICE)


@pytest.mark.parametrize(
    "text",
    [
        '"a"' + '.replace("", "0123456789")' * 9 + ".size() == 0",
        "(" + " + ".join(["lists.range(999999)"] * 3) + ").size() == 0",
        "(" + " + ".join(['"%.99999f".format([0.1])'] * 240) + ").size() == 0",
        "".join(f"cel.bind(x{i + 1}, x{i} + x{i}, " for i in range(40)).replace("x0", "[1]")
        + "x40.size() == 0"
        + ")" * 40,
    ],
)
def test_values_cannot_eat_the_memory(text: str) -> None:
    """Growth without loops is stopped as well."""
    with pytest.raises(CelCostExceeded):
        compile_selector(text).matches(DEVICE)


def test_explain_shows_clauses_and_what_they_read() -> None:
    """Each clause comes with its value or error, and with the device's values."""
    text = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].model == "A100" && device.attributes["{DRIVER}"].?colour.orValue("") == device.attributes["{DRIVER}"].shade'
    first, second, third = compile_selector(text).explain(DEVICE)
    assert first == ('device.driver == "gpu.example.com"', True, (("device.driver", DRIVER),))
    assert second.result is False
    assert second.operands == ((f'device.attributes["{DRIVER}"].model', "H100"),)
    assert isinstance(third.result, CelEvaluationError)
    assert [text for text, _ in third.operands] == [
        f'device.attributes["{DRIVER}"].?colour',
        f'device.attributes["{DRIVER}"].shade',
    ]


def test_explain_reads_inside_loops_only_what_stands_alone() -> None:
    """A loop shows what it runs over."""
    (only,) = compile_selector(
        f'device.attributes["{DRIVER}"].numbers.exists(n, n > 1)', list_attributes=True
    ).explain(DEVICE)
    assert only.result is True
    assert only.operands == ((f'device.attributes["{DRIVER}"].numbers', (1, 2)),)


def test_errors_have_position_and_text() -> None:
    """A type error carries what an editor needs."""
    with pytest.raises(CelTypeError) as caught:
        compile_selector("true &&\n  device.driver == 1")
    assert caught.value.position == (2, 17)
    assert caught.value.expression.startswith("true")
    assert "line 2, column 17" in str(caught.value)


def test_unused_lists_of_the_environment_stay_apart() -> None:
    """includes() exists in the environment of stored expressions only."""
    text = f'device.attributes["{DRIVER}"].numbers.includes(2)'
    assert compile_selector(text, list_attributes=True).matches(DEVICE)
    with pytest.raises(CelTypeError):
        compile_selector(text)
