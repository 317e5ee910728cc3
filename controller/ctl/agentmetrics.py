# SPDX-License-Identifier: Apache-2.0
"""What the node agents tell about the use of claims, read through the API server.

Agents are found by the labels of the chart, and their ``/metrics`` are read through the API
server's proxy to pods, so whoever can use kubectl needs no way into the pod network. The rights:
list of pods, and get of pods/proxy, in the namespace of the agents. Used by `gpudra top`.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpudra.api.errors import ApiError, ForbiddenError, NotFoundError

if TYPE_CHECKING:
    from gpudra.driver.kube.client import KubeClient

SELECTOR = "app.kubernetes.io/name=gpudra,app.kubernetes.io/component=kubelet-plugin"
PORT_NAME = "http"
PREFIX = "gpudra_claim_"
# Agents asked at once: a table must not be a burst for the API server.
_AT_ONCE = 16
_AGENT_SECONDS = 10.0
_DIRECT = re.compile(r"[A-Za-z0-9.-]+=https?://\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Where one agent's metrics are.

    Attributes:
        node: that it serves.
        path: below the API server, or a whole URL.
        name: for messages.
    """

    node: str
    path: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """One device of one claim; None where nobody tells."""

    node: str
    namespace: str
    claim: str
    device: str
    form: str
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    compute_percent: int | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All answers, and why some are missing, in sentences."""

    usages: tuple[Usage, ...] = ()
    problems: tuple[str, ...] = ()
    answered: int = 0


def agents_of(pods: Iterable[Mapping[str, Any]]) -> tuple[list[Agent], list[str]]:
    """Agents among pods, and why others are none."""
    agents, problems = [], []
    for pod in pods:
        meta, spec = pod["metadata"], pod.get("spec") or {}
        name, node = f"{meta['namespace']}/{meta['name']}", str(spec.get("nodeName") or "")
        phase = (pod.get("status") or {}).get("phase", "")
        if meta.get("deletionTimestamp") or phase in ("Succeeded", "Failed"):
            continue
        port = _port(spec)
        if port is None:
            problems.append(f"agent {name} on node {node} serves no metrics (no port {PORT_NAME})")
            continue
        path = (
            f"/api/v1/namespaces/{meta['namespace']}/pods/http:{meta['name']}:{port}/proxy/metrics"
        )
        agents.append(Agent(node=node, path=path, name=f"pod {name}"))
    return agents, problems


def _port(spec: Mapping[str, Any]) -> int | None:
    for container in spec.get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == PORT_NAME:
                return int(port["containerPort"])
    return None


def is_direct(text: str) -> bool:
    """Whether a text is ``NODE=URL``."""
    return bool(_DIRECT.fullmatch(text))


def direct_agents(words: Iterable[str]) -> list[Agent]:
    """Agents that are reached by URL: on this machine, or through a port-forward."""
    pairs = (word.partition("=") for word in words)
    return [
        Agent(node=node, path=f"{url.rstrip('/')}/metrics", name=f"agent at {url}")
        for node, _, url in pairs
    ]


async def read_agents(client: "KubeClient", namespace: str) -> tuple[list[Agent], list[str]]:
    """The agents of a namespace, or of all of them.

    Raises:
        ForbiddenError: pods may not be listed; says what is missing.
    """
    from gpudra.driver.kube.resources import PODS

    try:
        found = await client.list(PODS, namespace or None, label_selector=SELECTOR)
    except ForbiddenError as error:
        where = f"in namespace {namespace}" if namespace else "in all namespaces"
        raise ForbiddenError(
            f"you may not list pods {where}, so the agents cannot be found",
            status=error.status,
            hint="ask for the right to list pods and to get pods/proxy there, name another "
            "namespace with --agent-namespace, or name agents with --agent NODE=URL",
        ) from error
    return agents_of(found.items)


async def read_usage(client: "KubeClient | None", agents: Sequence[Agent]) -> Reading:
    """Asks all agents; one that does not answer costs only its node."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def ask(agent: Agent) -> tuple[list[Usage], str]:
        async with slots:
            try:
                async with asyncio.timeout(_AGENT_SECONDS):
                    return usages_of(await _text(client, agent), agent.node), ""
            except ForbiddenError:
                return [], (
                    f"you may not read the metrics of {agent.name} on node {agent.node}: the right "
                    "get on pods/proxy is missing"
                )
            except NotFoundError:
                return [], f"{agent.name} on node {agent.node} has no metrics, or has just ended"
            except (ApiError, OSError, ValueError) as error:
                why = str(error) or "no answer"
                return [], f"{agent.name} on node {agent.node} does not answer: {why}"

    answers = await asyncio.gather(*map(ask, agents))
    return Reading(
        usages=tuple(one for usages, _ in answers for one in usages),
        problems=tuple(problem for _, problem in answers if problem),
        answered=sum(not problem for _, problem in answers),
    )


async def _text(client: "KubeClient | None", agent: Agent) -> str:
    """The exposition text of an agent.

    Raises:
        ApiError: the API server does not hand it out.
        OSError: a URL that does not answer.
    """
    if agent.path.startswith("/"):
        assert client is not None
        return (await client.get_raw(agent.path)).decode()
    import aiohttp

    try:
        async with aiohttp.ClientSession() as session, session.get(agent.path) as answer:
            answer.raise_for_status()
            return await answer.text()
    except aiohttp.ClientError as error:
        raise OSError(str(error)) from error


def usages_of(text: str, node: str) -> list[Usage]:
    """What an exposition text says about claims.

    Raises:
        ValueError: it is none.
    """
    from prometheus_client.parser import text_string_to_metric_families

    lines = [line for line in text.splitlines() if line.startswith(PREFIX)]
    found: dict[tuple[str, ...], dict[str, int]] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            labels = sample.labels
            if not {"namespace", "claim", "device", "form"} <= labels.keys():
                continue
            key = (labels["namespace"], labels["claim"], labels["device"], labels["form"])
            found.setdefault(key, {})[sample.name.removeprefix(PREFIX)] = round(sample.value)
    return [
        Usage(
            node=node,
            namespace=namespace,
            claim=claim,
            device=device,
            form=form,
            memory_bytes=values.get("memory_bytes"),
            memory_used_bytes=values.get("memory_used_bytes"),
            compute_percent=values.get("compute_percent"),
            processes=values.get("processes"),
        )
        for (namespace, claim, device, form), values in found.items()
    ]
