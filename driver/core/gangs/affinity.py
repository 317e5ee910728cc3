# SPDX-License-Identifier: Apache-2.0
"""Required pod affinity and anti-affinity, as kube-scheduler's InterPodAffinity filter has them.

Counted per plan and only for terms that a waiting pod, or a pod that is there, really has.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from gpudra.driver.core.gangs.ground import Ground
from gpudra.driver.core.gangs.noderoom import HOSTNAME, NodeFacts
from gpudra.driver.core.gangs.types import LabelTest, Placed, PodTerm, PodView


def counts_for(term: PodTerm, pod: PodView) -> bool:
    """Whether a pod is one that a term speaks of."""
    if term.tests is None or (term.namespaces and pod.namespace not in term.namespaces):
        return False
    return all(holds(test, pod) for test in term.tests)


def holds(test: LabelTest, pod: PodView) -> bool:
    """Whether a pod's labels pass a test."""
    """Whether a pod's labels meet one condition of a selector."""
    value = pod.labels.get(test.key)
    if test.operator == "In":
        return value in test.values
    if test.operator == "NotIn":
        return value not in test.values
    return (value is not None) == (test.operator == "Exists")


def domain_of(term: PodTerm, facts: NodeFacts) -> str:
    """The node's domain for a term; empty when it is in none."""
    found = facts.node.labels.get(term.topology_key, "")
    return facts.name if not found and term.topology_key == HOSTNAME else found


class Neighbours:
    """Who is where, by the terms that somebody has. One per plan.

    Args:
        ground: the cluster.
        keep: pods that are still there; None: all.
    """

    def __init__(self, ground: Ground, keep: Callable[[PodView], bool] | None = None) -> None:
        self._ground, self._keep = ground, keep
        self._counts: dict[PodTerm, Counter[str]] = {}
        self._kept_off: dict[PodTerm, Counter[str]] = {}
        for pod, node in ground.carriers.values():
            if keep is None or keep(pod):
                self._carry(pod, node)
        self._seated: list[tuple[PodView, str]] = []

    def _carry(self, pod: PodView, node: str) -> None:
        facts = self._ground.facts.get(node)
        if facts is None:
            return
        for term in pod.rules.apart:
            self._kept_off.setdefault(term, Counter())[domain_of(term, facts)] += 1

    def concern(self, pods: Iterable[PodView]) -> bool:
        """Whether any of these pods cares for others, or others for it."""
        return any(
            pod.rules.apart
            or pod.rules.together
            or any(counts_for(term, pod) for term in self._kept_off)
            for pod in pods
        )

    def seat(self, pod: PodView, node: str) -> None:
        """The plan puts a pod there."""
        self._seated.append((pod, node))
        facts = self._ground.facts.get(node)
        if facts is None:
            return
        for term, counts in self._counts.items():
            if counts_for(term, pod):
                counts[domain_of(term, facts)] += 1
        self._carry(pod, node)

    def _count(self, term: PodTerm) -> Counter[str]:
        found = self._counts.get(term)
        if found is None:
            found = self._counts[term] = Counter()
            facts = self._ground.facts
            for pod, node in (*self._ground.seats.values(), *self._seated):
                there = node in facts and (self._keep is None or self._keep(pod))
                if there and counts_for(term, pod):
                    found[domain_of(term, facts[node])] += 1
        return found

    def accepts(self, pod: PodView, name: str, placed: Sequence[Placed]) -> bool:
        """Whether a pod may go to a node beside others of its job; see solver.Apart."""
        facts = self._ground.facts[name]
        for term in pod.rules.apart:
            domain = domain_of(term, facts)
            if domain and (self._count(term)[domain] or self._near(term, domain, placed)):
                return False
        for term, domains in self._kept_off.items():
            if domains[domain_of(term, facts)] and counts_for(term, pod):
                return False
        for one in placed:
            for term in one.pod.rules.apart:
                domain = domain_of(term, facts)
                if (
                    domain
                    and domain == domain_of(term, self._ground.facts[one.node])
                    and counts_for(term, pod)
                ):
                    return False
        return all(self._beside(term, pod, facts, placed) for term in pod.rules.together)

    def _near(self, term: PodTerm, domain: str, placed: Sequence[Placed]) -> bool:
        facts = self._ground.facts
        return any(
            counts_for(term, one.pod) and domain_of(term, facts[one.node]) == domain
            for one in placed
        )

    def _beside(
        self, term: PodTerm, pod: PodView, facts: NodeFacts, placed: Sequence[Placed]
    ) -> bool:
        domain = domain_of(term, facts)
        if not domain:
            return False
        counts = self._count(term)
        if counts[domain] or self._near(term, domain, placed):
            return True
        # The first of pods that want each other may begin anywhere.
        nobody = not counts.total() and not any(counts_for(term, one.pod) for one in placed)
        return nobody and counts_for(term, pod)
