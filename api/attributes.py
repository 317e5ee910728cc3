# SPDX-License-Identifier: Apache-2.0
"""Attribute values of devices.

A value is a plain Python one: ``int``, ``bool``, ``str``, Semver, or a tuple of one of these (list
forms, KEP-5491). The Python type tells the form, so a device of a 40,000-GPU cluster needs no
wrapper object per attribute. Forms that a later API may add become UnknownValue and are kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpudra.api.codec import Json, decode_bool, decode_int, decode_string
from gpudra.api.errors import InputError
from gpudra.api.semver import Semver


@dataclass(frozen=True, slots=True)
class UnknownValue:
    """An attribute form that this version does not know, kept as it came."""

    raw: Json

    def __hash__(self) -> int:
        # The JSON inside may hold lists and objects, which have no hash of their own.
        return hash(repr(self.raw))


Scalar = int | bool | str | Semver
AttributeValue = (
    Scalar
    | tuple[int, ...]
    | tuple[bool, ...]
    | tuple[str, ...]
    | tuple[Semver, ...]
    | UnknownValue
)


@lru_cache(maxsize=8192)
def _semver(text: str) -> Semver:
    return Semver.parse(text)


def _decode_semver(raw: Json) -> Semver:
    return _semver(decode_string(raw))


_SCALAR_FORMS: Mapping[str, Any] = {
    "string": decode_string,
    "int": decode_int,
    "bool": decode_bool,
    "version": _decode_semver,
}
_LIST_FORMS: Mapping[str, Any] = {
    "strings": decode_string,
    "ints": decode_int,
    "bools": decode_bool,
    "versions": _decode_semver,
}


def decode_attribute(raw: Json) -> AttributeValue:
    """Reads one ``DeviceAttribute``: an object with exactly one of the value fields.

    Raises:
        InputError: none or several value fields, or a value of the wrong type.
    """
    if not isinstance(raw, Mapping):
        raise InputError("an attribute is an object with one value field")
    given = {key: value for key, value in raw.items() if value is not None}
    if len(given) != 1:
        raise InputError(
            f"an attribute has exactly one value, this one has {len(given)}",
            hint="keep one of string, int, bool, version",
        )
    ((form, value),) = given.items()
    if form in _SCALAR_FORMS:
        return _SCALAR_FORMS[form](value)  # type: ignore[no-any-return]
    if form in _LIST_FORMS:
        if not isinstance(value, list | tuple):
            raise InputError("is not a list", field=form)
        return tuple(_LIST_FORMS[form](item) for item in value)
    return UnknownValue({form: value})


def _scalar_form(value: Scalar) -> tuple[str, Json]:
    if isinstance(value, bool):
        return "bool", value
    if isinstance(value, int):
        return "int", value
    if isinstance(value, Semver):
        return "version", str(value)
    return "string", value


def encode_attribute(value: AttributeValue) -> Json:
    """The ``DeviceAttribute`` object of a value. An empty tuple is written as ``strings: []``."""
    if isinstance(value, UnknownValue):
        return value.raw
    if isinstance(value, tuple):
        forms = [_scalar_form(item) for item in value]
        return {(forms[0][0] if forms else "string") + "s": [item for _, item in forms]}
    form, item = _scalar_form(value)
    return {form: item}


def decode_attributes(raw: Json) -> Mapping[str, AttributeValue]:
    """Reads the attributes of a device.

    Raises:
        InputError: one of them is malformed; the field names it.
    """
    if not isinstance(raw, Mapping):
        raise InputError("attributes are an object: name to value")
    values: dict[str, AttributeValue] = {}
    for name, value in raw.items():
        try:
            values[decode_string(name)] = decode_attribute(value)
        except InputError as error:
            raise error.within(f"[{name}]") from error
    return values


def encode_attributes(values: Mapping[str, AttributeValue]) -> Json:
    """The JSON object of a device's attributes."""
    return {name: encode_attribute(value) for name, value in values.items()}
