# SPDX-License-Identifier: Apache-2.0
"""``gpudra cordon GPU``: keeps new claims off one GPU with DeviceTaintRules; ``uncordon`` ends it.

A rule names one device, so a card that is published in several forms (whole, MIG, share) gets one
rule for each. Monitors are left out: they are for looking at such cards. Done twice it is as done
once.
"""

import argparse
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpudra.api.errors import InputError
from gpudra.api.names import split_qualified_name
from gpudra.api.resource_v1 import NO_EXECUTE, NO_SCHEDULE, Device, DeviceTaintRule, ResourceSlice
from gpudra.controller.ctl import cluster

TAINT_KEY = "gpudra.io/cordoned"
LABEL = "gpudra.io/cordon"
UUID_ANNOTATION = "gpudra.io/uuid"
REASON_ANNOTATION = "gpudra.io/reason"
FIELD_MANAGER = "gpudra-cordon"
_MONITOR = "monitor"
# What follows the card's name in the names of its other forms (driver/core/allocatable.py).
_FORMS = ("mig-", "share", _MONITOR)

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Devices of one card of one pool.

    Attributes:
        driver: name of the driver.
        pool: the node.
        gpu: what was asked for, as people name it.
        uuid: of the card; empty if it has none.
        devices: names of all its forms.
    """

    driver: str
    pool: str
    gpu: str
    uuid: str
    devices: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See gpudra.controller.ctl.main."""
    add_target_arguments(parser)
    parser.add_argument(
        "--evict",
        action="store_true",
        help="also end pods that use the GPU now (effect NoExecute)",
    )
    parser.add_argument("--reason", default="", help="kept with the rule, for other people")


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Which GPU, and where: the same for both commands."""
    parser.add_argument("gpu", metavar="GPU", help="name of the device, or uuid of the card")
    parser.add_argument("--node", metavar="NAME", help="where a name is used on several nodes")
    parser.add_argument("--driver", default=cluster.DEFAULT_DRIVER, help="name of the DRA driver")
    cluster.add_cluster_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """See gpudra.controller.ctl.main."""
    effect = NO_EXECUTE if args.evict else NO_SCHEDULE

    async def question(client: Any) -> str:
        slices = await cluster.list_slices(client, args.driver)
        target = find_target(
            [ResourceSlice.from_dict(raw) for raw in slices], args.gpu, args.driver, args.node
        )
        return await cordon(client, target, effect=effect, reason=args.reason)

    print(cluster.ask(args, question))
    return 0


async def cordon(client: Any, target: Target, *, effect: str, reason: str = "") -> str:
    """Writes the rules; a sentence about what was done.

    Raises:
        ApiError: the server refused or did not answer.
    """
    from gpudra.driver.kube.resources import DEVICE_TAINT_RULES

    before = {rule["metadata"]["name"]: rule for rule in await list_rules(client)}
    written = 0
    for rule in cordon_rules(target, effect=effect, reason=reason):
        name = rule["metadata"]["name"]
        found = before.get(name)
        if found is not None and found["spec"]["taint"].get("effect") == effect and not reason:
            continue
        await client.patch(
            DEVICE_TAINT_RULES, name, rule,
            patch_type="apply", field_manager=FIELD_MANAGER, force=True,
        )  # fmt: skip
        written += 1
    where = f"{target.gpu} on {target.pool}"
    if not written:
        return f"{where}: already cordoned"
    return f"{where}: cordoned, effect {effect} on {', '.join(target.devices)}"


async def list_rules(client: Any) -> list[Obj]:
    """Every rule that cordons."""
    from gpudra.driver.kube.resources import DEVICE_TAINT_RULES

    return list((await client.list(DEVICE_TAINT_RULES, label_selector=LABEL)).items)


def cordon_rules(target: Target, *, effect: str, reason: str = "") -> tuple[Obj, ...]:
    """The rules for a card, one a device."""
    annotations = {UUID_ANNOTATION: target.uuid, REASON_ANNOTATION: reason}
    return tuple(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceTaintRule",
            "metadata": {
                "name": rule_name(target.driver, target.pool, device),
                "labels": {LABEL: "true"},
                "annotations": {key: value for key, value in annotations.items() if value},
            },
            "spec": {
                "deviceSelector": {
                    "driver": target.driver,
                    "pool": target.pool,
                    "device": device,
                },
                "taint": {"key": TAINT_KEY, "effect": effect},
            },
        }
        for device in target.devices
    )


def rule_name(driver: str, pool: str, device: str) -> str:
    """The same rule for the same device, so that cordoning twice writes it once."""
    digest = hashlib.sha256(f"{driver}\0{pool}\0{device}".encode()).hexdigest()[:16]
    return f"gpudra-cordon-{digest}"


def is_form_of(device: str, gpu: str) -> bool:
    """Whether a device is the card of that name, or one of its forms (``<gpu>-mig-…``)."""
    form = device.removeprefix(f"{gpu}-")
    return device == gpu or (form != device and form.startswith(_FORMS))


def find_target(slices: Iterable[ResourceSlice], gpu: str, driver: str, node: str | None) -> Target:
    """The devices that a name or uuid means.

    Raises:
        InputError: nothing has this name, or things on several nodes have.
    """
    found: dict[str, dict[str, str]] = {}
    for one in slices:
        pool = one.spec.pool.name
        if one.spec.driver != driver or node not in (None, pool):
            continue
        for device in one.spec.devices:
            values = _values(device, driver)
            uuid = values.get("parentUUID") or values.get("uuid") or ""
            meant = is_form_of(device.name, gpu) or gpu in (uuid, values.get("uuid"))
            if meant and (values.get("type") != _MONITOR or device.name == gpu):
                found.setdefault(pool, {})[device.name] = uuid
    where = f" on node {node}" if node else ""
    if not found:
        raise InputError(
            f"no GPU of {driver} has this name or uuid{where}",
            obj=gpu,
            hint="`gpudra devices` lists them",
        )
    if len(found) > 1:
        pools = ", ".join(sorted(found))
        raise InputError(f"is on several nodes: {pools}", obj=gpu, hint="name one with --node")
    ((pool, devices),) = found.items()
    return Target(
        driver=driver,
        pool=pool,
        gpu=gpu,
        uuid=next((uuid for uuid in devices.values() if uuid), ""),
        devices=tuple(sorted(devices)),
    )


def _values(device: Device, driver: str) -> Mapping[str, str]:
    """The driver's own text attributes."""
    return {
        name: str(value)
        for key, value in device.attributes.items()
        for domain, name in [split_qualified_name(key, driver)]
        if domain == driver
    }


def with_rules(
    slices: Iterable[ResourceSlice], rules: Iterable[DeviceTaintRule]
) -> list[ResourceSlice]:
    """The slices with the taints that rules add, as the scheduler sees them."""
    from gpudra.driver.core.allocator.taints import rule_taints, rules_for_pool

    known, found = list(rules), []
    for one in slices:
        mine = rules_for_pool(known, (one.spec.driver, one.spec.pool.name))
        devices = tuple(
            replace(device, taints=(*device.taints, *rule_taints(mine, device.name)))
            for device in one.spec.devices
        )
        found.append(replace(one, spec=replace(one.spec, devices=devices)) if mine else one)
    return found
