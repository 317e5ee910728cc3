# SPDX-License-Identifier: Apache-2.0
"""The kind ``Queue``: what a team may use of the managed GPUs, and how much of it is its own.

Cluster-scoped; the CustomResourceDefinition in deploy/charts/gpudra/crds holds the same rules, and
a test compares the two. Decoded by managed mode, which gives the meaning
(gpudra.driver.core.queueing).
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gpudra.api.errors import InputError
from gpudra.api.objects import CrdModel, Metadata, Seconds, decimal_number, decode_known
from gpudra.api.quantity import Quantity

GROUP: Final = "gpudra.io"
VERSION: Final = "v1alpha1"
KIND: Final = "Queue"
PLURAL: Final = "queues"

GPUS: Final = "gpus"
MEMORY: Final = "memory"
COMPUTE: Final = "compute"
CLASS_PREFIX: Final = "class/"
MODEL_PREFIX: Final = "model/"
MILLI: Final = 1000
"""``gpus`` and ``model/…`` are counted in thousandths of a card."""

MAX_RESOURCES = 16
MAX_MEMORY = 2**60
_CARDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,3})?")
_COUNT = re.compile(r"[0-9]{1,9}")
_RESOURCE = re.compile(
    r"gpus|memory|compute|(class|model)/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)


def parse_amount(resource: str, text: str) -> int:
    """An amount in the unit in which it is counted.

    Returns:
        Thousandths of a card for ``gpus`` and ``model/…``, bytes for ``memory``, percent points
        (100 are one card) for ``compute``, devices for ``class/…``.

    Raises:
        InputError: the resource is none of these, or the text is no amount of it.
    """
    if not _RESOURCE.fullmatch(resource):
        raise InputError(
            f"{resource!r} is none of gpus, memory, compute, class/NAME, model/NAME", field=resource
        )
    if resource == MEMORY:
        return _memory(text)
    if resource == GPUS or resource.startswith(MODEL_PREFIX):
        if not _CARDS.fullmatch(text):
            raise InputError(
                f"{text!r} is no number of cards, such as 4 or 2.5 (three decimals at most)",
                field=resource,
            )
        return int(Decimal(text) * MILLI)
    if not _COUNT.fullmatch(text):
        unit = "percent points, such as 250" if resource == COMPUTE else "devices, such as 4"
        raise InputError(f"{text!r} is no number of {unit}", field=resource)
    return int(text)


def _memory(text: str) -> int:
    try:
        amount = Quantity.parse(text)
    except (InputError, ValueError) as error:
        raise InputError(f"{text!r} is no amount of memory, such as 80Gi", field=MEMORY) from error
    if not amount.is_integer() or not 0 <= amount.value <= MAX_MEMORY:
        raise InputError(f"{text!r} is not between 0 and 1Ei, in whole bytes", field=MEMORY)
    return amount.value


def _texts(value: object) -> object:
    """Whole numbers may be written without quotes, as in Kubernetes' own quotas."""
    if not isinstance(value, Mapping):
        return value
    found = {}
    for key, amount in value.items():
        if isinstance(amount, float):
            raise ValueError(f"{key}: write {amount} in quotes")  # noqa: TRY004 - for pydantic
        whole = isinstance(amount, int) and not isinstance(amount, bool)
        found[key] = str(amount) if whole else amount
    return found


def _readable(amounts: Mapping[str, str]) -> Mapping[str, str]:
    for resource, text in amounts.items():
        try:
            parse_amount(resource, text)
        except InputError as error:
            raise ValueError(f"{resource}: {error.what}") from error
    return amounts


AmountTexts = Annotated[
    Mapping[str, str],
    BeforeValidator(_texts),
    AfterValidator(_readable),
    Field(max_length=MAX_RESOURCES),
]
Weight = Annotated[
    Decimal,
    BeforeValidator(decimal_number),
    Field(strict=False, gt=0, le=1_000_000, allow_inf_nan=False),
]
QueueName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


class QueueSpec(CrdModel):
    """What an admin grants.

    Attributes:
        parent: the queue that this one is a part of; None: of the cluster.
        weight: of two queues that both want more than their quota, the part that this one gets.
        guarantee: never lent; what others use never eats into it. Not of classes, since how many
            devices a class has depends on what is cut out of the cards.
        quota: this queue's own; lent while it is idle, and taken back. Never less than the guarantee.
        limit: never exceeded.
        priority: among queues that borrow, the higher is served first.
        reclaimable: whether what it borrows may be taken back.
        preempt_min_runtime: a pod runs at least so long before one of its queue evicts it.
        reclaim_min_runtime: the same before another queue does.
    """

    parent: QueueName | None = None
    weight: Weight = Decimal(1)
    guarantee: AmountTexts = Field(default_factory=dict)
    quota: AmountTexts = Field(default_factory=dict)
    limit: AmountTexts = Field(default_factory=dict)
    priority: Annotated[int, Field(ge=-1_000_000_000, le=1_000_000_000)] = 0
    reclaimable: bool = True
    preempt_min_runtime: Seconds = 0
    reclaim_min_runtime: Seconds = 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for resource in self.guarantee:
            if resource.startswith(CLASS_PREFIX):
                raise ValueError(f"guarantee: {resource}: a class has no fixed number of devices")
        for field in ("guarantee", "quota"):
            for resource, text in getattr(self, field).items():
                top = self.limit.get(resource)
                if top is not None and parse_amount(resource, text) > parse_amount(resource, top):
                    raise ValueError(f"limit: {resource} is below the {field}")
        return self


class Queue(CrdModel):
    """One queue. ``status`` is written by managed mode and not looked at here."""

    api_version: Literal["gpudra.io/v1alpha1"]
    kind: Literal["Queue"]
    metadata: Metadata
    spec: QueueSpec = QueueSpec()
    status: Mapping[str, Any] = {}

    @property
    def name(self) -> str:
        """Its name, which pods carry as a label."""
        return self.metadata.name

    @classmethod
    def decode(cls, raw: Mapping[str, Any]) -> Self:
        """A queue as the API server has it: fields that are not known here are dropped.

        Raises:
            InputError: a value that is not understood; written perhaps for a newer version.
        """
        return decode_known(raw, cls)
