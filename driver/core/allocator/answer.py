# SPDX-License-Identifier: Apache-2.0
"""From picked devices to ``status.allocation``: results, configuration, node selector.

Rules: ``AllocationResult`` in ``resource.k8s.io/v1`` and the structured allocator of 1.37.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpudra.api.meta import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import (
    FROM_CLAIM,
    FROM_CLASS,
    AllocationResult,
    Device,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
)
from gpudra.driver.core.allocator.holdings import claim_identity
from gpudra.driver.core.allocator.pools import Home
from gpudra.driver.core.allocator.requests import Alternative, ClaimPlan
from gpudra.driver.core.allocator.types import DeviceId

_SHARES = uuid.UUID("6f0e3b52-6d5d-5c0e-9d33-3f6a54f0b8d1")  # name space of our share ids


@dataclass(frozen=True, slots=True)
class Given:
    """One device given to one request, by name.

    Attributes:
        request: index of the request in the claim.
        alternative: what the request asked for.
        id: the device.
        device: as published.
        home: the slice's part in it.
        consumed: ``consumedCapacity`` for a shared device, else None.
    """

    request: int
    alternative: Alternative
    id: DeviceId
    device: Device
    home: Home
    consumed: Mapping[str, Quantity] | None


def allocation(plan: ClaimPlan, given: Sequence[Given], node_name: str) -> AllocationResult:
    """The allocation of one claim."""
    results = tuple(_result(plan, one, index) for index, one in enumerate(given))
    return AllocationResult(
        devices=DeviceAllocationResult(results=results, config=_config(plan, given)),
        node_selector=_node_selector(given, node_name),
    )


def _result(plan: ClaimPlan, one: Given, index: int) -> DeviceRequestAllocationResult:
    shared = one.consumed is not None
    return DeviceRequestAllocationResult(
        request=one.alternative.full,
        driver=one.id.driver,
        pool=one.id.pool,
        device=one.id.device,
        admin_access=True if one.alternative.admin else None,
        tolerations=one.alternative.tolerations,
        binding_conditions=one.device.binding_conditions,
        binding_failure_conditions=one.device.binding_failure_conditions,
        share_id=_share_id(plan, one, index) if shared else None,
        consumed_capacity={} if one.consumed is None else one.consumed,
        skip_node_operations=one.home.skip_operations,
    )


def _share_id(plan: ClaimPlan, one: Given, index: int) -> str:
    """Unique because the claim's uid is; the same question gets the same answer again."""
    name = f"{claim_identity(plan.claim)}/{one.id}/{one.alternative.full}/{index}"
    return str(uuid.uuid5(_SHARES, name))


def _config(plan: ClaimPlan, given: Sequence[Given]) -> tuple[DeviceAllocationConfiguration, ...]:
    """Configuration of the classes, each class once, then that of the claim.

    Entries that name only requests or alternatives which are not used are left out; an entry that
    names all requests names none, which means the same.
    """
    chosen = _chosen(plan, given)
    served: dict[str, list[str]] = {}
    for one in chosen:
        served.setdefault(one.class_name, []).append(one.full)
    entries: list[DeviceAllocationConfiguration] = []
    for name, requests in served.items():
        named = () if len(requests) == len(chosen) else tuple(requests)
        entries.extend(
            DeviceAllocationConfiguration(source=FROM_CLASS, requests=named, opaque=config.opaque)
            for config in plan.classes[name].spec.config
        )
    for config in plan.claim.spec.devices.config:
        wanted = set(config.requests)
        hit = [one for one in chosen if not wanted or one.base in wanted or one.full in wanted]
        if not hit:
            continue
        named = () if len(hit) == len(chosen) else config.requests
        entries.append(
            DeviceAllocationConfiguration(source=FROM_CLAIM, requests=named, opaque=config.opaque)
        )
    return tuple(entries)


def _chosen(plan: ClaimPlan, given: Sequence[Given]) -> list[Alternative]:
    """The alternative that serves each request, in the order of requests."""
    by_request: dict[int, Alternative] = {}
    for one in given:
        by_request.setdefault(one.request, one.alternative)
    return [by_request[index] for index in range(len(plan.requests)) if index in by_request]


def _node_selector(given: Sequence[Given], node_name: str) -> NodeSelector | None:
    """Where the allocation may be used: one node, what all selectors ask for, or anywhere."""
    expressions: dict[object, NodeSelectorRequirement] = {}
    fields: dict[object, NodeSelectorRequirement] = {}
    for one in given:
        home = one.home
        name = one.device.node_name if home.per_device else home.node_name
        selector = one.device.node_selector if home.per_device else home.selector
        if name or one.device.binds_to_node:
            return _only_node(node_name)
        if selector is not None:
            for term in selector.node_selector_terms:
                for requirement in term.match_expressions:
                    expressions.setdefault(_requirement_key(requirement), requirement)
                for requirement in term.match_fields:
                    fields.setdefault(_requirement_key(requirement), requirement)
    if not expressions and not fields:
        return None
    term = NodeSelectorTerm(
        match_expressions=tuple(expressions.values()), match_fields=tuple(fields.values())
    )
    return NodeSelector(node_selector_terms=(term,))


def _requirement_key(requirement: NodeSelectorRequirement) -> object:
    return requirement.key, requirement.operator, frozenset(requirement.values)


def _only_node(name: str) -> NodeSelector:
    field = NodeSelectorRequirement(key="metadata.name", operator="In", values=(name,))
    return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(field,)),))
