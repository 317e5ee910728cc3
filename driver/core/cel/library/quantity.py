# SPDX-License-Identifier: Apache-2.0
"""Quantity functions (apiserver ``pkg/cel/library/quantity.go``)."""

from gpudra.api.errors import InputError
from gpudra.api.quantity import Quantity
from gpudra.driver.core.cel.declarations import Function, method, overload
from gpudra.driver.core.cel.errors import CelValueError
from gpudra.driver.core.cel.types import BOOL, DOUBLE, INT, QUANTITY, STRING


def parse_quantity(text: str) -> Quantity:
    """``quantity(text)``.

    Raises:
        CelValueError: the text is no quantity.
    """
    try:
        return Quantity.parse(text)
    except InputError as error:
        raise CelValueError(error.what, hint=error.hint) from error


def _is_quantity(text: str) -> bool:
    try:
        Quantity.parse(text)
    except InputError:
        return False
    return True


def _as_integer(amount: Quantity) -> int:
    if not amount.is_integer():
        raise CelValueError(f"{amount} is not a whole number", hint="test isInteger() first")
    return amount.as_integer()


def compare_to(left: Quantity, right: Quantity) -> int:
    """-1, 0 or 1."""
    a, b = left.nanos, right.nanos
    return (a > b) - (a < b)


_TWO = [QUANTITY, QUANTITY]

FUNCTIONS: list[Function] = [
    Function("quantity", (overload("string_to_quantity", [STRING], QUANTITY, parse_quantity),)),
    Function("isQuantity", (overload("is_quantity_string", [STRING], BOOL, _is_quantity),)),
    Function("sign", (overload("quantity_sign", [QUANTITY], INT, Quantity.sign),)),
    Function(
        "isGreaterThan",
        (method("quantity_is_greater_than", _TWO, BOOL, lambda a, b: a.nanos > b.nanos),),
    ),
    Function(
        "isLessThan", (method("quantity_is_less_than", _TWO, BOOL, lambda a, b: a.nanos < b.nanos),)
    ),
    Function("compareTo", (method("quantity_compare_to", _TWO, INT, compare_to),)),
    Function(
        "asApproximateFloat",
        (method("quantity_get_float", [QUANTITY], DOUBLE, Quantity.as_approximate_float),),
    ),
    Function("asInteger", (method("quantity_get_int", [QUANTITY], INT, _as_integer),)),
    Function("isInteger", (method("quantity_is_integer", [QUANTITY], BOOL, Quantity.is_integer),)),
    Function(
        "add",
        (
            method("quantity_add", _TWO, QUANTITY, lambda a, b: a + b),
            method("quantity_add_int", [QUANTITY, INT], QUANTITY, lambda a, b: a + Quantity.of(b)),
        ),
    ),
    Function(
        "sub",
        (
            method("quantity_sub", _TWO, QUANTITY, lambda a, b: a - b),
            method("quantity_sub_int", [QUANTITY, INT], QUANTITY, lambda a, b: a - Quantity.of(b)),
        ),
    ),
]
