# SPDX-License-Identifier: Apache-2.0
"""In which forms the cards of a node are offered: whole, in parts, shared, watched.

gpudra.driver.core.nodepolicy makes a PublishPolicy of what admins write; the agent narrows it to
what it can prepare; gpudra.driver.core.allocatable makes devices of it.
"""

import dataclasses
import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType

from gpudra.api.errors import InputError
from gpudra.driver.core.inventory import Gpu

ONE = Decimal(1)


class DeviceKind(StrEnum):
    """The forms in which a card is offered; the value is that of the attribute ``type``."""

    WHOLE = "gpu"
    MIG = "mig"
    SHARE = "share"
    MONITOR = "monitor"


# The words of people: the command line and NodePolicy. "gpu" would read as "every GPU" there.
FORM_WORDS: Mapping[str, DeviceKind] = MappingProxyType(
    {
        "whole": DeviceKind.WHOLE,
        "mig": DeviceKind.MIG,
        "share": DeviceKind.SHARE,
        "monitor": DeviceKind.MONITOR,
    }
)
EVERY_FORM = frozenset(DeviceKind)


class DeviceOrder(StrEnum):
    """Which cards the first-fit scheduler should take first.

    KEEP_SETS takes the worst-connected cards first and finishes one set before it breaks the
    next, so that good sets stay whole. SPREAD goes round the PCIe switches, for single-GPU work
    that wants bandwidth to the host.
    """

    KEEP_SETS = "keep-sets"
    SPREAD = "spread"


class MigMode(StrEnum):
    """Where MIG devices come from.

    DYNAMIC offers every placement and creates the instance when a claim is prepared. STATIC offers
    the instances that somebody has made, and never makes or destroys one. DYNAMIC_RESET is DYNAMIC,
    and a card whose mode switches with a reset only (Ampere) is offered in every form too: the
    driver resets it when a claim needs the other mode, which takes a card that nobody uses.
    """

    DYNAMIC = "dynamic"
    DYNAMIC_RESET = "dynamic-reset"
    STATIC = "static"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardForms:
    """What one card is offered as.

    Attributes:
        kinds: the forms that are wanted. What the card cannot be is not offered.
        mig: see MigMode.
        memory_oversubscription: shares together may reserve so many times the card's memory.
    """

    kinds: frozenset[DeviceKind] = frozenset({DeviceKind.WHOLE})
    mig: MigMode = MigMode.DYNAMIC
    memory_oversubscription: Decimal = ONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelForms:
    """Forms of the cards whose product name fits one of the patterns.

    Attributes:
        names: product names; ``*`` and ``?`` as in file names, upper and lower case alike.
        forms: of these cards.
    """

    names: tuple[str, ...]
    forms: CardForms

    def fits(self, gpu: Gpu) -> bool:
        """Whether the card is meant. One that tells no name is meant by ``*`` alone."""
        product = (gpu.product_name or "").lower()
        return any(fnmatch.fnmatchcase(product, name.lower()) for name in self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPolicy:
    """What of a node is published, and how.

    Attributes:
        order: see DeviceOrder.
        excluded: keys of cards that are not published at all.
        forms: of every card that no entry of ``models`` means.
        models: forms by model; the first entry that fits a card decides.
        isolation: what shares are kept apart with where the claim does not say; None: the
            strongest that the node has.
        managed: the devices are given out by gpudra's controller, not by the stock scheduler.
        xid_effects: effect of the taint of an XID, where it is not the built-in one.
    """

    order: DeviceOrder = DeviceOrder.KEEP_SETS
    excluded: frozenset[str] = frozenset()
    forms: CardForms = field(default_factory=CardForms)
    models: tuple[ModelForms, ...] = ()
    isolation: str | None = None
    managed: bool = False
    xid_effects: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, gpu: Gpu) -> CardForms:
        """The forms of one card; none for an excluded one."""
        if gpu.key in self.excluded:
            return CardForms(kinds=frozenset())
        return next((one.forms for one in self.models if one.fits(gpu)), self.forms)

    def within(self, kinds: frozenset[DeviceKind]) -> "PublishPolicy":
        """The same policy with no other forms than these."""

        def narrowed(forms: CardForms) -> CardForms:
            return dataclasses.replace(forms, kinds=forms.kinds & kinds)

        models = tuple(dataclasses.replace(one, forms=narrowed(one.forms)) for one in self.models)
        return dataclasses.replace(self, forms=narrowed(self.forms), models=models)


# What a node offers that no NodePolicy names: every form that its cards can have.
EVERYTHING = PublishPolicy(forms=CardForms(kinds=EVERY_FORM))


def parse_forms(words: str | Iterable[str], where: str = "forms") -> frozenset[DeviceKind]:
    """``whole,mig`` as kinds.

    Raises:
        InputError: a word that names no form.
    """
    found = words.split(",") if isinstance(words, str) else words
    kinds = set()
    for word in (one.strip() for one in found):
        if not word:
            continue
        if word not in FORM_WORDS:
            raise InputError(
                f"{word!r} is no form of a card",
                field=where,
                hint=f"use some of {', '.join(FORM_WORDS)}",
            )
        kinds.add(FORM_WORDS[word])
    return frozenset(kinds)


def form_words(kinds: Iterable[DeviceKind]) -> str:
    """Kinds as ``whole,mig``, always in the same order."""
    wanted = frozenset(kinds)
    return ",".join(word for word, kind in FORM_WORDS.items() if kind in wanted)
