# SPDX-License-Identifier: Apache-2.0
"""One line a card for ``gpudra devices``: bars for memory and compute, and who holds what of it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpudra.api.quantity import Quantity
from gpudra.controller.ctl import printers
from gpudra.driver.core.accounting.facts import COMPUTE, MEMORY, MIG, SHARE, Hold, Shapes
from gpudra.driver.core.accounting.pools import CardView, GpuState, card_views

Obj = Mapping[str, Any]

_GIB = 2**30
_HEADERS = ("POOL", "GPU", "PRODUCT", "MEMORY", "COMPUTE")
_FORMS = {"gpu": "whole", "mig": "mig", "share": "share"}


def object_key(obj: Obj) -> str:
    """``namespace/name``."""
    meta = obj["metadata"]
    return f"{meta.get('namespace', '')}/{meta['name']}"


@dataclass(frozen=True, slots=True)
class Card:
    """A card with its pool, who holds it, and its taints."""

    pool: str
    view: CardView
    holders: tuple[str, ...]
    taints: tuple[str, ...]
    free_devices: tuple[str, ...]

    def as_data(self) -> dict[str, Any]:
        """Plain types, for ``-o json|yaml``; memory in bytes, compute as a part of the card."""
        view = self.view
        return {
            "pool": self.pool,
            "gpu": view.name,
            "product": view.model,
            "state": str(view.state),
            "memory": view.memory,
            "memoryHeld": view.held,
            "computeHeld": round(view.compute, 4),
            "free": dict(view.room),
            "heldBy": list(self.holders),
            "taints": list(self.taints),
            "devices": list(view.devices),
        }


def cards_of(slices: Iterable[Obj], claims: Iterable[Obj], driver: str) -> list[Card]:
    """The cards of the driver's pools in published order, pools by name.

    Args:
        slices: as the API gives them; of each pool the newest generation counts.
        claims: all of them, as the API gives them; what they hold counts.
        driver: name of the DRA driver.
    """
    shapes = Shapes(driver)
    holds, users = _holders(claims, driver)
    pools: dict[str, list[Obj]] = defaultdict(list)
    for one in slices:
        pools[one["spec"]["pool"]["name"]].append(one)
    for pool, _ in users:
        pools.setdefault(pool, [])
    return [
        card
        for pool in sorted(pools)
        for card in _of_pool(pool, pools[pool], shapes, holds.get(pool, ()), users)
    ]


def _holders(
    claims: Iterable[Obj], driver: str
) -> tuple[dict[str, list[Hold]], dict[tuple[str, str], list[str]]]:
    """What is held in each pool, and by whom each device; who only looks on is named too."""
    holds: dict[str, list[Hold]] = defaultdict(list)
    users: dict[tuple[str, str], list[str]] = defaultdict(list)
    for claim in sorted(claims, key=object_key):
        status = claim.get("status") or {}
        devices = (status.get("allocation") or {}).get("devices") or {}
        results = [one for one in devices.get("results") or () if one["driver"] == driver]
        if not results:
            continue
        pods = ", ".join(reference["name"] for reference in status.get("reservedFor") or ())
        who = f"{object_key(claim)} ({pods})" if pods else object_key(claim)
        for one in results:
            place = one["pool"], one["device"]
            if one.get("adminAccess"):
                users[place].append(f"{who} [admin]")
                continue
            hold = _hold(one)
            holds[hold.pool].append(hold)
            users[place].append(f"{who}{_amount(hold)}")
    return holds, users


def _hold(result: Obj) -> Hold:
    consumed = result.get("consumedCapacity") or {}
    amounts = {name.rpartition("/")[2]: Quantity.parse(one).value for name, one in consumed.items()}
    return Hold(
        pool=result["pool"],
        device=result["device"],
        device_class="",
        memory=amounts.get(MEMORY, 0),
        compute=amounts.get(COMPUTE, 0),
    )


def _of_pool(
    pool: str,
    slices: Sequence[Obj],
    shapes: Shapes,
    holds: Sequence[Hold],
    users: dict[tuple[str, str], list[str]],
) -> Iterable[Card]:
    facts = [shapes.raw_slice_fact(one) for one in slices]
    forms = {device.name: device.shape.form for fact in facts for device in fact.devices}
    published = {one["name"]: one for each in slices for one in each["spec"].get("devices") or ()}
    watched = _monitors(published.values(), forms)
    held = {hold.device for hold in holds}
    for view in card_views(facts, holds):
        monitors = watched.get(_uuid(published[view.devices[0]]), ()) if watched else ()
        taints = [taint for name in view.devices for taint in published[name].get("taints") or ()]
        yield Card(
            pool=pool,
            view=view,
            holders=tuple(
                f"{user}{_part(view, name) if forms.get(name) == MIG else ''}"
                for name in (*view.devices, *monitors)
                for user in users.get((pool, name), ())
            ),
            taints=tuple(dict.fromkeys(f"{taint['key']}:{taint['effect']}" for taint in taints)),
            free_devices=tuple(
                name
                for name in view.devices
                if forms[name] in view.room and (forms[name] == SHARE or name not in held)
            ),
        )
    for name in _vanished_of(pool, users, published):
        yield Card(pool, _vanished(name), tuple(users[pool, name]), (), ())


def _vanished_of(
    pool: str, users: Iterable[tuple[str, str]], published: Mapping[str, Obj]
) -> list[str]:
    return [name for where, name in users if where == pool and name not in published]


def _monitors(devices: Iterable[Obj], forms: Mapping[str, str]) -> dict[str, list[str]]:
    """Devices that only look on, by the uuid of their card."""
    found: dict[str, list[str]] = defaultdict(list)
    for device in devices:
        if device["name"] not in forms:
            found[_uuid(device)].append(device["name"])
    return found


def _uuid(device: Obj) -> str:
    values = device.get("attributes") or {}
    found = {name.rpartition("/")[2]: value.get("string") for name, value in values.items()}
    return str(found.get("parentUUID") or found.get("uuid") or device["name"])


def _vanished(name: str) -> CardView:
    """What a claim holds and nobody publishes never disappears from the list."""
    return CardView(name, "not published", 0, 0, 1.0, GpuState.WHOLE, False, {}, (name,))


def _amount(hold: Hold) -> str:
    if not hold.memory and not hold.compute:
        return ""
    compute = f" {hold.compute}%" if hold.compute else ""
    return f" [{hold.memory / _GIB:.4g}Gi{compute}]"


def _part(view: CardView, device: str) -> str:
    """Which part of the card, from the name of its device."""
    return f" [{device.removeprefix(f'{view.name}-')}]"


def table(
    cards: Sequence[Card], *, free: bool, look: printers.Look
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Headers and rows; with ``free`` what is left instead of who has the rest."""
    last = ("LARGEST FREE",) if free else ("HELD BY", "TAINTS")
    rows = [
        (
            card.pool,
            card.view.name,
            card.view.model,
            _memory(card.view, look),
            f"{printers.bar(card.view.compute, look)} {card.view.compute:4.0%}",
            *((_room(card.view),) if free else (", ".join(card.holders), ", ".join(card.taints))),
        )
        for card in cards
    ]
    return _HEADERS + last, rows


def _memory(view: CardView, look: printers.Look) -> str:
    if not view.memory:
        return ""
    bar = printers.bar(view.held / view.memory, look)
    return f"{bar} {view.held / _GIB:5.1f}/{view.memory / _GIB:.1f}Gi"


def _room(view: CardView) -> str:
    return ", ".join(
        f"{_FORMS.get(form, form)} {size / _GIB:.1f}Gi" for form, size in view.room.items()
    )
