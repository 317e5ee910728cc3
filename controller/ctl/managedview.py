# SPDX-License-Identifier: Apache-2.0
"""How ``gpudra queues`` and ``gpudra whatif`` get to know the cluster: from its objects, or from files."""

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

from gpudra.api.errors import ForbiddenError, NotFoundError
from gpudra.controller.ctl import cluster

if TYPE_CHECKING:
    from gpudra.controller.managed.snapshot import Snapshot
    from gpudra.driver.kube.client import KubeClient

Obj = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the cluster's objects come from."""
    parser.add_argument(
        "--cluster", action="append", metavar="FILE", dest="cluster_files",
        help="read the cluster's objects from files instead of a cluster",
    )  # fmt: skip
    parser.add_argument("--driver", default=cluster.DEFAULT_DRIVER, help="name of the DRA driver")
    cluster.add_cluster_arguments(parser)


def read(args: argparse.Namespace) -> "Snapshot":
    """The cluster as it is.

    Raises:
        InputError: a file cannot be used.
        ApiError: the server refused or did not answer, or serves no queues.
    """
    from gpudra.controller.ctl.objects import load_objects
    from gpudra.controller.managed.snapshot import snapshot_of

    if args.cluster_files:
        objects = [source.raw for source in load_objects(args.cluster_files).sources]
    else:
        objects = cluster.ask(args, list_all)
    return snapshot_of(objects, args.driver)


async def list_all(client: "KubeClient") -> list[Obj]:
    """Every object that a plan of managed mode depends on."""
    from gpudra.driver.kube import resources

    kinds = (
        resources.NAMESPACES,
        resources.QUEUES,
        resources.POD_GROUPS,
        resources.NODES,
        resources.RESOURCE_SLICES,
        resources.DEVICE_CLASSES,
        resources.DEVICE_TAINT_RULES,
        resources.RESOURCE_CLAIM_TEMPLATES,
        resources.RESOURCE_CLAIMS,
        resources.POD_DISRUPTION_BUDGETS,
        resources.PODS,
    )
    # Not every server has the first, and not everybody may see the others.
    optional = {
        resources.DEVICE_TAINT_RULES,
        resources.RESOURCE_CLAIM_TEMPLATES,
        resources.POD_DISRUPTION_BUDGETS,
    }

    async def listed(resource: Any) -> list[Obj]:
        try:
            found = (await client.list(resource)).items
        except (NotFoundError, ForbiddenError):
            if resource not in optional:
                raise
            return []
        head = {"apiVersion": resource.api_version, "kind": resource.kind}
        return [{**head, **item} for item in found]

    lists = await asyncio.gather(*(listed(resource) for resource in kinds))
    return [obj for one in lists for obj in one]
