# SPDX-License-Identifier: Apache-2.0
"""Semver functions (apiserver ``pkg/cel/library/semverlib.go``, version 1)."""

from gpudra.api.errors import InputError
from gpudra.api.semver import Semver
from gpudra.driver.core.cel.declarations import Function, method, overload
from gpudra.driver.core.cel.errors import CelValueError
from gpudra.driver.core.cel.types import BOOL, INT, SEMVER, STRING
from gpudra.driver.core.cel.values import INT_MAX, UINT_MAX


def _normalized(text: str) -> str:
    """The API server's mending: no ``v``, no leading zeros, three numbers."""
    parts = text.removeprefix("v").split(".", 2)
    parts = [_without_zeros(part) for part in parts]
    if len(parts) < 3 and ("+" in parts[-1] or "-" in parts[-1]):
        raise InputError(
            f"{text!r} is short and has a pre-release or build part", hint="write all three numbers"
        )
    return ".".join(parts + ["0"] * (3 - len(parts)))


def _check_numbers(text: str) -> None:
    """Numbers of a version, those of its pre-release included, fit 64 bits upstream."""
    core, _, prerelease = text.partition("+")[0].partition("-")
    for part in (*core.split("."), *prerelease.split(".")):
        if part.isdigit() and (len(part) > 20 or int(part) > UINT_MAX):
            raise InputError(f"{part[:24]} is too large a number for a version")


def _without_zeros(part: str) -> str:
    if len(part) < 2:
        return part
    stripped = part.lstrip("0")
    return stripped if stripped[:1].isdigit() and stripped[0].isascii() else "0" + stripped


def parse_semver(text: str, normalize: bool = False) -> Semver:
    """``semver(text)``, ``semver(text, normalize)``.

    Raises:
        CelValueError: the text is no version.
    """
    try:
        mended = _normalized(text) if normalize else text
        _check_numbers(mended)
        return Semver.parse(mended)
    except InputError as error:
        raise CelValueError(error.what, hint=error.hint) from error


def _is_semver(text: str, normalize: bool = False) -> bool:
    try:
        parse_semver(text, normalize)
    except CelValueError:
        return False
    return True


def _compare(left: Semver, right: Semver) -> int:
    return (left > right) - (left < right)


def _number(value: int) -> int:
    # Upstream turns the uint64 into an int64 as it is: the highest bit becomes the sign.
    return value if value <= INT_MAX else value - 2**64


_TWO = [SEMVER, SEMVER]

FUNCTIONS: list[Function] = [
    Function(
        "semver",
        (
            overload("string_to_semver", [STRING], SEMVER, parse_semver),
            overload("string_bool_to_semver", [STRING, BOOL], SEMVER, parse_semver),
        ),
    ),
    Function(
        "isSemver",
        (
            overload("is_semver_string", [STRING], BOOL, _is_semver),
            overload("is_semver_string_bool", [STRING, BOOL], BOOL, _is_semver),
        ),
    ),
    Function("isGreaterThan", (method("semver_is_greater_than", _TWO, BOOL, lambda a, b: a > b),)),
    Function("isLessThan", (method("semver_is_less_than", _TWO, BOOL, lambda a, b: a < b),)),
    Function("compareTo", (method("semver_compare_to", _TWO, INT, _compare),)),
    Function("major", (method("semver_major", [SEMVER], INT, lambda v: _number(v.major)),)),
    Function("minor", (method("semver_minor", [SEMVER], INT, lambda v: _number(v.minor)),)),
    Function("patch", (method("semver_patch", [SEMVER], INT, lambda v: _number(v.patch)),)),
]
