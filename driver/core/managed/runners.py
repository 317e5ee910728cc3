# SPDX-License-Identifier: Apache-2.0
"""What runs in managed mode, in the pieces in which it can be evicted."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpudra.api.resource_v1 import ResourceClaim
from gpudra.driver.core.gangs.jobs import EXTRA, group_key
from gpudra.driver.core.gangs.types import PodView
from gpudra.driver.core.managed.state import ManagedCluster
from gpudra.driver.core.preemption import Runner
from gpudra.driver.core.queueing import Amounts


def runners(state: ManagedCluster, going: frozenset[str] = frozenset()) -> Iterator[Runner]:
    """Everything that runs, but for what has to go already.

    Args:
        state: keeps what was worked out, until something about a job changes.
        going: uids of pods that are victims already.
    """
    for base in sorted(state.members):
        found = state.runners.get(base)
        if found is None:
            found = state.runners[base] = tuple(_runners_of(state, base))
        if not going or not any(pod.uid in going for one in found for pod, _ in one.seats):
            yield from found


def node_of_pod(state: ManagedCluster, pod: PodView) -> str:
    """Where a pod takes room."""
    return state.ground.seats.get(pod.uid, (pod, pod.node))[1]


def own_claims(state: ManagedCluster, pods: Sequence[PodView]) -> list[ResourceClaim]:
    """Allocated claims that only these pods use: what is free once they have ended."""
    uids = {pod.uid for pod in pods}
    found = {}
    for key in (ref.key for pod in pods for ref in pod.claims):
        claim = state.claims.get(key)
        allocated = claim is not None and claim.status.allocation is not None
        if claim is not None and allocated and state.users.get(key, set()) <= uids:
            found[key] = claim
    return list(found.values())


def _runners_of(state: ManagedCluster, base: str) -> Iterator[Runner]:
    """A gang goes as a whole; of one that may be disrupted singly, extras go alone."""
    seats = state.ground.seats
    pods = (state.pods[uid] for uid in sorted(state.members[base]))
    there = [pod for pod in pods if pod.placed and not pod.deleting and pod.uid in seats]
    if not there:
        return
    group = state.groups.get(there[0].group) if there[0].group else None
    if group is None or group.spec.disruption == "all":
        yield _runner(state, base, there)
        return
    least = {role.name: role.min_count for role in group.spec.roles}
    extras = _above_minimum(there, group.spec.min_count, least)
    if not extras:
        yield _runner(state, base, there)
    for pod in extras:
        yield _runner(state, f"{group_key(pod.group)}{EXTRA}{pod.name}", [pod])


def _runner(state: ManagedCluster, job: str, pods: list[PodView]) -> Runner:
    claims = own_claims(state, pods)
    started = [pod.started for pod in pods]
    alone = len(pods) == 1 and not pods[0].group
    return Runner(
        job=job,
        queue=state.queue_of(pods[0]),
        priority=max(pod.priority for pod in pods),
        since=None if None in started else max(one for one in started if one is not None),
        seats=tuple((pod, node_of_pod(state, pod)) for pod in pods),
        claims=tuple(claims),
        amounts=Amounts.total(
            state.tariff.allocated(one, one.status.allocation)
            for one in claims
            if one.status.allocation is not None
        ),
        budgets=tuple(key for pod in pods for key in state.budgets_of(pod)),
        fixed="belongs to its node" if any(pod.lasting for pod in pods) else "",
        movable=alone and bool(pods[0].owner) and len(claims) == len(pods[0].claims),
    )


def _above_minimum(
    there: Iterable[PodView], minimum: int, roles: Mapping[str, int]
) -> list[PodView]:
    """Pods that a gang can do without, the newest first."""
    newest = sorted(there, key=lambda pod: (-pod.created, pod.key))
    have = {role: sum(pod.role == role for pod in newest) for role in roles}
    spare = len(newest) - minimum
    found: list[PodView] = []
    for pod in newest:
        if len(found) >= spare:
            break
        if pod.role in roles:
            if have[pod.role] <= roles[pod.role]:
                continue
            have[pod.role] -= 1
        found.append(pod)
    return found
