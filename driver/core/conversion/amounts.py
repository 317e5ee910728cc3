# SPDX-License-Identifier: Apache-2.0
"""Numbers as other systems write them: MiB and per cent as plain whole numbers.

Every refusal names the field and the value. A resource is a Kubernetes quantity, so ``16Gi`` is
understood by the API server, but as a count of MiB it is 17 billion: refused, not guessed.
"""

import re
from typing import Any

from gpudra.api.errors import InputError
from gpudra.api.quantity import Quantity

# No card has more; whoever writes more has written bytes.
MAX_MEMORY = 1 << 20
MAX_COUNT = 32
MAX_PERCENT = 100
_PLAIN = re.compile(r"[0-9]{1,15}[kM]?", re.ASCII)


def quantity(value: Any, field: str, most: int, unit: str) -> int:
    """A resource's amount as a whole number; the API server may have written 3000 as 3k.

    Raises:
        InputError: another suffix, a fraction, or more than ``most``.
    """
    try:
        read = Quantity.parse(value)
    except InputError as error:
        raise error.within(field) from error
    if not _PLAIN.fullmatch(str(read)):
        raise InputError(
            f"{str(value)!r} is no plain whole number",
            field=field,
            hint=f"this field counts {unit}: write it without a suffix",
        )
    return _within(read.as_integer(), value, field, most, unit)


def annotation(value: str, field: str, most: int, unit: str) -> int:
    """A whole number of 1 or more in an annotation.

    Raises:
        InputError: it is none, or more than ``most``.
    """
    if not re.fullmatch(r"[1-9][0-9]{0,8}", value):
        raise InputError(
            f"{value!r} is no whole number of 1 or more",
            field=field,
            hint=f"this field counts {unit}: write it without a suffix",
        )
    return _within(int(value), value, field, most, unit)


def fraction(value: str, field: str) -> int:
    """A part of a card in 1/10000.

    Raises:
        InputError: not a decimal fraction over 0 and up to 1, or with more than four digits.
    """
    found = re.fullmatch(r"0?\.(?P<part>[0-9]{1,4})0*", value)
    parts = int(found["part"].ljust(4, "0")) if found else 0
    if re.fullmatch(r"1(\.0*)?", value):
        parts = 10_000
    if not parts:
        raise InputError(
            f"{value!r} is no part of a card",
            field=field,
            hint="write a decimal fraction over 0 and up to 1 with at most four digits, such as 0.25",
        )
    return parts


def _within(number: int, value: object, field: str, most: int, unit: str) -> int:
    if number > most:
        raise InputError(f"{str(value)!r} is more than {most} {unit}", field=field)
    return number
