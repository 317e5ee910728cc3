# SPDX-License-Identifier: Apache-2.0
"""Which NodePolicy decides for a node, and what it says about the node's cards.

Pure; used by the node agent for its own node, by the cluster side for all (conflicts), and by
``gpudra slices``. One policy decides for a node as a whole: the one with the most labels in its
nodeSelector. Of two that are equally specific the older one decides, and both are told.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gpudra.api.nodepolicy import ModelRule, NodePolicy, NodePolicySpec
from gpudra.driver.core.forms import (
    EVERYTHING,
    CardForms,
    DeviceOrder,
    MigMode,
    ModelForms,
    PublishPolicy,
    parse_forms,
)


def fits(policy: NodePolicy, labels: Mapping[str, str]) -> bool:
    """Whether a node has all labels that the policy asks for."""
    return all(labels.get(key) == value for key, value in policy.spec.node_selector.items())


def rivals(policies: Iterable[NodePolicy], labels: Mapping[str, str]) -> tuple[NodePolicy, ...]:
    """The most specific policies of a node, the one that decides first; empty without any."""
    fitting = [one for one in policies if fits(one, labels)]
    most = max((len(one.spec.node_selector) for one in fitting), default=0)
    found = [one for one in fitting if len(one.spec.node_selector) == most]
    return tuple(
        sorted(found, key=lambda one: (one.metadata.creation_timestamp, one.metadata.name))
    )


def resolve(policies: Iterable[NodePolicy], labels: Mapping[str, str]) -> PublishPolicy:
    """What a node with these labels publishes; without any policy everything that its cards can be."""
    found = rivals(policies, labels)
    return publish_policy(found[0]) if found else EVERYTHING


def publish_policy(policy: NodePolicy) -> PublishPolicy:
    """One policy as the rest of the core reads it."""
    spec = policy.spec
    forms = _forms(spec, EVERYTHING.forms)
    return PublishPolicy(
        order=DeviceOrder(spec.order),
        excluded=frozenset(spec.excluded),
        forms=forms,
        models=tuple(
            ModelForms(names=rule.names, forms=_forms(rule, forms)) for rule in spec.models
        ),
        isolation=str(spec.isolation) if spec.isolation else None,
        managed=spec.managed,
        xid_effects=MappingProxyType(
            {code: str(rule.effect) for rule in spec.xids for code in rule.codes}
        ),
    )


def _forms(spec: NodePolicySpec | ModelRule, default: CardForms) -> CardForms:
    over = spec.memory_oversubscription
    return CardForms(
        kinds=default.kinds if spec.forms is None else parse_forms(spec.forms),
        mig=default.mig if spec.mig is None else MigMode(spec.mig),
        memory_oversubscription=default.memory_oversubscription if over is None else over,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVerdict:
    """What the cluster side tells about one policy.

    Attributes:
        name: of the policy.
        nodes: how many nodes it decides for.
        conflicts: other policies that are as specific for some node, with how many nodes each,
            and the first of those nodes.
        overruled: how many of the nodes in conflict another policy decides for.
    """

    name: str
    nodes: int = 0
    conflicts: tuple[tuple[str, int, str], ...] = ()
    overruled: int = 0

    @property
    def message(self) -> str:
        """For the condition."""
        if not self.conflicts:
            return "no other policy is as specific for any node"
        others = "; ".join(
            f"NodePolicy {other} on {count} node{'s' if count > 1 else ''} ({first}"
            f"{', …' if count > 1 else ''})"
            for other, count, first in self.conflicts
        )
        return (
            f"as specific as {others}; the oldest decides, which on {self.overruled} of these"
            " nodes is not this one; give one of them more labels in nodeSelector"
        )


def verdicts(
    policies: Iterable[NodePolicy], nodes: Mapping[str, Mapping[str, str]]
) -> tuple[PolicyVerdict, ...]:
    """Looks at every node's labels and says for each policy where it decides and who disputes it.

    Args:
        policies: all of the cluster.
        nodes: labels by name of the node.
    """
    known = sorted(policies, key=lambda one: one.metadata.name)
    decides: Counter[str] = Counter()
    overruled: Counter[str] = Counter()
    disputed: dict[str, dict[str, list[str]]] = {one.metadata.name: {} for one in known}
    for node, labels in sorted(nodes.items()):
        found = [one.metadata.name for one in rivals(known, labels)]
        decides.update(found[:1])
        overruled.update(found[1:])
        for name in found:
            for other in found:
                if other != name:
                    disputed[name].setdefault(other, []).append(node)
    return tuple(
        PolicyVerdict(
            name=name,
            nodes=decides[name],
            conflicts=tuple(
                (other, len(where), where[0]) for other, where in sorted(disputed[name].items())
            ),
            overruled=overruled[name],
        )
        for name in disputed
    )
