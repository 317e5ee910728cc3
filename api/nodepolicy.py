# SPDX-License-Identifier: Apache-2.0
"""The kind ``NodePolicy``: what the nodes with certain labels publish of their cards, and how.

Cluster-scoped; the CustomResourceDefinition in deploy/charts/gpudra/crds holds the same rules, and
a test compares the two. Read by every node agent, by the cluster side (conflicts) and by
``gpudra slices --policy``.
"""

from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from gpudra.api.config.v1alpha1 import Isolation
from gpudra.api.objects import CrdModel, Metadata, decimal_number, decode_known

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


Oversubscription = Annotated[
    Decimal,
    BeforeValidator(decimal_number),
    Field(strict=False, ge=1, le=MAX_OVERSUBSCRIPTION, allow_inf_nan=False),
]
Text = Annotated[str, Field(min_length=1, max_length=128)]
FormList = Annotated[tuple[Form, ...], Field(max_length=4)]


class _Forms(CrdModel):
    """What cards are offered as. A missing field is as in the policy's own, or as the default."""

    forms: FormList | None = None
    mig: Literal["dynamic", "dynamic-reset", "static"] | None = None
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


class XidRule(CrdModel):
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


class NodePolicy(CrdModel):
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
    return decode_known(raw, NodePolicy)
