# SPDX-License-Identifier: Apache-2.0
"""What our own kinds have in common: strict models, and lenient decoding of what is stored."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from gpudra.api.errors import InputError

MAX_SECONDS = 365 * 24 * 3600
_DURATION = re.compile(r"(?=.)(?:(\d{1,4})h)?(?:(\d{1,6})m)?(?:(\d{1,8})s)?")


class CrdModel(BaseModel):
    """A part of a kind of ours: fields in camelCase, unknown ones refused, no guessing of types."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        validate_by_alias=True,
        validate_by_name=False,
        serialize_by_alias=True,
    )


class Metadata(BaseModel):
    """What we read of an object's metadata; the rest is the API server's business."""

    model_config = ConfigDict(alias_generator=to_camel, frozen=True, validate_by_name=False)

    name: Annotated[str, Field(min_length=1)]
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    creation_timestamp: str = ""


Model = TypeVar("Model", bound=BaseModel)


def decimal_number(value: object) -> object:
    """1.5 as people mean it, not as the nearest binary fraction."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")  # noqa: TRY004 - pydantic takes this one
    return Decimal(str(value))


def duration(value: object) -> int:
    """``1h30m``, ``90s`` in seconds, as Kubernetes writes durations."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is no duration such as 90s, 5m or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds


Seconds = Annotated[int, BeforeValidator(duration), Field(ge=0, le=MAX_SECONDS)]
"""A duration in whole seconds; written ``1h30m``."""


def decode_known(raw: Mapping[str, Any], shape: type[Model]) -> Model:
    """An object as the API server has it: fields that the model does not know are dropped.

    Raises:
        InputError: a value that is not understood; written perhaps for a newer version.
    """
    from json import dumps  # noqa: PLC0415 - strict mode takes lists for tuples from JSON only

    meta = raw.get("metadata") or {}
    try:
        return shape.model_validate_json(dumps(_known(raw, shape)))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        message = str(first["msg"]).removeprefix("Value error, ")
        name = "/".join(filter(None, (meta.get("namespace"), meta.get("name"))))
        raise InputError(message, field=field, obj=f"{shape.__name__.lower()} {name}") from error


def _known(raw: Any, shape: Any) -> Any:
    """The value without the fields that the shape does not have, at any depth."""
    model = _model_in(shape)
    if model is None:
        return raw
    if isinstance(raw, list):
        return [_known(one, model) for one in raw]
    if not isinstance(raw, Mapping):
        return raw
    fields = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    return {key: _known(value, fields[key]) for key, value in raw.items() if key in fields}


def _model_in(shape: Any) -> type[BaseModel] | None:
    """The model that a shape is, or that it is a tuple or an option of."""
    if isinstance(shape, type) and issubclass(shape, BaseModel):
        return shape
    return next((found for part in get_args(shape) if (found := _model_in(part))), None)
