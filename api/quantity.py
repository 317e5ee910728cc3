# SPDX-License-Identifier: Apache-2.0
"""Kubernetes quantities, exact.

A quantity is a decimal number with an optional suffix: binary (``Ki`` … ``Ei``), decimal
(``n u m k M G T P E``) or an exponent (``e3``). Kubernetes keeps no more than nano precision and
rounds anything finer away from zero (apimachinery ``resource.Quantity``). Here the value is one
integer count of nanos, so sums and comparisons never lose a bit.
"""

import functools
import math
import re
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from gpudra.api.errors import InputError

NANO = 10**9

_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_NAMES = {power: name for name, power in _DECIMAL.items()}
_GRAMMAR = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+|)",
    re.ASCII,
)
_MAX_EXPONENT = 30  # far above 2^63 nanos; keeps hostile exponents from eating memory
_MAX_LENGTH = 128
_INT64_MAX = 2**63 - 1
_INT64_MIN = -(2**63)


class Format(Enum):
    """How a quantity likes to be written."""

    BINARY_SI = "BinarySI"
    DECIMAL_SI = "DecimalSI"
    DECIMAL_EXPONENT = "DecimalExponent"


def _ceil_away(value: Fraction) -> int:
    """Rounds away from zero, as Kubernetes does with digits below a nano."""
    whole, rest = divmod(abs(value.numerator), value.denominator)
    magnitude = whole + (1 if rest else 0)
    return -magnitude if value < 0 else magnitude


@functools.total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """An exact amount.

    Equality, order and hash go by the amount alone: ``1Gi`` equals ``1024Mi``.

    Attributes:
        nanos: the amount times 10^9.
        format: how to write it.
    """

    nanos: int
    format: Format = Format.DECIMAL_SI

    @classmethod
    def parse(cls, text: str | float) -> "Quantity":
        """Reads what JSON or YAML may hold for a quantity.

        Raises:
            InputError: the text is no quantity.
        """
        if isinstance(text, bool) or not isinstance(text, str | int | float):
            raise InputError(f"{text!r} is not a quantity", hint="write a number such as 16Gi")
        return _parse(text if isinstance(text, str) else repr(text))

    @classmethod
    def of(cls, amount: int, fmt: Format = Format.DECIMAL_SI) -> "Quantity":
        """A whole amount."""
        return cls(amount * NANO, fmt)

    @classmethod
    def bytes(cls, amount: int) -> "Quantity":
        """An amount of bytes, written with binary suffixes."""
        return cls(amount * NANO, Format.BINARY_SI)

    @property
    def value(self) -> int:
        """The amount in whole units, rounded away from zero (``Quantity.Value``)."""
        whole, rest = divmod(abs(self.nanos), NANO)
        magnitude = whole + (1 if rest else 0)
        return -magnitude if self.nanos < 0 else magnitude

    @property
    def milli_value(self) -> int:
        """The amount in thousandths, rounded away from zero (``Quantity.MilliValue``)."""
        whole, rest = divmod(abs(self.nanos), 10**6)
        magnitude = whole + (1 if rest else 0)
        return -magnitude if self.nanos < 0 else magnitude

    def is_integer(self) -> bool:
        """Whether the amount is a whole number that fits an int64 (CEL ``isInteger``)."""
        return self.nanos % NANO == 0 and _INT64_MIN <= self.nanos // NANO <= _INT64_MAX

    def as_integer(self) -> int:
        """The whole amount.

        Raises:
            InputError: there is none that fits an int64.
        """
        if not self.is_integer():
            raise InputError(f"{self} is not a whole number")
        return self.nanos // NANO

    def as_approximate_float(self) -> float:
        """The nearest float (CEL ``asApproximateFloat``); infinite beyond the largest one."""
        try:
            return float(Fraction(self.nanos, NANO))
        except OverflowError:
            return math.inf if self.nanos > 0 else -math.inf

    def sign(self) -> int:
        """-1, 0 or 1."""
        return (self.nanos > 0) - (self.nanos < 0)

    def __add__(self, other: "Quantity") -> "Quantity":
        # As upstream: the sum of a zero and a quantity takes the other's format.
        return Quantity(self.nanos + other.nanos, self.format if self.nanos else other.format)

    def __sub__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.nanos - other.nanos, self.format if self.nanos else other.format)

    def __neg__(self) -> "Quantity":
        return Quantity(-self.nanos, self.format)

    def __bool__(self) -> bool:
        return self.nanos != 0

    def __eq__(self, other: object) -> bool:
        return self.nanos == other.nanos if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: "Quantity") -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self.nanos < other.nanos

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __str__(self) -> str:
        """The canonical text: the largest suffix that leaves no fraction."""
        if not self.nanos:
            return "0"
        if self.format is Format.BINARY_SI:
            return _binary_text(self.nanos)
        return _decimal_text(self.nanos, exponent=self.format is Format.DECIMAL_EXPONENT)


@functools.lru_cache(maxsize=4096)
def _parse(text: str) -> Quantity:
    found = _GRAMMAR.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if found is None:
        shown = text if len(text) <= 40 else text[:40] + "…"
        raise InputError(f"{shown!r} is not a quantity", hint="write a number such as 16Gi or 500m")
    number = Fraction(found["number"].rstrip(".") if found["number"] != "." else "0")
    suffix = found["suffix"]
    if suffix in _BINARY:
        scale, fmt = Fraction(1 << _BINARY[suffix]), Format.BINARY_SI
    elif suffix in _DECIMAL:
        scale, fmt = Fraction(10) ** _DECIMAL[suffix], Format.DECIMAL_SI
    else:
        power = int(suffix[1:])
        if abs(power) > _MAX_EXPONENT:
            raise InputError(f"{text!r} has an exponent out of range")
        scale, fmt = Fraction(10) ** power, Format.DECIMAL_EXPONENT
    signed = -number if found["sign"] == "-" else number
    nanos = _ceil_away(signed * scale * NANO)
    if fmt is Format.BINARY_SI:
        # "The max is just a simple cap", says apimachinery, and has it for binary suffixes only.
        nanos = min(nanos, _INT64_MAX * NANO)
    # Below 1 a binary suffix cannot be written: upstream falls back to decimal.
    if fmt is Format.BINARY_SI and 0 < abs(nanos) < 1024 * NANO:
        fmt = Format.DECIMAL_SI
    return Quantity(nanos, fmt)


def _binary_text(nanos: int) -> str:
    whole, rest = divmod(nanos, NANO)
    if rest or abs(whole) < 1024:
        return _decimal_text(nanos, exponent=False)
    best = ""
    for name, bits in _BINARY.items():
        if whole % (1 << bits):
            break
        best = name
    return f"{whole >> _BINARY[best] if best else whole}{best}"


def _decimal_text(nanos: int, *, exponent: bool) -> str:
    power, number = -9, nanos
    while number % 1000 == 0 and power < 18:
        number //= 1000
        power += 3
    if exponent:
        return f"{number}e{power}" if power else str(number)
    return f"{number}{_DECIMAL_NAMES[power]}"
