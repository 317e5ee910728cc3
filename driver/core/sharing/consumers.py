# SPDX-License-Identifier: Apache-2.0
"""Who uses a claim: the containers of its pods, and what each of them sees of it.

A container names a claim of its pod, and perhaps one request of it; it sees the whole claim or that
request. Prepare is told neither, so the agent reads the pods.

Fields: PodSpec.resourceClaims, Container.resources.claims, PodStatus.resourceClaimStatuses,
PodStatus.extendedResourceClaimStatus (KEP-3063, KEP-5004).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """One container that uses claims.

    Attributes:
        pod: its name.
        container: its name.
        init: it runs before the others and ends (a sidecar is none of these).
        shared_pids: all containers of the pod have one process namespace.
        uses: by name of the claim, the requests that it sees; an empty set is the whole claim.
    """

    pod: str
    container: str
    init: bool = False
    shared_pids: bool = False
    uses: Mapping[str, frozenset[str]]

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"container {self.container} of pod {self.pod}"

    def sees(self, claim: str, requests: Iterable[str]) -> tuple[str, ...]:
        """The requests of a claim that it sees, ascending; nothing if it does not use it."""
        named = self.uses.get(claim)
        if named is None:
            return ()
        return tuple(sorted(one for one in set(requests) if not named or one in named))


def consumers_of(pods: Iterable[Mapping[str, Any]]) -> tuple[Consumer, ...]:
    """The containers of pods that have not ended and use a claim, in the order of the pods."""
    return tuple(found for pod in pods if not _ended(pod) for found in _of_pod(pod))


def _ended(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ENDED


def _of_pod(pod: Mapping[str, Any]) -> Iterator[Consumer]:
    spec = pod.get("spec") or {}
    claims = _claim_names(pod)
    extended = _extended(pod)
    name = str((pod.get("metadata") or {}).get("name", ""))
    for init, key in ((True, "initContainers"), (False, "containers")):
        for container in spec.get(key) or ():
            uses = _uses(container, claims)
            for claim, requests in extended.get(container.get("name", ""), {}).items():
                uses.setdefault(claim, set()).update(requests)
            if uses:
                yield Consumer(
                    pod=name,
                    container=str(container.get("name", "")),
                    init=init and container.get("restartPolicy") != "Always",
                    shared_pids=bool(spec.get("shareProcessNamespace") or spec.get("hostPID")),
                    uses={claim: frozenset(found) for claim, found in uses.items()},
                )


def _claim_names(pod: Mapping[str, Any]) -> dict[str, str]:
    """Names of claims by the names that the pod has for them."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    found: dict[str, str] = {}
    for one in spec.get("resourceClaims") or ():
        if one.get("resourceClaimName"):
            found[one["name"]] = one["resourceClaimName"]
    for one in status.get("resourceClaimStatuses") or ():
        if one.get("resourceClaimName"):
            found[one["name"]] = one["resourceClaimName"]
    return found


def _uses(container: Mapping[str, Any], claims: Mapping[str, str]) -> dict[str, set[str]]:
    wholes: set[str] = set()
    found: dict[str, set[str]] = {}
    for one in (container.get("resources") or {}).get("claims") or ():
        claim = claims.get(one.get("name", ""))
        if claim is None:
            continue
        requests = found.setdefault(claim, set())
        if one.get("request"):
            requests.add(one["request"])
        else:
            wholes.add(claim)
    for claim in wholes:
        found[claim] = set()
    return found


def _extended(pod: Mapping[str, Any]) -> dict[str, dict[str, set[str]]]:
    """By container: the claim that the scheduler made for extended resources, and its requests."""
    status = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    claim = status.get("resourceClaimName")
    found: dict[str, dict[str, set[str]]] = {}
    for one in status.get("requestMappings") or () if claim else ():
        uses = found.setdefault(one.get("containerName", ""), {})
        uses.setdefault(str(claim), set()).add(one.get("requestName", ""))
    return found


def view_of(claim: str, requests: Sequence[str], consumers: Iterable[Consumer]) -> tuple[str, ...]:
    """What the containers of a claim see of it; everything if none is known.

    Where containers differ, the first one's view; ``problem`` says so.
    """
    for consumer in consumers:
        seen = consumer.sees(claim, requests)
        if seen:
            return seen
    return tuple(sorted(set(requests)))


def different_views(
    claim: str, requests: Sequence[str], view: tuple[str, ...], consumers: Iterable[Consumer]
) -> str:
    """What speaks against one set of variables for all containers of a claim, or nothing."""
    for consumer in consumers:
        seen = consumer.sees(claim, requests)
        if seen and seen != view:
            return (
                f"{consumer.label} sees request {', '.join(seen)} while the limits are made for "
                f"{', '.join(view)}: give each container a claim of its own"
            )
    return ""


def two_claims(claim: str, consumers: Iterable[Consumer], gpu_claims: frozenset[str]) -> str:
    """A container with a second claim of this driver, whose variables would clash; or nothing."""
    for consumer in consumers:
        others = sorted((gpu_claims & consumer.uses.keys()) - {claim})
        if claim in consumer.uses and others:
            return f"{consumer.label} has claim {others[0]} beside {claim}: put both into one claim"
    return ""


def separate_pids(claim: str, consumers: Iterable[Consumer]) -> str:
    """Containers that run at one time and cannot see each other's processes; or nothing."""
    users = [one for one in consumers if claim in one.uses and not one.init]
    if len(users) < 2 or (len({one.pod for one in users}) == 1 and users[0].shared_pids):
        return ""
    return (
        f"{users[0].label} and {users[1].label} would count in one cache with process ids of their "
        "own: give each a claim of its own, or set shareProcessNamespace"
    )
