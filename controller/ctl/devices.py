# SPDX-License-Identifier: Apache-2.0
"""``gpudra devices``: every published GPU, what it is and who holds it.

Reads ResourceSlices and ResourceClaims, nothing else: what is shown is what the scheduler goes
by. With ``--hardware`` it shows what a node with that hardware would publish, without a cluster;
with ``--local``, or where ``GPUDRA_NVML_LIBRARY`` names a library, this machine's own cards.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpudra.api.names import split_qualified_name
from gpudra.api.resource_v1 import Device, DeviceTaintRule, ResourceClaim, ResourceSlice
from gpudra.controller.ctl import cards, cluster, printers, watching

if TYPE_CHECKING:
    from gpudra.driver.core.inventory import Inventory

WIDE = "wide"
_HEADERS = ("POOL", "DEVICE", "TYPE", "PRODUCT", "MEMORY", "HELD BY", "TAINTS")
_WIDE_HEADERS = ("NUMA", "PCIE ROOT", "PCIE SWITCH", "NVLINK DOMAIN")
_STANDARD = "resource.kubernetes.io"
_GIB = 2**30

DeviceKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Holder:
    """One claim that has been given a device.

    Attributes:
        claim: ``namespace/name``.
        request: the request of the claim that the device answers.
        admin_access: whether it only looks on, beside other holders.
        consumers: names of the pods (or pod groups) that may use the claim now.
    """

    claim: str
    request: str
    admin_access: bool
    consumers: tuple[str, ...]

    def __str__(self) -> str:
        users = f" ({', '.join(self.consumers)})" if self.consumers else ""
        return f"{self.claim}{users}{' [admin]' if self.admin_access else ''}"


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device with its holders. ``device`` is None when a claim holds what is not published."""

    driver: str
    pool: str
    name: str
    device: Device | None
    holders: tuple[Holder, ...]

    def attribute(self, name: str) -> object:
        """Value of an attribute, named with or without the driver's domain; None if absent."""
        wanted = split_qualified_name(name, self.driver)
        values = self.device.attributes.items() if self.device else ()
        for key, value in values:
            if split_qualified_name(key, self.driver) == wanted:
                return value
        return None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See gpudra.controller.ctl.main."""
    cluster.add_cluster_arguments(parser)
    parser.add_argument("--driver", default=cluster.DEFAULT_DRIVER, help="name of the DRA driver")
    parser.add_argument("--node", metavar="NAME", help="only the pool of this node")
    parser.add_argument(
        "--hardware",
        metavar="FILE",
        help="a Hardware file or the name of a profile, instead of a cluster",
    )
    parser.add_argument(
        "--local",
        nargs="?",
        const="nvml",
        choices=("nvml", "amd"),
        help="this machine's own cards, read with nvml (default) or amd's sysfs, instead of a "
        "cluster; implied where GPUDRA_NVML_LIBRARY is set and no cluster is named",
    )
    parser.add_argument(
        "--free", action="store_true", help="only what has room for one more claim, and how much"
    )
    parser.add_argument(
        "--forms",
        action="store_true",
        help="a line for each form of a card (whole, MIG, share, monitor) instead of one a card; "
        "so does -o wide",
    )
    watching.add_watch_argument(parser)
    parser.add_argument(
        "--topology",
        action="store_true",
        help="also print how the cards of a node reach each other, as nvidia-smi topo -m does",
    )
    printers.add_output_argument(parser, (printers.TABLE, WIDE, printers.JSON, printers.YAML))


def run(args: argparse.Namespace) -> int:
    """See gpudra.controller.ctl.main."""
    if args.hardware or _is_local(args):
        inventory = _inventory(args)
        found = [one.to_dict() for one in _published(inventory, args)]
        _show(args, (found, [], []), inventory)
    elif args.watch:
        watching.follow(args, _sources(args), lambda found: _show(args, found))
    else:
        _show(args, cluster.ask(args, lambda client: _ask(client, args)))
    return 0


def _show(
    args: argparse.Namespace,
    found: Sequence[list[dict[str, Any]]],
    inventory: "Inventory | None" = None,
) -> None:
    slices, claims = _tainted(found[0], found[2]), found[1]
    if args.node:
        slices = [one for one in slices if one["spec"]["pool"]["name"] == args.node]
    shown = cards.cards_of(slices, claims, args.driver)
    shown = [one for one in shown if args.node in (None, one.pool)]
    if args.free:
        shown = [one for one in shown if one.view.room]
    every_form = args.forms or args.output != printers.TABLE
    decoded = (
        [ResourceSlice.from_dict(raw) for raw in slices] if every_form or args.topology else []
    )
    views = _views(args, decoded, claims, shown) if every_form else []
    if args.output in (printers.JSON, printers.YAML):
        data = {
            "items": [view_as_data(view) for view in views],
            "cards": [one.as_data() for one in shown],
        }
        printers.print_data(data, args.output)
        return
    if every_form:
        headers, rows = _table(views, wide=args.output == WIDE)
    else:
        headers, rows = cards.table(shown, free=args.free, look=printers.Look.of(sys.stdout))
    nothing = "nothing of {} is free" if args.free and slices else "no devices of {} found"
    printers.print_table(headers, rows, nothing=nothing.format(args.driver))
    if args.topology or (_is_local(args) and rows):
        _print_topology(args, inventory, decoded)


def _views(
    args: argparse.Namespace,
    slices: Sequence[ResourceSlice],
    claims: Sequence[dict[str, Any]],
    shown: Sequence[cards.Card],
) -> list[DeviceView]:
    """Every form of every card; with ``--free`` those that could be given out."""
    decoded = [ResourceClaim.from_dict(raw) for raw in claims]
    found = [
        view
        for view in device_views(slices, decoded, args.driver)
        if args.node in (None, view.pool)
    ]
    if not args.free:
        return found
    free = {(one.pool, name) for one in shown for name in one.free_devices}
    return [view for view in found if (view.pool, view.name) in free]


def _tainted(
    slices: Sequence[dict[str, Any]], rules: Sequence[dict[str, Any]]
) -> Sequence[dict[str, Any]]:
    """The slices with the taints that rules add."""
    if not rules:
        return slices
    from gpudra.controller.ctl.cordon import with_rules
    from gpudra.driver.core.allocator.taints import rules_for_pool

    known = [DeviceTaintRule.from_dict(raw) for raw in rules]

    def changed(raw: dict[str, Any]) -> dict[str, Any]:
        spec = raw["spec"]
        if not rules_for_pool(known, (spec["driver"], spec["pool"]["name"])):
            return raw
        return with_rules([ResourceSlice.from_dict(raw)], known)[0].to_dict()

    return [changed(raw) for raw in slices]


def _print_topology(
    args: argparse.Namespace, inventory: "Inventory | None", slices: Iterable[ResourceSlice]
) -> None:
    from gpudra.controller.ctl import topology

    if inventory is not None:
        root = topology.host_root() if _is_local(args) else None
        print(f"\n{topology.inventory_matrix(inventory, root)}")
        return
    for pool, text in topology.slices_matrix(_newest(slices, args.driver), args.driver).items():
        if args.node in (None, pool):
            print(f"\n{pool}\n{text}")


def device_table(
    slices: Iterable[ResourceSlice], claims: Iterable[ResourceClaim], driver: str, *, wide: bool
) -> str:
    """What the command prints for these objects."""
    return printers.format_table(*_table(device_views(slices, claims, driver), wide=wide))


def device_views(
    slices: Iterable[ResourceSlice], claims: Iterable[ResourceClaim], driver: str
) -> tuple[DeviceView, ...]:
    """Every device of the driver's pools in published order, pools by name.

    Only the newest generation of a pool counts, as for the scheduler. A device that a claim holds
    and no slice lists is shown after the devices of its pool.
    """
    held = holders_by_device(claims)
    published: dict[DeviceKey, Device] = {}
    for resource_slice in _newest(slices, driver):
        spec = resource_slice.spec
        for device in spec.devices:
            published[spec.driver, spec.pool.name, device.name] = device
    vanished = sorted(key for key in held if key not in published and key[0] == driver)
    keys = sorted([*published, *vanished], key=lambda key: key[:2])  # stable: order inside a pool
    return tuple(
        DeviceView(*key, device=published.get(key), holders=held.get(key, ())) for key in keys
    )


def holders_by_device(claims: Iterable[ResourceClaim]) -> dict[DeviceKey, tuple[Holder, ...]]:
    """Which claims hold which device, by (driver, pool, device)."""
    found: dict[DeviceKey, tuple[Holder, ...]] = {}
    for claim in sorted(claims, key=lambda claim: claim.key):
        allocation = claim.status.allocation
        consumers = tuple(reference.name for reference in claim.status.reserved_for)
        for result in allocation.devices.results if allocation else ():
            key = (result.driver, result.pool, result.device)
            holder = Holder(claim.key, result.request, bool(result.admin_access), consumers)
            found[key] = (*found.get(key, ()), holder)
    return found


def view_as_data(view: DeviceView) -> dict[str, Any]:
    """The view in plain types, for ``-o json|yaml``."""
    return {
        "driver": view.driver,
        "pool": view.pool,
        "device": view.name,
        "published": view.device is not None,
        **_device_as_data(view.device),
        "heldBy": [
            {
                "claim": holder.claim,
                "request": holder.request,
                "adminAccess": holder.admin_access,
                "consumers": list(holder.consumers),
            }
            for holder in view.holders
        ],
    }


def _device_as_data(device: Device | None) -> dict[str, Any]:
    if device is None:
        return {}
    raw = device.to_dict()
    return {key: raw[key] for key in ("attributes", "capacity", "taints") if key in raw}


def _newest(slices: Iterable[ResourceSlice], driver: str) -> list[ResourceSlice]:
    """The slices of each pool's newest generation, by name: the index in it is the order."""
    mine = sorted(
        (found for found in slices if found.spec.driver == driver),
        key=lambda found: found.metadata.name,
    )
    newest: dict[str, int] = {}
    for found in mine:
        pool = found.spec.pool
        newest[pool.name] = max(pool.generation, newest.get(pool.name, 0))
    return [found for found in mine if found.spec.pool.generation == newest[found.spec.pool.name]]


def _table(
    views: Iterable[DeviceView], *, wide: bool
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    headers = _HEADERS + (_WIDE_HEADERS if wide else ())
    return headers, [_row(view) + (_wide_cells(view) if wide else ()) for view in views]


def _row(view: DeviceView) -> tuple[object, ...]:
    taints = view.device.taints if view.device else ()
    return (
        view.pool,
        view.name,
        view.attribute("type") if view.device else "not published",
        view.attribute("productName"),
        _memory(view.device),
        ", ".join(str(holder) for holder in view.holders),
        ", ".join(f"{taint.key}:{taint.effect}" for taint in taints),
    )


def _wide_cells(view: DeviceView) -> tuple[object, ...]:
    return (
        view.attribute(f"{_STANDARD}/numaNode"),
        view.attribute(f"{_STANDARD}/pcieRoot"),
        view.attribute("pcieSwitch"),
        view.attribute("nvlinkDomain"),
    )


def _memory(device: Device | None) -> str:
    found = device.capacity.get("memory") if device else None
    return f"{found.value.value / _GIB:.1f}Gi" if found else ""


async def _ask(client: Any, args: argparse.Namespace) -> tuple[list[dict[str, Any]], ...]:
    return (
        await cluster.list_slices(client, args.driver),
        await cluster.list_claims(client),
        await cluster.list_taint_rules(client),
    )


def _sources(args: argparse.Namespace) -> tuple[watching.Source, ...]:
    """What the answer is made of, for ``--watch``."""
    from gpudra.driver.kube.resources import DEVICE_TAINT_RULES, RESOURCE_CLAIMS, RESOURCE_SLICES

    return (
        watching.Source(RESOURCE_SLICES, field_selector=f"spec.driver={args.driver}"),
        watching.Source(RESOURCE_CLAIMS),
        watching.Source(DEVICE_TAINT_RULES, optional=True),
    )


def _is_local(args: argparse.Namespace) -> bool:
    named = args.kubeconfig or args.context or args.hardware
    return bool(args.local or (os.environ.get("GPUDRA_NVML_LIBRARY") and not named))


def _inventory(args: argparse.Namespace) -> "Inventory":
    if args.hardware:
        from gpudra.driver.devicelib.simulated import build_inventory, load_hardware

        return build_inventory(load_hardware(args.hardware), node_name=args.node or "node")
    from gpudra.controller.ctl import topology
    from gpudra.driver.devicelib.open import Backend

    return topology.read_local(Backend(args.local or "nvml"))


def _published(inventory: "Inventory", args: argparse.Namespace) -> Sequence[ResourceSlice]:
    from gpudra.controller.ctl import topology
    from gpudra.controller.ctl.slices import slices_of_inventory

    node = args.node or ("node" if args.hardware else topology.local_node_name())
    return slices_of_inventory(inventory, driver=args.driver, node_name=node)
