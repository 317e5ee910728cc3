# SPDX-License-Identifier: Apache-2.0
"""The ResourceClaimTemplate of a request."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpudra.api.errors import InputError
from gpudra.api.names import MAX_SUBREQUESTS
from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import API_VERSION
from gpudra.driver.core.conversion.names import name_of
from gpudra.driver.core.conversion.types import NVIDIA, WHOLE_CARD, Ask, Cards, Classes, Form

REQUEST = "gpu"
MIB = 2**20
# Which cards a template has considered, where its request is a part of a card.
CARD_SIZES = "gpudra.io/card-sizes"
MANAGED_BY = {"app.kubernetes.io/managed-by": "gpudra"}
_MATCH = {"nvlink": "{driver}/nvlinkDomain", "numa": "resource.kubernetes.io/numaNode"}
SAY_CARDS = "say which cards there are"
# Everything else in a name is compared without; HAMi's own names begin with the vendor, too.
_DROPPED = " -_./+()"


@dataclass(frozen=True, slots=True)
class _Choice:
    """One way in which a request can be served: a size, and what its cards have in common."""

    name: str
    near: str
    fields: dict[str, Any]


def template_of(
    ask: Ask, *, cards: Cards | None = None, classes: Classes | None = None, namespace: str = ""
) -> dict[str, Any]:
    """The template; equal requests, cards and classes give equal templates.

    Args:
        ask: the request.
        cards: needed if ``ask.needs_cards``.
        classes: of the driver.
        namespace: of the template; empty: none is written.

    Raises:
        InputError: there is no card that could serve it, or there are too many kinds.
    """
    cards, classes = cards or Cards(), classes or Classes()
    metadata: dict[str, Any] = {"name": name_of(ask), "labels": dict(MANAGED_BY)}
    if namespace:
        metadata["namespace"] = namespace
    if ask.needs_cards:
        metadata["annotations"] = {CARD_SIZES: sizes_text(ask, cards)}
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceClaimTemplate",
        "metadata": metadata,
        "spec": {"spec": {"devices": _devices(ask, cards, classes)}},
    }


def sizes_text(ask: Ask, cards: Cards) -> str:
    """The sizes that were considered, for the annotation and for people."""
    sizes = cards.shares if ask.form is Form.SHARE else _parts(ask, cards)
    unit = MIB if ask.form is Form.SHARE else 1
    return ",".join(str(Quantity.bytes(size * unit)) for size in sizes)


def _devices(ask: Ask, cards: Cards, classes: Classes) -> dict[str, Any]:
    choices = list(_choices(ask, cards, classes))
    request: dict[str, Any] = {"name": REQUEST}
    if len(choices) == 1 and not choices[0].near:
        request["exactly"] = choices[0].fields
    else:
        request["firstAvailable"] = [{"name": one.name, **one.fields} for one in choices]
    devices: dict[str, Any] = {"requests": [request]}
    constraints = list(_constraints(ask, choices, classes.driver))
    if constraints:
        devices["constraints"] = constraints
    if ask.isolation:
        devices["config"] = [_config(ask, classes.driver)]
    return devices


def _choices(ask: Ask, cards: Cards, classes: Classes) -> Iterator[_Choice]:
    """All ways, best first: near to each other before anywhere, small cards before large ones."""
    ways = list(_sizes(ask, cards, classes.driver))
    nearness = (*ask.near, "")
    if len(ways) * len(nearness) > MAX_SUBREQUESTS:
        raise InputError(
            f"{len(ways) * len(nearness)} choices would be needed, for {len(ways)} sizes of cards,"
            f" and a claim can have {MAX_SUBREQUESTS}",
            hint="ask for MiB instead of a part, or choose cards by type in a template of your own",
        )
    for near in nearness:
        for name, selectors, amounts in ways:
            fields = {
                "deviceClassName": classes.of(ask),
                "allocationMode": "ExactCount",
                "count": ask.count,
                **_selectors([*_selection(ask, classes.driver), *selectors]),
                **({"capacity": {"requests": dict(amounts)}} if amounts else {}),
            }
            yield _Choice("-".join(part for part in (near, name) if part) or "any", near, fields)


def _sizes(ask: Ask, cards: Cards, driver: str) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """For each size of card that has to be told apart: its name, a selector, and the amounts."""
    compute = {"compute": str(ask.compute)} if ask.compute else {}
    if ask.fraction:
        if not cards.shares:
            raise InputError(
                f"a part of a card ({ask.fraction / 100:g} %) is no amount without cards to take it of",
                hint=SAY_CARDS,
            )
        for size in cards.shares:
            amount = max(1, size * ask.fraction // WHOLE_CARD)
            yield (
                f"of-{size}mi",
                [_of_size(driver, f"{size}Mi")],
                {"memory": f"{amount}Mi", **compute},
            )
    elif ask.form is Form.MIG and ask.memory:
        parts = _parts(ask, cards)
        if not parts:
            raise InputError(
                f"no card has MIG devices of {ask.memory}Mi or more",
                hint="ask for less" if cards.parts else SAY_CARDS,
            )
        for part in parts:
            yield f"of-{part // MIB}mi", [_of_size(driver, str(Quantity.bytes(part)))], {}
    else:
        memory = {"memory": f"{ask.memory}Mi"} if ask.memory else {}
        yield "", [], {**memory, **compute}


def _parts(ask: Ask, cards: Cards) -> tuple[int, ...]:
    """Sizes of MIG devices that suffice, as many as a claim can name: the smallest ones."""
    room = MAX_SUBREQUESTS // (len(ask.near) + 1)
    return tuple(part for part in cards.parts if part >= ask.memory * MIB)[:room]


def _of_size(driver: str, size: str) -> str:
    return f'device.capacity["{driver}"].memory.compareTo(quantity("{size}")) == 0'


def _selectors(expressions: Sequence[str]) -> dict[str, Any]:
    return (
        {"selectors": [{"cel": {"expression": one}} for one in expressions]} if expressions else {}
    )


def _selection(ask: Ask, driver: str) -> Iterator[str]:
    """What the cards have to be. Every optional attribute is guarded: an error ends the attempt."""
    attributes = f'device.attributes["{driver}"]'
    if ask.form is not Form.WHOLE or ask.vendor != NVIDIA:
        yield f'{attributes}.vendor == "{ask.vendor}"'
    if ask.profile:
        yield f'{attributes}.profile == "{ask.profile}"'
    # The uuid of a MIG device is its own, and it has none before it is made.
    uuid = "parentUUID" if ask.form is Form.MIG else "uuid"
    name = (
        f'("{ask.vendor}" + {attributes}.productName.lowerAscii()'
        + "".join(f'.replace("{one}", "")' for one in _DROPPED)
        + ")"
    )
    if ask.types:
        yield f'"productName" in {attributes} && {_texts(ask.types)}.exists(t, {name}.contains(t))'
    if ask.not_types:
        yield f'!("productName" in {attributes}) || !{_texts(ask.not_types)}.exists(t, {name}.contains(t))'
    if ask.uuids:
        yield f'"{uuid}" in {attributes} && {attributes}.{uuid}.lowerAscii() in {_uuids(ask.uuids)}'
    if ask.not_uuids:
        yield (
            f'!("{uuid}" in {attributes}) ||'
            f" !({attributes}.{uuid}.lowerAscii() in {_uuids(ask.not_uuids)})"
        )


def _uuids(found: Sequence[str]) -> str:
    ends = (0, 8, 12, 16, 20, 32)
    return _texts(
        [
            "gpu-" + "-".join(one[start:end] for start, end in itertools.pairwise(ends))
            for one in found
        ]
    )


def _texts(found: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{one}"' for one in found) + "]"


def _constraints(ask: Ask, choices: Sequence[_Choice], driver: str) -> Iterator[dict[str, Any]]:
    if ask.numa:
        yield {"requests": [REQUEST], "matchAttribute": _MATCH["numa"]}
    for near in ask.near:
        for one in choices:
            if one.near == near:
                attribute = _MATCH[near].format(driver=driver)
                yield {"requests": [f"{REQUEST}/{one.name}"], "matchAttribute": attribute}
    if ask.count > 1 and ask.form is not Form.WHOLE and not ask.profile:
        # Without it several shares, or parts, could lie on one card. Who counts MIG profiles, as the
        # device plugin has them, never minded.
        attribute = "parentUUID" if ask.form is Form.MIG else "uuid"
        yield {"requests": [REQUEST], "distinctAttribute": f"{driver}/{attribute}"}


def _config(ask: Ask, driver: str) -> dict[str, Any]:
    parameters = {
        "apiVersion": "gpudra.io/v1alpha1",
        "kind": "ShareConfig",
        "sharing": {"isolation": ask.isolation},
    }
    return {"requests": [REQUEST], "opaque": {"driver": driver, "parameters": parameters}}
