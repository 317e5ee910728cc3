# SPDX-License-Identifier: Apache-2.0
"""The kind ``NodePolicy``: what the nodes with certain labels publish of their cards, and how.

Cluster-scoped; the CustomResourceDefinition in deploy/charts/gpudra/crds holds the same rules, and
a test compares the two. Read by every node agent, by the cluster side (conflicts) and by
``gpudra slices --policy``.
"""

from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from gpudra.api.config.v1alpha1 import Isolation
from gpudra.api.errors import InputError

GROUP = "gpudra.io"
VERSION = "v1alpha1"
KIND = "NodePolicy"
PLURAL = "nodepolicies"
MAX_OVERSUBSCRIPTION = 16
CONFLICT = "Conflict"


class Form(StrEnum):
    """What a card can be offered as."""

    WHOLE = "whole"
    MIG = "mig"
    SHARE = "share"
    MONITOR = "monitor"


class Effect(StrEnum):
    """Effect of a device taint."""

    NONE = "None"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


def _decimal(value: object) -> object:
    """1.5 as people mean it, not as the nearest binary fraction."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")  # noqa: TRY004 - pydantic takes this one
    return Decimal(str(value))


Oversubscription = Annotated[
    Decimal,
    BeforeValidator(_decimal),
    Field(strict=False, ge=1, le=MAX_OVERSUBSCRIPTION, allow_inf_nan=False),
]
Text = Annotated[str, Field(min_length=1, max_length=128)]
FormList = Annotated[tuple[Form, ...], Field(max_length=4)]


class _Model(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        validate_by_alias=True,
        validate_by_name=False,
        serialize_by_alias=True,
    )


class _Forms(_Model):
    """What cards are offered as. A missing field is as in the policy's own, or as the default."""

    forms: FormList | None = None
    mig: Literal["dynamic", "static"] | None = None
    memory_oversubscription: Oversubscription | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.forms is not None and len(set(self.forms)) < len(self.forms):
            raise ValueError("forms: a form comes twice")
        over = self.memory_oversubscription
        if (
            over is not None
            and over > 1
            and self.forms is not None
            and Form.SHARE not in self.forms
        ):
            raise ValueError("memoryOversubscription: is for shares, which forms leaves out")
        return self


class ModelRule(_Forms):
    """Forms of the cards with certain product names; ``*`` and ``?`` as in file names."""

    names: Annotated[tuple[Text, ...], Field(min_length=1, max_length=16)]


class XidRule(_Model):
    """The effect of the taint that a card gets for one of these XIDs."""

    codes: Annotated[
        tuple[Annotated[int, Field(ge=1, le=9999)], ...], Field(min_length=1, max_length=32)
    ]
    effect: Effect


class NodePolicySpec(_Forms):
    """What an admin wants."""

    node_selector: Annotated[Mapping[str, str], Field(max_length=16)] = {}
    managed: bool = False
    isolation: Isolation | None = None
    excluded: Annotated[tuple[Text, ...], Field(max_length=64)] = ()
    order: Literal["keep-sets", "spread"] = "keep-sets"
    models: Annotated[tuple[ModelRule, ...], Field(max_length=32)] = ()
    xids: Annotated[tuple[XidRule, ...], Field(max_length=16)] = ()

    @model_validator(mode="after")
    def _once(self) -> Self:
        codes = [code for rule in self.xids for code in rule.codes]
        if len(set(codes)) < len(codes):
            raise ValueError("xids: a code comes twice")
        return self


class Metadata(BaseModel):
    """Of the object's metadata what decides between policies."""

    model_config = ConfigDict(alias_generator=to_camel, frozen=True, validate_by_name=False)

    name: Annotated[str, Field(min_length=1)]
    uid: str = ""
    generation: int = 0
    creation_timestamp: str = ""


class NodePolicy(_Model):
    """One policy. ``status`` is written by the cluster side and not looked at here."""

    api_version: Literal["gpudra.io/v1alpha1"]
    kind: Literal["NodePolicy"]
    metadata: Metadata
    spec: NodePolicySpec
    status: Mapping[str, Any] = {}


def decode_stored(raw: Mapping[str, Any]) -> NodePolicy:
    """A policy as the API server has it: fields that are not known here are dropped.

    Raises:
        InputError: a value that is not understood; written perhaps for a newer version.
    """
    from json import dumps  # noqa: PLC0415 - strict mode takes lists for tuples from JSON only

    name = (raw.get("metadata") or {}).get("name", "")
    try:
        return NodePolicy.model_validate_json(dumps(_known(raw, NodePolicy)))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        message = str(first["msg"]).removeprefix("Value error, ")
        raise InputError(message, field=field, obj=f"nodepolicy {name}") from error


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
