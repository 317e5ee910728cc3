# SPDX-License-Identifier: Apache-2.0
"""GpuConfig, MigConfig and ShareConfig, as users write them into ``config[].opaque.parameters``.

Opaque parameters are user input that the API server does not look at, so they are checked here:
strictly for what a user sends (an unknown field is a typing error that would enforce nothing in
silence), leniently for what was accepted once and is stored (written perhaps by a newer version).

Called by the node agent at prepare, by ``gpudra validate`` and by the admission webhook.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from gpudra.api.errors import InputError
from gpudra.api.quantity import Quantity

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


MIB = 2**20
# GPU-<uuid> and MIG-<uuid> as NVML writes them.
_UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def _memory(text: str) -> str:
    """Whole MiB, at least one, in a unit that says so.

    Raises:
        ValueError: anything else.
    """
    try:
        amount = Quantity.parse(text)
    except InputError as error:
        raise ValueError(
            f"{text!r} is not an amount of memory, write it as 512Mi or 10Gi"
        ) from error
    if not amount.is_integer() or amount.as_integer() % MIB:
        raise ValueError(f"{text} is no whole number of MiB, write it in Mi or Gi")
    if amount.as_integer() < MIB:
        raise ValueError(f"{text} is less than 1Mi")
    return text


def _uuid(text: str) -> str:
    if not _UUID.fullmatch(text):
        raise ValueError(
            f"{text!r} is not the uuid of a GPU or MIG device, as nvidia-smi -L tells it"
        )
    return text


Memory = Annotated[str, Field(strict=True), AfterValidator(_memory)]
DeviceUuid = Annotated[str, AfterValidator(_uuid)]


class MpsLimits(_Shape):
    """What one MPS client, a process, may use of a device that is given as a whole."""

    active_thread_percentage: Annotated[
        int | None,
        Field(
            strict=True,
            ge=1,
            le=100,
            description="Part of the multiprocessors that a client may use, 1 to 100.",
            examples=[50],
        ),
    ] = None
    pinned_memory_limit: Annotated[
        Memory | None,
        Field(
            description="Memory that a client may use of each device; whole MiB, 1Mi or more.",
            examples=["10Gi"],
        ),
    ] = None
    pinned_memory_limits: Annotated[
        Mapping[DeviceUuid, Memory],
        Field(
            description="The same for single devices, by uuid; goes before `pinnedMemoryLimit`. "
            "A uuid that the claim did not get is refused at prepare.",
            examples=[{"GPU-0f01d861-80c1-5881-8bfc-0ebb3e92ac5e": "20Gi"}],
        ),
    ] = {}


class WholeSharing(_Shape):
    """How the containers that share one whole GPU, by sharing its claim, are kept apart."""

    isolation: Annotated[
        Literal[Isolation.MPS, Isolation.TIME_SLICE, Isolation.NONE] | None,
        Field(description="Backend to use; without it the GPU is not shared by a backend."),
    ] = None
    time_slice: Annotated[
        TimeSliceLength | None,
        Field(description="Length of a time slice; only with isolation `time-slice`."),
    ] = None
    mps: Annotated[
        MpsLimits | None,
        Field(description="Limits of each client; only with isolation `mps`."),
    ] = None


class MigSharing(_Shape):
    """How the containers that share one MIG device, by sharing its claim, are kept apart."""

    isolation: Annotated[
        Literal[Isolation.MPS, Isolation.NONE] | None,
        Field(description="Backend to use; without it the device is not shared by a backend."),
    ] = None
    mps: Annotated[
        MpsLimits | None,
        Field(description="Limits of each client; only with isolation `mps`."),
    ] = None


class ShareSharing(_Shape):
    """How the shares of one GPU are kept apart. Limits are what the claim reserved."""

    isolation: Annotated[
        Isolation | None,
        Field(
            description="Backend to use; without it the node's policy decides, else the node takes "
            "the strongest that it has. What is asked for and cannot be had is refused."
        ),
    ] = None
    time_slice: Annotated[
        TimeSliceLength | None,
        Field(description="Length of a time slice; only with isolation `time-slice`."),
    ] = None


class GpuConfig(_Shape):
    """Settings of a whole GPU."""

    api_version: Annotated[
        Literal["gpudra.io/v1alpha1"], Field(description="Always `gpudra.io/v1alpha1`.")
    ]
    kind: Annotated[Literal["GpuConfig"], Field(description="Always `GpuConfig`.")]
    sharing: Annotated[WholeSharing, Field(description="See below.")] = WholeSharing()


class MigConfig(_Shape):
    """Settings of a MIG device."""

    api_version: Annotated[
        Literal["gpudra.io/v1alpha1"], Field(description="Always `gpudra.io/v1alpha1`.")
    ]
    kind: Annotated[Literal["MigConfig"], Field(description="Always `MigConfig`.")]
    sharing: Annotated[MigSharing, Field(description="See below.")] = MigSharing()


class ShareConfig(_Shape):
    """Settings of a share of a GPU."""

    api_version: Annotated[
        Literal["gpudra.io/v1alpha1"], Field(description="Always `gpudra.io/v1alpha1`.")
    ]
    kind: Annotated[Literal["ShareConfig"], Field(description="Always `ShareConfig`.")]
    sharing: Annotated[ShareSharing, Field(description="See below.")] = ShareSharing()


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
    _check_no_null(parameters, "", model.__name__)
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
        inner = _nested(field.annotation)
        kept[key] = _known(raw[key], inner) if inner else raw[key]
    return kept


def _nested(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, also if it may be None."""
    for one in (annotation, *get_args(annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def _check_no_null(raw: Any, place: str, obj: str) -> None:
    """Whoever writes a field means something by it; an empty object means the defaults."""
    for name, value in raw.items() if isinstance(raw, Mapping) else ():
        field = f"{place}.{name}" if place else str(name)
        if value is None:
            raise InputError("is null", field=field, obj=obj, hint="set it or leave it out")
        _check_no_null(value, field, obj)


def _check(config: Config) -> None:
    """Rules between fields."""
    sharing, obj = config.sharing, type(config).__name__
    for field, backend in (("time_slice", Isolation.TIME_SLICE), ("mps", Isolation.MPS)):
        if getattr(sharing, field, None) is not None and sharing.isolation is not backend:
            raise InputError(
                f"means something only with isolation {backend}",
                field=f"sharing.{to_camel(field)}",
                obj=obj,
                hint=f"set sharing.isolation to {backend} or drop the field",
            )


def _input_error(error: ValidationError, model: type[BaseModel]) -> InputError:
    """All mistakes in one message, the first one's field as the field."""
    found = error.errors(include_url=False, include_context=False)
    texts = []
    for item in found:
        field = ".".join(str(part) for part in item["loc"])
        text = "is not a known field" if item["type"] == "extra_forbidden" else item["msg"]
        text = text.removeprefix("Value error, ")
        texts.append((field, text))
    others = "".join(f"; {field}: {text}" for field, text in texts[1:])
    field, text = texts[0]
    return InputError(text + others, field=field, obj=model.__name__)
