# SPDX-License-Identifier: Apache-2.0
"""``gpudra release``: lets pods go that wait for a managed mode that is not there any more.

Takes the scheduling gate off; from then on kube-scheduler has them. It changes nothing else, and
what it would change ``--dry-run`` shows. The chart runs it before it is uninstalled.
"""

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING, Any

from gpudra.api.errors import ApiError, ConflictError, GpudraError, NotFoundError
from gpudra.controller.ctl import cluster, printers

if TYPE_CHECKING:
    from gpudra.driver.kube.client import KubeClient

Obj = dict[str, Any]

_GATE = "gpudra.io/admission"
_QUEUE = "gpudra.io/queue"
_LEASE = "gpudra-controller"
_PARALLEL = 16
_TRIES = 5


class StillManagedError(GpudraError):
    """The controller works: pods do not wait in vain."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See gpudra.controller.ctl.main."""
    cluster.add_namespace_arguments(parser)
    parser.add_argument("--queue", metavar="NAME", help="only pods of this queue")
    parser.add_argument(
        "--all",
        "--force",
        action="store_true",
        dest="force",
        help="even while the controller holds its lease",
    )
    parser.add_argument("--dry-run", action="store_true", help="only show which pods")
    parser.add_argument(
        "--controller-namespace", metavar="NAME", default="gpudra-system",
        help="where the controller's lease is (default: gpudra-system)",
    )  # fmt: skip
    cluster.add_cluster_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Lifts the gates; 0 when no pod waits any more, 1 when some could not be released.

    Raises:
        StillManagedError: the controller is there, and ``--all`` was not said.
        ApiError: the server refused or did not answer.
    """
    released, problems = cluster.ask(args, lambda client: _release(client, args))
    rows = [(meta["namespace"], meta["name"], _queue(meta)) for meta in released]
    what = "would be released" if args.dry_run else "released"
    printers.print_table(("NAMESPACE", "POD", "QUEUE"), rows, nothing="no pod waits at the gate")
    if rows:
        print(f"{len(rows)} {what}", file=sys.stderr)
    for problem in problems:
        print(f"not released: {problem}", file=sys.stderr)
    return 1 if problems else 0


async def _release(
    client: "KubeClient", args: argparse.Namespace
) -> tuple[list[Obj], list[ApiError]]:
    from gpudra.driver.kube.resources import PODS

    if not args.force and not args.dry_run:
        await _check_controller(client, args.controller_namespace)
    found = [
        pod
        for pod in (await client.list(PODS, args.namespace)).items
        if _is_gated(pod) and args.queue in (None, _queue(pod["metadata"]))
    ]
    if args.dry_run:
        return [pod["metadata"] for pod in found], []
    slots = asyncio.Semaphore(_PARALLEL)

    async def one(pod: Obj) -> ApiError | None:
        async with slots:
            return await _lift(client, pod)

    results = await asyncio.gather(*(one(pod) for pod in found))
    done = [pod["metadata"] for pod, error in zip(found, results, strict=True) if error is None]
    return done, [error for error in results if error is not None]


async def _check_controller(client: "KubeClient", namespace: str) -> None:
    from gpudra.driver.kube.clock import SystemClock, parse_time
    from gpudra.driver.kube.resources import LEASES

    try:
        spec = (await client.get(LEASES, _LEASE, namespace)).get("spec") or {}
    except NotFoundError:
        return
    if not spec.get("holderIdentity") or not spec.get("renewTime"):
        return
    age = (SystemClock().now() - parse_time(spec["renewTime"])).total_seconds()
    if age <= float(spec.get("leaseDurationSeconds") or 15):
        raise StillManagedError(
            f"the controller is at work, {spec['holderIdentity']} leads",
            obj=f"lease {namespace}/{_LEASE}",
            hint="pods wait for their turn; `gpudra queues` shows why, --all releases them all the same",
        )


async def _lift(client: "KubeClient", pod: Obj) -> ApiError | None:
    from gpudra.driver.kube.resources import PODS

    meta = pod["metadata"]
    for last in (*[False] * (_TRIES - 1), True):
        gates = [one for one in pod["spec"]["schedulingGates"] if one["name"] != _GATE]
        body = {
            "metadata": {"resourceVersion": pod["metadata"]["resourceVersion"]},
            "spec": {"schedulingGates": gates or None},
        }
        try:
            await client.patch(PODS, meta["name"], body, namespace=meta["namespace"])
        except NotFoundError:
            return None
        except ConflictError as error:
            if last:
                return error
            try:
                pod = await client.get(PODS, meta["name"], meta["namespace"])
            except NotFoundError:
                return None
            if not _is_gated(pod):
                return None
        except ApiError as error:
            return error
        else:
            return None
    raise AssertionError("unreachable: the last try returns")


def _is_gated(pod: Obj) -> bool:
    gates = (pod.get("spec") or {}).get("schedulingGates") or ()
    return any(one.get("name") == _GATE for one in gates)


def _queue(meta: Obj) -> str:
    return str((meta.get("labels") or {}).get(_QUEUE, ""))
