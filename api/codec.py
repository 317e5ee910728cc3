# SPDX-License-Identifier: Apache-2.0
"""Turns frozen dataclasses into API JSON and back, keeping what it does not know.

A class says its shape once, as a dataclass; the names in JSON are its field names in camelCase.
From that, one decoder and one encoder are built per class, so that reading forty thousand devices
is a walk through closures and not a walk through type hints.

Rules, the same for every type:

* a missing field, ``null`` and an empty list all mean "not set" (Go's encoder does not tell them
  apart either);
* fields that this version does not know go to ``extra`` and are written back unchanged;
* a value of the wrong shape is an InputError that carries the path of the field.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar, dataclass_transform, get_args, get_origin

from gpudra.api.errors import InputError
from gpudra.api.quantity import Quantity

Json = Any
Decoder = Callable[[Json], Any]
Encoder = Callable[[Any], Json]
NOTHING: Mapping[str, Any] = types.MappingProxyType({})
T = TypeVar("T")

# One entry per class of the API, made on first use.
_DECODERS: dict[type[Any], Decoder] = {}
_ENCODERS: dict[type[Any], Encoder] = {}


def mapping_field(**metadata: Any) -> Any:
    """A map that is empty unless given; all empty ones share one read-only object."""
    return dataclasses.field(default_factory=lambda: NOTHING, metadata=metadata)


def camel(name: str) -> str:
    """``resource_slice_count`` → ``resourceSliceCount``; ``cel_id`` stays as the API spells it."""
    head, *tail = name.rstrip("_").split("_")
    return head + "".join({"id": "ID"}.get(part, part.capitalize()) for part in tail)


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,)
)
def api_type(cls: type[T]) -> type[T]:
    """Makes a class a frozen, slotted, keyword-only dataclass with JSON in and out."""
    return dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)


@api_type
class ApiObject:
    """Base of all API shapes. ``extra`` holds the JSON fields that the class does not know."""

    extra: Mapping[str, Json] = dataclasses.field(default_factory=lambda: NOTHING)

    @classmethod
    def from_dict(cls, raw: Json) -> Self:
        """Reads one JSON object.

        Raises:
            InputError: a field has the wrong shape; ``field`` tells which.
        """
        return typing.cast("Self", _decoder_of(cls)(raw))

    def to_dict(self) -> dict[str, Json]:
        """The JSON object, unknown fields included, unset fields left out."""
        return typing.cast("dict[str, Json]", _encoder_of(type(self))(self))


def _decoder_of(cls: type[Any]) -> Decoder:
    """The decoder of a class, built on first use."""
    found = _DECODERS.get(cls)
    if found is None:
        found = _object_decoder(cls, *_plan_decoding(cls))
        if hasattr(cls, "after_decoding"):
            found = _with_hook(found)
        _DECODERS[cls] = found
    return found


def _with_hook(decode: Decoder) -> Decoder:
    """For classes that prepare something out of what was decoded: ``after_decoding``."""

    def decode_and_tell(raw: Json) -> Any:
        found = decode(raw)
        found.after_decoding()
        return found

    return decode_and_tell


def _plan_decoding(cls: type[Any]) -> tuple[dict[str, tuple[str, Decoder]], dict[str, str]]:
    """JSON name → field and decoder, and the required fields with their JSON names."""
    hints = typing.get_type_hints(cls)
    fields = [field for field in dataclasses.fields(cls) if field.name != "extra"]
    known: dict[str, tuple[str, Decoder]] = {}
    for field in fields:
        custom = field.metadata.get("decode")
        decode = custom if custom is not None else _decoder_for(hints[field.name])
        known[field.metadata.get("json", camel(field.name))] = (field.name, decode)
    required = {
        field.name: field.metadata.get("json", camel(field.name))
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    return known, required


def _object_decoder(
    cls: type[Any], known: dict[str, tuple[str, Decoder]], required: dict[str, str]
) -> Decoder:
    def decode_object(raw: Json) -> Any:
        if not isinstance(raw, Mapping):
            raise InputError(f"{_shown(raw)} is not an object")
        values: dict[str, Any] = {}
        extra: dict[str, Json] = {}
        for key, value in raw.items():
            entry = known.get(key)
            if entry is None:
                extra[key] = value
            elif value is not None:
                try:
                    values[entry[0]] = entry[1](value)
                except InputError as error:
                    raise error.within(key) from error
        for name, key in required.items():
            if name not in values:
                raise InputError("is required", field=key)
        if extra:
            values["extra"] = extra
        return cls(**values)

    return decode_object


def _encoder_of(cls: type[Any]) -> Encoder:
    """The encoder of a class, built on first use."""
    found = _ENCODERS.get(cls)
    if found is None:
        found = _ENCODERS[cls] = _object_encoder(cls)
    return found


def _object_encoder(cls: type[Any]) -> Encoder:
    hints = typing.get_type_hints(cls)
    plan: list[tuple[str, str, Encoder, Any]] = []
    for field in dataclasses.fields(cls):
        if field.name == "extra":
            continue
        custom = field.metadata.get("encode")
        encode = custom if custom is not None else _encoder_for(hints[field.name])
        absent = field.default
        if field.default_factory is not dataclasses.MISSING:
            absent = field.default_factory()
        if field.metadata.get("always"):
            absent = dataclasses.MISSING
        plan.append((field.name, field.metadata.get("json", camel(field.name)), encode, absent))

    def encode_object(value: Any) -> dict[str, Json]:
        raw: dict[str, Json] = {}
        for name, key, encode, absent in plan:
            item = getattr(value, name)
            if item is None or (absent is not dataclasses.MISSING and item == absent):
                continue
            raw[key] = encode(item)
        raw.update(value.extra)
        return raw

    return encode_object


def _decoder_for(hint: Any) -> Decoder:
    hint = _without_none(hint)
    origin = get_origin(hint)
    if origin is tuple:
        return _list_decoder(_decoder_for(get_args(hint)[0]))
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return _map_decoder(_decoder_for(get_args(hint)[1]))
    if hint is Quantity:
        return Quantity.parse
    if isinstance(hint, type) and issubclass(hint, ApiObject):
        return _decoder_of(hint)
    if hint in _SCALARS:
        return _SCALARS[hint]
    return lambda raw: raw


def _encoder_for(hint: Any) -> Encoder:
    hint = _without_none(hint)
    origin = get_origin(hint)
    if origin is tuple:
        item = _encoder_for(get_args(hint)[0])
        return lambda values: [item(value) for value in values]
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        item = _encoder_for(get_args(hint)[1])
        return lambda values: {key: item(value) for key, value in values.items()}
    if hint is Quantity:
        return str
    if isinstance(hint, type) and issubclass(hint, ApiObject):
        return lambda value: _encoder_of(type(value))(value)
    return lambda value: value


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (typing.Union, types.UnionType):
        present = [part for part in get_args(hint) if part is not type(None)]
        if len(present) == 1:
            return present[0]
    return hint


def _list_decoder(item: Decoder) -> Decoder:
    def decode(raw: Json) -> tuple[Any, ...]:
        if not isinstance(raw, list | tuple):
            raise InputError(f"{_shown(raw)} is not a list")
        values = []
        for index, value in enumerate(raw):
            try:
                values.append(item(value))
            except InputError as error:
                raise error.within(f"[{index}]") from error
        return tuple(values)

    return decode


def _map_decoder(item: Decoder) -> Decoder:
    def decode(raw: Json) -> dict[str, Any]:
        if not isinstance(raw, Mapping):
            raise InputError(f"{_shown(raw)} is not an object")
        values = {}
        for key, value in raw.items():
            if not isinstance(key, str):
                raise InputError(f"key {_shown(key)} is not a string")
            try:
                values[_interned(key)] = item(value)
            except InputError as error:
                raise error.within(f"[{key}]") from error
        return values

    return decode


def _same(text: str) -> str:
    return text


# One object per distinct text: names and models repeat in every device of a cluster. Bounded,
# unlike sys.intern, so that hostile names cannot grow it without end.
_interned = functools.lru_cache(maxsize=65536)(_same)


def keep_texts(count: int) -> None:
    """Keeps no more than so many distinct texts from now on, the ones that were used last.

    For processes that read one object after the other and see few texts twice: there each claim's
    uid and names would stay until 65,536 others have come.
    """
    global _interned  # noqa: PLW0603 - a property of the process, like the recursion limit
    _interned = functools.lru_cache(maxsize=count)(_same)


def decode_string(raw: Json) -> str:
    """A JSON string.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(raw, str):
        raise InputError(f"{_shown(raw)} is not a string")
    return _interned(raw)


def decode_bool(raw: Json) -> bool:
    """A JSON boolean.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(raw, bool):
        raise InputError(f"{_shown(raw)} is not a boolean")
    return raw


def decode_int(raw: Json) -> int:
    """A JSON integer that fits an int64.

    Raises:
        InputError: it is something else.
    """
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise InputError(f"{_shown(raw)} is not an integer")
    if not -(2**63) <= raw < 2**63:
        raise InputError(f"{raw} does not fit a 64-bit integer")
    return raw


_SCALARS: dict[Any, Decoder] = {str: decode_string, bool: decode_bool, int: decode_int}


def _shown(raw: Json) -> str:
    text = repr(raw)
    return text if len(text) <= 60 else text[:60] + "…"
