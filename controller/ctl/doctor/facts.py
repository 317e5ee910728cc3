# SPDX-License-Identifier: Apache-2.0
"""What ``gpudra doctor`` knows of a cluster, fetched once; the checks look at nothing else.

One thing that cannot be read never costs another: what we may not read is named with the verb and
the resource that are missing, and the checks that need it say that they do not know.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from gpudra.api.errors import ApiError, ForbiddenError, NotFoundError
from gpudra.controller.ctl.doctor import rights
from gpudra.controller.resourceslices.probe import probe_features
from gpudra.driver.core.features import ServerFeatures
from gpudra.driver.kube import resources
from gpudra.driver.kube.resources import Obj, Resource

DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet", namespaced=True)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", namespaced=True)
_ADMISSION = ("admissionregistration.k8s.io", "v1")
POLICIES = Resource(
    *_ADMISSION, "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False
)
BINDINGS = Resource(
    *_ADMISSION,
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    namespaced=False,
)
MUTATING_POLICIES = Resource(
    *_ADMISSION, "mutatingadmissionpolicies", "MutatingAdmissionPolicy", namespaced=False
)
SELF_REVIEWS = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)
NODE_LEASES = "kube-node-lease"
SELECTOR = "app.kubernetes.io/name=gpudra"
COMPONENT = "app.kubernetes.io/component"
AGENT, CONTROLLER = "kubelet-plugin", "controller"
_WORKLOADS = {AGENT: DAEMON_SETS.plural, CONTROLLER: DEPLOYMENTS.plural}
DEFAULT_NAMESPACE = "gpudra-system"
LEASE = "gpudra-controller"
_MOST_ASKED = 20
_CHECK_LINE = re.compile(r"\[-\](\S+) failed: (.*?)(?=\s*\[[+-]\]|\s*failed\s*$|$)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What an account lacks; ``problem`` says why nobody knows."""

    account: str
    refused: tuple[rights.Right, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The cluster as read.

    Attributes:
        driver: name of the DRA driver that is looked at.
        version: of Kubernetes, for example ``v1.37.2``.
        kinds: plurals that the server serves, by ``group/version``.
        features: what the server keeps of a slice; None: not known.
        clock: server's time minus ours in seconds; None: not known.
        now: the server's time, ours where that is not known.
        objects: by plural.
        missing: what could not be read, by plural: a sentence with verb and resource.
        access: of agent, controller and ourselves.
        failing: failing checks of agents that are not ready, by ``namespace/pod``.
        stuck: events of containers that wait for a CDI device the runtime does not know.
    """

    driver: str
    version: str = ""
    kinds: Mapping[str, frozenset[str]] = field(default_factory=dict)
    features: ServerFeatures | None = None
    clock: float | None = None
    now: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    objects: Mapping[str, Sequence[Obj]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    access: Sequence[Access] = ()
    failing: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    stuck: Sequence[Obj] = ()

    def of(self, plural: str) -> Sequence[Obj]:
        """Objects of a kind; none when they could not be read."""
        return self.objects.get(plural, ())

    def part(self, plural: str, component: str) -> list[Obj]:
        """Objects of the chart that belong to one part of it and to this driver."""
        return [
            one
            for one in self.of(plural)
            if labels(one).get(COMPONENT) == component and self._is_ours(one)
        ]

    def account(self, component: str) -> tuple[str, str]:
        """Namespace and name of the account that a part runs as; the chart's default else."""
        for one in self.part(_WORKLOADS[component], component):
            name = one["spec"]["template"]["spec"].get("serviceAccountName") or "default"
            return str(one["metadata"]["namespace"]), str(name)
        return DEFAULT_NAMESPACE, f"gpudra-{component}"

    def _is_ours(self, one: Obj) -> bool:
        spec = one.get("spec") or {}
        spec = (spec.get("template") or {}).get("spec") or spec
        words = [word for each in spec.get("containers") or () for word in each.get("args") or ()]
        named = [word for word in words if word.startswith("--driver-name=")]
        return not named or f"--driver-name={self.driver}" in named


def labels(one: Obj) -> Mapping[str, str]:
    """Labels of an object."""
    return (one.get("metadata") or {}).get("labels") or {}


def name_of(one: Obj) -> str:
    """Name of an object."""
    return str(one["metadata"]["name"])


_LISTS: tuple[tuple[Resource, str | None, dict[str, str]], ...] = (
    (resources.NODES, None, {}),
    (resources.DEVICE_CLASSES, None, {}),
    (resources.NODE_POLICIES, None, {}),
    (resources.PODS, None, {"label_selector": SELECTOR}),
    (DAEMON_SETS, None, {"label_selector": SELECTOR}),
    (DEPLOYMENTS, None, {"label_selector": SELECTOR}),
    (POLICIES, None, {}),
    (BINDINGS, None, {}),
    (MUTATING_POLICIES, None, {}),
    (resources.LEASES, None, {}),
)


async def collect(client: Any, driver: str, now: datetime) -> Facts:
    """Everything that the checks look at.

    Args:
        client: of the API.
        driver: name of the DRA driver.
        now: our own time.

    Raises:
        ApiError: the server does not answer at all.
    """
    version = await client.version()
    objects: dict[str, Sequence[Obj]] = {}
    missing: dict[str, str] = {}
    slices = (resources.RESOURCE_SLICES, None, {"field_selector": f"spec.driver={driver}"})
    wanted = [slices, *_LISTS]
    listed = await asyncio.gather(*(_list(client, *one) for one in wanted))
    for (resource, _, _), (items, problem) in zip(wanted, listed, strict=True):
        objects[resource.plural] = items
        if problem:
            missing[resource.plural] = problem
    server = await _server_time(client)
    facts = Facts(
        driver=driver,
        version=str(version.get("gitVersion", "")),
        kinds=await _kinds(client),
        clock=(server - now).total_seconds() if server else None,
        now=server or now,
        objects=objects,
        missing=missing,
    )
    return await _with_answers(client, facts)


async def _with_answers(client: Any, facts: Facts) -> Facts:
    """What depends on what was listed: accounts, agents that are not ready, events."""
    access, failing, stuck, features = await asyncio.gather(
        _access(client, facts),
        _failing(client, facts),
        _stuck(client, facts),
        _features(client, facts),
    )
    missing = dict(facts.missing)
    if isinstance(features, str):
        missing["features"], features = features, None
    return replace(
        facts, access=access, failing=failing, stuck=stuck, features=features, missing=missing
    )


async def _list(
    client: Any, resource: Resource, namespace: str | None, selectors: Mapping[str, str]
) -> tuple[Sequence[Obj], str]:
    try:
        return (await client.list(resource, namespace, **selectors)).items, ""
    except NotFoundError:
        return (), ""  # a kind that is not served; the check of versions says so
    except ApiError as error:
        where = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
        told = "we may not" if isinstance(error, ForbiddenError) else "the server could not"
        return (), f"{told} list {where}: {error}"


async def _kinds(client: Any) -> Mapping[str, frozenset[str]]:
    versions = ("resource.k8s.io/v1", "gpudra.io/v1alpha1", "admissionregistration.k8s.io/v1")
    found = {}
    for version in versions:
        group, _, short = version.partition("/")
        served = await client.api_resources(group, short)
        found[version] = frozenset(str(one.get("name")) for one in served)
    return found


async def _server_time(client: Any) -> datetime | None:
    """The server says when it made the answer."""
    try:
        answer = await client.create(SELF_REVIEWS, {"metadata": {}})
        return datetime.fromisoformat(answer["metadata"]["creationTimestamp"])
    except (ApiError, KeyError, TypeError, ValueError):
        return None


async def _features(client: Any, facts: Facts) -> ServerFeatures | str | None:
    node = next((name_of(one) for one in facts.of("nodes")), "doctor")
    try:
        return await probe_features(client, driver=facts.driver, node_name=node)
    except ForbiddenError as error:
        return f"we may not create resourceslices.resource.k8s.io (dry run): {error}"
    except ApiError as error:
        return str(error)


async def _access(client: Any, facts: Facts) -> tuple[Access, ...]:
    found = []
    managed = any((one.get("spec") or {}).get("managed") for one in facts.of("nodepolicies"))
    controller = rights.CONTROLLER + (rights.MANAGED if managed else ())
    for component, wanted in ((AGENT, rights.AGENT), (CONTROLLER, controller)):
        if not facts.part(_WORKLOADS[component], component):
            continue  # it is not installed, which its own check says
        namespace, name = facts.account(component)
        account = f"system:serviceaccount:{namespace}:{name}"
        try:
            lacks = await rights.refused(client, (namespace, name), wanted, facts.driver)
            found.append(Access(account=account, refused=lacks))
        except ForbiddenError as error:
            problem = f"we may not create subjectaccessreviews.authorization.k8s.io: {error}"
            found.append(Access(account=account, problem=problem))
        except ApiError as error:
            found.append(Access(account=account, problem=str(error)))
    return tuple(found)


async def _failing(client: Any, facts: Facts) -> Mapping[str, Mapping[str, str]]:
    """What agents that are not ready say at ``/readyz``, through the server's proxy."""
    pods = [one for one in facts.part("pods", AGENT) if not is_ready(one)][:_MOST_ASKED]
    answers = await asyncio.gather(*(_readyz(client, one) for one in pods))
    return {
        resources.object_key(one): found for one, found in zip(pods, answers, strict=True) if found
    }


def is_ready(pod: Obj) -> bool:
    """Whether a pod says that it is ready."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


async def _readyz(client: Any, pod: Obj) -> Mapping[str, str]:
    meta, ports = pod["metadata"], pod["spec"]["containers"][0].get("ports") or ()
    port = next((one["containerPort"] for one in ports if one.get("name") == "http"), None)
    if port is None or (pod.get("status") or {}).get("phase") != "Running":
        return {}
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}:{port}/proxy/readyz"
    try:
        await client.get_raw(path)
    except ApiError as error:
        return failing_checks(str(error))
    return {}


def failing_checks(text: str) -> dict[str, str]:
    """Name and reason of each check that fails, from what ``/readyz`` says."""
    return {name: " ".join(why.split()) for name, why in _CHECK_LINE.findall(text)}


async def _stuck(client: Any, facts: Facts) -> tuple[Obj, ...]:
    items, _ = await _list(client, resources.EVENTS, None, {"field_selector": "reason=Failed"})
    told: dict[tuple[str, str], Obj] = {}
    for one in items:
        note = str(one.get("note") or one.get("message") or "")
        about = one.get("regarding") or one.get("involvedObject") or {}
        if "CDI" in note and facts.driver in note and about.get("kind") == "Pod":
            told[about.get("namespace", ""), about.get("name", "")] = one
    pods = list(told.items())[:_MOST_ASKED]
    waiting = await asyncio.gather(*(_waits(client, *key) for key, _ in pods))
    return tuple(one for (_, one), waits in zip(pods, waiting, strict=True) if waits)


async def _waits(client: Any, namespace: str, name: str) -> bool:
    """Whether the pod of an event still waits for its container."""
    try:
        pod = await client.get(resources.PODS, name, namespace)
    except ApiError:
        return False
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return any("waiting" in (one.get("state") or {}) for one in statuses)
