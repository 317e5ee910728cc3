# SPDX-License-Identifier: Apache-2.0
"""Quantity functions (apiserver ``pkg/cel/library/quantity.go``)."""

import math
import re

from gpudra.api.errors import InputError
from gpudra.api.quantity import NANO, Format, Quantity
from gpudra.driver.core.cel.declarations import Function, method, overload
from gpudra.driver.core.cel.errors import CelValueError
from gpudra.driver.core.cel.types import BOOL, DOUBLE, INT, QUANTITY, STRING

_TEXT = re.compile(
    r"([+-]?)([0-9]*)(?:\.([0-9]*))?([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+|)", re.ASCII
)
_MAX_BINARY = (2**63 - 1) * NANO
_MAX_EXPONENT = 1000  # beyond all doubles; more digits would only eat memory
_MAX_LENGTH = 1000


def parse_quantity(text: str) -> Quantity:
    """``quantity(text)``.

    Like upstream's parser, and unlike its documentation, a text may lack digits (``Gi`` is zero),
    and binary amounts end at 2^63-1.

    Raises:
        CelValueError: the text is no quantity.
    """
    found = _TEXT.fullmatch(text)
    if found is None or not text:
        raise _no_quantity(text)
    sign, whole, fraction, suffix = (part or "" for part in found.groups())
    if not (whole + fraction).strip("0"):
        return Quantity(0)
    if len(text) > _MAX_LENGTH:
        raise _no_quantity(text)
    if len(suffix) > 1 and suffix[0] in "eE" and suffix != "Ei":
        return _with_exponent(text, sign + whole + fraction, int(suffix[1:]), len(fraction))
    try:
        amount = Quantity.parse(f"{sign}{whole.lstrip('0') or '0'}.{fraction or '0'}{suffix}")
    except InputError as error:
        raise CelValueError(error.what, hint=error.hint) from error
    if amount.format is Format.BINARY_SI and abs(amount.nanos) > _MAX_BINARY:
        return Quantity(_MAX_BINARY if amount.nanos > 0 else -_MAX_BINARY, amount.format)
    return amount


def _no_quantity(text: str) -> CelValueError:
    return CelValueError(f"{text[:40]!r} is no quantity", hint="write a number such as 16Gi")


def _with_exponent(text: str, digits: str, exponent: int, decimals: int) -> Quantity:
    """An amount of ``digits`` times a power of ten; parts of a nano round away from zero."""
    if abs(exponent) > _MAX_EXPONENT:
        raise _no_quantity(text)
    number, power = int(digits), exponent - decimals + 9
    if power >= 0:
        return Quantity(number * 10**power, Format.DECIMAL_EXPONENT)
    magnitude = -(-abs(number) // 10**-power)
    return Quantity(magnitude if number > 0 else -magnitude, Format.DECIMAL_EXPONENT)


def _as_float(amount: Quantity) -> float:
    try:
        return amount.as_approximate_float()
    except OverflowError:
        return math.copysign(math.inf, amount.sign())


def _is_quantity(text: str) -> bool:
    try:
        parse_quantity(text)
    except CelValueError:
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
        (method("quantity_get_float", [QUANTITY], DOUBLE, _as_float),),
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
