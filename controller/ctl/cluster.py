# SPDX-License-Identifier: Apache-2.0
"""How the sub-commands reach a cluster: options and one connection for one question.

Called by the modules of ``controller.ctl`` that read live objects. The API client is imported
only when a command really connects.
"""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from gpudra.driver.kube.client import KubeClient

DEFAULT_DRIVER = "gpu.gpudra.io"
DEFAULT_NAMESPACE = "default"

T = TypeVar("T")


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """``--kubeconfig`` and ``--context``, as kubectl has them."""
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="kubeconfig file (default: $KUBECONFIG, then ~/.kube/config)",
    )
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig file")


def add_namespace_arguments(parser: argparse.ArgumentParser) -> None:
    """``-n``; without it all namespaces are looked at, since GPUs are shared by all of them."""
    parser.add_argument(
        "-n", "--namespace", metavar="NAME", default=None, help="one namespace (default: all)"
    )


def ask(args: argparse.Namespace, question: "Callable[[KubeClient], Awaitable[T]]") -> T:
    """Connects, asks, disconnects; the answer.

    Raises:
        InputError: the kubeconfig cannot be used.
        ApiError: the server refused or did not answer.
    """
    return asyncio.run(_ask(args.kubeconfig, args.context, question))


async def _ask(
    kubeconfig: str | None,
    context: str | None,
    question: "Callable[[KubeClient], Awaitable[T]]",
) -> T:
    from gpudra.driver.kube.client import KubeClient

    async with await KubeClient.load(kubeconfig, context) as client:
        return await question(client)


async def list_slices(client: "KubeClient", driver: str) -> list[dict[str, Any]]:
    """Every ResourceSlice of the driver; of all drivers when ``driver`` is empty."""
    from gpudra.driver.kube.resources import RESOURCE_SLICES

    selector = f"spec.driver={driver}" if driver else ""
    return (await client.list(RESOURCE_SLICES, field_selector=selector)).items


async def list_claims(client: "KubeClient", namespace: str | None = None) -> list[dict[str, Any]]:
    """Every ResourceClaim of a namespace, or of all of them."""
    from gpudra.driver.kube.resources import RESOURCE_CLAIMS

    return (await client.list(RESOURCE_CLAIMS, namespace)).items


async def list_taint_rules(client: "KubeClient") -> list[dict[str, Any]]:
    """Every DeviceTaintRule; none where there are none to be had.

    Not every server serves them, and not everybody who may see devices may see rules.
    """
    from gpudra.api.errors import ForbiddenError, NotFoundError
    from gpudra.driver.kube.resources import DEVICE_TAINT_RULES

    try:
        return (await client.list(DEVICE_TAINT_RULES)).items
    except (NotFoundError, ForbiddenError):
        return []
