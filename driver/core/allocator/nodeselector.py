# SPDX-License-Identifier: Apache-2.0
"""Whether a node is one that a slice, device or allocation is meant for.

Rules of ``core/v1`` NodeSelector (component-helpers ``nodeaffinity``), plus the narrower one of
``resource.k8s.io``: a slice's or device's selector has exactly one term. A selector that breaks
the rules matches nothing and is reported: it fails closed.
"""

from collections.abc import Mapping

from gpudra.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from gpudra.driver.core.allocator.types import Node

_NAME_FIELD = "metadata.name"
_WITH_VALUES = {"In", "NotIn"}
_WITHOUT_VALUES = {"Exists", "DoesNotExist"}
_NUMERIC = {"Gt", "Lt"}


def selector_problem(selector: NodeSelector, *, terms: int | None = 1) -> str:
    """What is wrong with a selector, or an empty text.

    Args:
        selector: from a slice, a device, or with ``terms=None`` from anywhere.
        terms: how many terms it must have.
    """
    count = len(selector.node_selector_terms)
    if terms is not None and count != terms:
        return f"nodeSelector has {count} terms instead of {terms}"
    for term in selector.node_selector_terms:
        for requirement in term.match_expressions:
            problem = _requirement_problem(requirement)
            if problem:
                return problem
        for requirement in term.match_fields:
            problem = _field_problem(requirement)
            if problem:
                return problem
    return ""


def _requirement_problem(requirement: NodeSelectorRequirement) -> str:
    operator, count = requirement.operator, len(requirement.values)
    if not requirement.key:
        return "nodeSelector has a requirement without key"
    if operator in _WITH_VALUES:
        wrong = count == 0
    elif operator in _WITHOUT_VALUES:
        wrong = count != 0
    elif operator in _NUMERIC:
        wrong = count != 1 or _number(requirement.values[0]) is None
    else:
        return f"nodeSelector has the unknown operator {operator!r}"
    return f"nodeSelector has bad values for {requirement.key} {operator}" if wrong else ""


def _field_problem(requirement: NodeSelectorRequirement) -> str:
    if requirement.key != _NAME_FIELD:
        return f"nodeSelector has the unknown field {requirement.key!r}"
    if requirement.operator not in _WITH_VALUES or len(requirement.values) != 1:
        return "nodeSelector must name exactly one metadata.name"
    return ""


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def matches(selector: NodeSelector, node: Node) -> bool:
    """Whether one of the terms holds; a malformed selector and an empty term match nothing."""
    if selector_problem(selector, terms=None):
        return False
    return any(_term_matches(term, node) for term in selector.node_selector_terms)


def _term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    names = {_NAME_FIELD: node.name}
    return all(_holds(one, node.labels) for one in term.match_expressions) and all(
        _holds(one, names) for one in term.match_fields
    )


def _holds(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    operator = requirement.operator
    if operator == "In":
        return value in requirement.values
    if operator == "NotIn":
        return value not in requirement.values
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    mine, bound = _number(value or ""), _number(requirement.values[0])
    if mine is None or bound is None:
        return False
    return mine > bound if operator == "Gt" else mine < bound


def reaches(
    node: Node, node_name: str, all_nodes: bool | None, selector: NodeSelector | None
) -> bool:
    """Whether a slice or device with these three fields is meant for the node."""
    if node_name:
        return node_name == node.name
    if all_nodes:
        return True
    return selector is not None and not selector_problem(selector) and matches(selector, node)
