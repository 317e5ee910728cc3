# SPDX-License-Identifier: Apache-2.0
"""Structured allocation: which devices do claims get, and why not.

The semantics are those of ``resource.k8s.io/v1`` in Kubernetes 1.37; where upstream's allocator
errs, ours does not (docs/decisions/allocator-differences.md). Everything here is pure.

    >>> from gpudra.driver.core.allocator import ClusterIndex, Node
    >>> index = ClusterIndex.of(nodes=[Node("node-a")])
    >>> index.allocate([], "node-a").outcome.value
    'allocated'
"""

from gpudra.driver.core.allocator.explain import (
    Explanation,
    Kind,
    RequestExplanation,
    explain_claims,
)
from gpudra.driver.core.allocator.index import ClusterIndex
from gpudra.driver.core.allocator.nodeselector import matches
from gpudra.driver.core.allocator.pools import is_unreadable, unreadable_slice
from gpudra.driver.core.allocator.question import NodeAnswers
from gpudra.driver.core.allocator.relax import Change, Relaxation, relaxations
from gpudra.driver.core.allocator.search import Scorer
from gpudra.driver.core.allocator.tries import Pick, Solution
from gpudra.driver.core.allocator.types import (
    Answer,
    Deadline,
    DeviceId,
    Node,
    Outcome,
    Reason,
    Refusal,
)

__all__ = [
    "Answer",
    "Change",
    "ClusterIndex",
    "Deadline",
    "DeviceId",
    "Explanation",
    "Kind",
    "Node",
    "NodeAnswers",
    "Outcome",
    "Pick",
    "Reason",
    "Refusal",
    "Relaxation",
    "RequestExplanation",
    "Scorer",
    "Solution",
    "explain_claims",
    "is_unreadable",
    "matches",
    "relaxations",
    "unreadable_slice",
]
