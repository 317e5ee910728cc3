# SPDX-License-Identifier: Apache-2.0
"""GpuConfig, MigConfig and ShareConfig, as users write them into ``config[].opaque.parameters``.

Opaque parameters are user input that the API server does not look at, so they are checked here:
strictly for what a user sends (an unknown field is a typing error that would enforce nothing in
silence), leniently for what was accepted once and is stored (written perhaps by a newer version).

Called by the node agent at prepare, by ``gpudra validate`` and by the admission webhook.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from gpudra.api.errors import InputError

API_VERSION = "gpudra.io/v1alpha1"


class Isolation(StrEnum):
    """What keeps the users of one device apart; weakest last."""

    MPS = "mps"
    HAMI_CORE = "hami-core"
    TIME_SLICE = "time-slice"
    NONE = "none"


class TimeSliceLength(StrEnum):
    """How long one process computes before the next has its turn."""

    DEFAULT = "default"
    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"


class _Shape(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=False,
    )


class WholeSharing(_Shape):
    """How the containers that share one whole GPU, by sharing its claim, are kept apart."""

    isolation: Annotated[
        Literal[Isolation.MPS, Isolation.TIME_SLICE, Isolation.NONE] | None,
        Field(description="Backend to use; without it the node's policy decides."),
    ] = None
    time_slice: Annotated[
        TimeSliceLength | None,
        Field(description="Length of a time slice; only with isolation `time-slice`."),
    ] = None


class MigSharing(_Shape):
    """How the containers that share one MIG device, by sharing its claim, are kept apart."""

    isolation: Annotated[
        Literal[Isolation.MPS, Isolation.NONE] | None,
        Field(description="Backend to use; without it the node's policy decides."),
    ] = None


class ShareSharing(_Shape):
    """How the shares of one GPU are kept apart."""

    isolation: Annotated[
        Isolation | None,
        Field(description="Backend to use; without it the node's policy decides."),
    ] = None


class GpuConfig(_Shape):
    """Settings of a whole GPU."""

    api_version: Literal["gpudra.io/v1alpha1"]
    kind: Literal["GpuConfig"]
    sharing: WholeSharing = WholeSharing()


class MigConfig(_Shape):
    """Settings of a MIG device."""

    api_version: Literal["gpudra.io/v1alpha1"]
    kind: Literal["MigConfig"]
    sharing: MigSharing = MigSharing()


class ShareConfig(_Shape):
    """Settings of a share of a GPU."""

    api_version: Literal["gpudra.io/v1alpha1"]
    kind: Literal["ShareConfig"]
    sharing: ShareSharing = ShareSharing()


Config = GpuConfig | MigConfig | ShareConfig
KINDS: Mapping[str, type[GpuConfig] | type[MigConfig] | type[ShareConfig]] = {
    "GpuConfig": GpuConfig,
    "MigConfig": MigConfig,
    "ShareConfig": ShareConfig,
}


def decode_user(parameters: Any) -> Config:
    """What a user wrote; every mistake is named by its field.

    Raises:
        InputError: not an object, an unknown kind or version, an unknown field, a value out of
            range, or settings that contradict each other.
    """
    model = _model_of(parameters)
    try:
        config = model.model_validate(parameters)
    except ValidationError as error:
        raise _input_error(error, model) from error
    _check(config)
    return config


def decode_stored(parameters: Any) -> Config:
    """What was accepted once: unknown fields are dropped, everything else as for users.

    Raises:
        InputError: an unknown kind or version, or a value that cannot be understood.
    """
    model = _model_of(parameters)
    try:
        return model.model_validate(_known(parameters, model))
    except ValidationError as error:
        raise _input_error(error, model) from error


def _model_of(parameters: Any) -> type[GpuConfig] | type[MigConfig] | type[ShareConfig]:
    if not isinstance(parameters, Mapping):
        raise InputError("is not an object", field="parameters")
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    if version != API_VERSION:
        raise InputError(
            f"{version!r} is not known here", field="apiVersion", hint=f"write {API_VERSION}"
        )
    model = KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise InputError(
            f"{kind!r} is not known here", field="kind", hint=f"use one of {', '.join(KINDS)}"
        )
    return model


def _known(raw: Any, model: type[BaseModel]) -> Any:
    """The object without the fields that the model does not have, at any depth."""
    if not isinstance(raw, Mapping):
        return raw
    kept: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        key = field.alias or name
        if key not in raw:
            continue
        inner: Any = field.annotation
        nested = isinstance(inner, type) and issubclass(inner, BaseModel)
        kept[key] = _known(raw[key], inner) if nested else raw[key]
    return kept


def _check(config: Config) -> None:
    """Rules between fields."""
    if isinstance(config, GpuConfig):
        sharing = config.sharing
        if sharing.time_slice is not None and sharing.isolation is not Isolation.TIME_SLICE:
            raise InputError(
                "a time slice has a length only with isolation time-slice",
                field="sharing.timeSlice",
                obj="GpuConfig",
                hint="set sharing.isolation to time-slice or drop the field",
            )


def _input_error(error: ValidationError, model: type[BaseModel]) -> InputError:
    """All mistakes in one message, the first one's field as the field."""
    found = error.errors(include_url=False, include_context=False)
    texts = []
    for item in found:
        field = ".".join(str(part) for part in item["loc"])
        text = "is not a known field" if item["type"] == "extra_forbidden" else item["msg"]
        texts.append((field, text))
    others = "".join(f"; {field}: {text}" for field, text in texts[1:])
    field, text = texts[0]
    return InputError(text + others, field=field, obj=model.__name__)
