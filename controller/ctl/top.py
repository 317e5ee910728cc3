# SPDX-License-Identifier: Apache-2.0
"""``gpudra top``: what claims use of their devices, now and again."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpudra.api.errors import ApiError, ForbiddenError, InputError, NotFoundError, UnavailableError
from gpudra.controller.ctl import agentmetrics, cluster, printers
from gpudra.controller.ctl.agentmetrics import Reading, Usage

if TYPE_CHECKING:
    from gpudra.driver.kube.client import KubeClient

DEFAULT_AGENT_NAMESPACE = "gpudra-system"
SORTS = ("memory", "compute", "claim", "node")
CLEAR = "\x1b[H\x1b[2J"
_HEADERS = (
    *("NODE", "NAMESPACE", "CLAIM", "FORM", "DEVICE"),
    *("MEMORY", "OF", "MEM%", "GPU%", "PROCESSES", "PODS"),
)
_MIB = 2**20

Users = Mapping[tuple[str, str], tuple[str, ...]]
Look = Callable[[], Awaitable[tuple[Reading, Users]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See gpudra.controller.ctl.main."""
    cluster.add_cluster_arguments(parser)
    cluster.add_namespace_arguments(parser)
    parser.add_argument("--node", metavar="NAME", help="only claims on this node")
    parser.add_argument(
        "--sort", choices=SORTS, default=SORTS[0], help=f"what comes first (default: {SORTS[0]})"
    )
    often = parser.add_mutually_exclusive_group()
    often.add_argument(
        "--watch", action="store_true", help="again and again, also where stdout is no terminal"
    )
    often.add_argument("--once", action="store_true", help="once, also on a terminal")
    parser.add_argument(
        "--interval", type=_seconds, default=5.0, metavar="SECONDS", help="pause (default: 5)"
    )
    parser.add_argument(
        "--agent-namespace",
        default=DEFAULT_AGENT_NAMESPACE,
        metavar="NAME",
        help=f"where the agents run; empty: all namespaces (default: {DEFAULT_AGENT_NAMESPACE})",
    )
    parser.add_argument(
        "--agent",
        action="append",
        default=[],
        type=_agent,
        metavar="NODE=URL",
        help="read this agent at its address, not through the API server; may come several times",
    )
    printers.add_output_argument(parser)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return found


def _agent(text: str) -> str:
    if not agentmetrics.is_direct(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not NODE=URL")
    return text


def run(args: argparse.Namespace) -> int:
    """See gpudra.controller.ctl.main."""
    if args.watch and args.output != printers.TABLE:
        raise InputError(f"goes with -o {printers.TABLE} only", field="--watch")
    forever = args.watch or (
        sys.stdout.isatty() and not args.once and args.output == printers.TABLE
    )

    async def question(client: "KubeClient") -> None:
        async def look() -> tuple[Reading, Users]:
            return await _look(client, args)

        if forever:
            await watch(look, args, sleep=asyncio.sleep)
        else:
            show(*await look(), args)

    cluster.ask(args, question)
    return 0


async def watch(
    look: Look, args: argparse.Namespace, *, sleep: Callable[[float], Awaitable[object]]
) -> None:
    """Draws the table anew after each pause, until interrupted.

    A look that fails is shown in its place: the next one may succeed.

    Raises:
        ApiError: the first look failed.
    """
    first = True
    while True:
        try:
            reading, users = await look()
        except UnavailableError as error:
            if first:
                raise
            reading, users = Reading(problems=(str(error),)), {}
        first = False
        if sys.stdout.isatty():
            print(CLEAR, end="")
        print(f"{datetime.now().astimezone():%H:%M:%S}  every {args.interval:g} s")
        show(reading, users, args)
        sys.stdout.flush()
        await sleep(args.interval)


async def _look(client: "KubeClient", args: argparse.Namespace) -> tuple[Reading, Users]:
    """Everything that the table shows.

    Raises:
        ApiError: no agent can be read at all.
    """
    problems: list[str] = []
    if args.agent:
        agents = agentmetrics.direct_agents(args.agent)
    else:
        agents, problems = await agentmetrics.read_agents(client, args.agent_namespace)
        problems += await _without_agent(client, {agent.node for agent in agents})
    agents = [agent for agent in agents if args.node in (None, agent.node)]
    problems = [one for one in problems if args.node is None or args.node in one]
    reading = await agentmetrics.read_usage(client, agents)
    problems += reading.problems
    if not reading.answered:
        where = f"in namespace {args.agent_namespace}" if args.agent_namespace else "anywhere"
        raise UnavailableError(
            "; ".join(problems) or f"there is no agent of gpudra {where}",
            obj="usage of GPUs",
            hint="look with `kubectl get pods -A -l app.kubernetes.io/name=gpudra`, and name the "
            "namespace with --agent-namespace",
        )
    users, unknown = await _users(client, args.namespace)
    usages = tuple(one for one in reading.usages if args.namespace in (None, one.namespace))
    found = Reading(usages=usages, problems=(*problems, *unknown), answered=reading.answered)
    return found, users


async def _without_agent(client: "KubeClient", served: set[str]) -> list[str]:
    """Nodes with devices of ours whose agent is not there."""
    try:
        slices = await cluster.list_slices(client, cluster.DEFAULT_DRIVER)
    except (ForbiddenError, NotFoundError):
        return []  # what may not be seen is not missed
    nodes = {str(one["spec"].get("nodeName") or "") for one in slices} - {""}
    return [f"node {node} has GPUs, but no agent runs on it now" for node in sorted(nodes - served)]


async def _users(client: "KubeClient", namespace: str | None) -> tuple[Users, list[str]]:
    """Pods by claim, and why they are not known."""
    try:
        claims = await cluster.list_claims(client, namespace)
    except ApiError as error:
        return {}, [f"the pods of claims are not known: {error}"]
    return {
        (one["metadata"]["namespace"], one["metadata"]["name"]): tuple(
            user["name"] for user in (one.get("status") or {}).get("reservedFor") or ()
        )
        for one in claims
    }, []


# --- printing -----------------------------------------------------------------------------------


def show(reading: Reading, users: Users, args: argparse.Namespace) -> None:
    """Prints one reading; what is missing goes to stderr, so that programs can read the rest."""
    usages = sorted(reading.usages, key=_SORTS[args.sort])
    for problem in reading.problems:
        print(f"note: {problem}", file=sys.stderr)
    if args.output != printers.TABLE:
        items = [_data(one, users) for one in usages]
        data: dict[str, Any] = {"items": items, "problems": list(reading.problems)}
        printers.print_data(data, args.output)
        return
    rows = [_row(one, users) for one in usages]
    printers.print_table(_HEADERS, rows, nothing="no prepared claims tell what they use")


def _data(one: Usage, users: Users) -> dict[str, Any]:
    names = {
        "memory_bytes": "memoryBytes",
        "memory_used_bytes": "memoryUsedBytes",
        "compute_percent": "computePercent",
    }
    known = {key: value for key, value in asdict(one).items() if value is not None}
    found = {names.get(key, key): value for key, value in known.items()}
    return {**found, "pods": list(users.get((one.namespace, one.claim), ()))}


def _row(one: Usage, users: Users) -> tuple[object, ...]:
    used, total = one.memory_used_bytes, one.memory_bytes
    share = f"{100 * used / total:.0f}" if used is not None and total else None
    return (
        *(one.node, one.namespace, one.claim, one.form, one.device),
        *(_amount(used), _amount(total), share, one.compute_percent, one.processes),
        ", ".join(users.get((one.namespace, one.claim), ())),
    )


def _amount(amount: int | None) -> str:
    """In MiB, as kubectl top has it; what is used is rounded up: nothing that is used shows 0."""
    return "" if amount is None else f"{-(-amount // _MIB)}Mi"


def _name(one: Usage) -> tuple[str, ...]:
    return (one.namespace, one.claim, one.node, one.device)


_SORTS: Mapping[str, Callable[[Usage], tuple[Any, ...]]] = {
    "memory": lambda one: (-(one.memory_used_bytes or 0), *_name(one)),
    "compute": lambda one: (-(one.compute_percent or 0), *_name(one)),
    "claim": _name,
    "node": lambda one: (one.node, *_name(one)),
}
