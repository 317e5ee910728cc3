# SPDX-License-Identifier: Apache-2.0
"""``gpudra uncordon GPU``: takes away the rules that ``gpudra cordon`` wrote.

Works for a card that is not published any more, too: the rules say which one they are for.
"""

import argparse
from typing import Any

from gpudra.api.errors import InputError, NotFoundError
from gpudra.api.resource_v1 import ResourceSlice
from gpudra.controller.ctl import cluster
from gpudra.controller.ctl.cordon import (
    UUID_ANNOTATION,
    add_target_arguments,
    find_target,
    is_form_of,
    list_rules,
)

Obj = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See gpudra.controller.ctl.main."""
    add_target_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """See gpudra.controller.ctl.main."""

    async def question(client: Any) -> str:
        return await uncordon(client, args.gpu, driver=args.driver, node=args.node)

    print(cluster.ask(args, question))
    return 0


async def uncordon(client: Any, gpu: str, *, driver: str, node: str | None) -> str:
    """Deletes the rules of a card; a sentence about what was done.

    Raises:
        InputError: neither a rule nor a published device has this name.
        ApiError: the server refused or did not answer.
    """
    from gpudra.driver.kube.resources import DEVICE_TAINT_RULES

    rules = [rule for rule in await list_rules(client) if _is_for(rule, gpu, driver, node)]
    pools = sorted({rule["spec"]["deviceSelector"]["pool"] for rule in rules})
    if len(pools) > 1:
        raise InputError(
            f"is cordoned on several nodes: {', '.join(pools)}",
            obj=gpu,
            hint="name one with --node",
        )
    if not rules:
        slices = await cluster.list_slices(client, driver)
        target = find_target([ResourceSlice.from_dict(raw) for raw in slices], gpu, driver, node)
        return f"{gpu} on {target.pool}: is not cordoned"
    for rule in rules:
        try:
            await client.delete(DEVICE_TAINT_RULES, rule["metadata"]["name"])
        except NotFoundError:
            continue  # somebody else was quicker
    return f"{gpu} on {pools[0]}: uncordoned"


def _is_for(rule: Obj, gpu: str, driver: str, node: str | None) -> bool:
    selector = rule["spec"].get("deviceSelector") or {}
    if selector.get("driver") != driver or node not in (None, selector.get("pool")):
        return False
    uuid = (rule["metadata"].get("annotations") or {}).get(UUID_ANNOTATION)
    return gpu == uuid or is_form_of(selector.get("device", ""), gpu)
