# SPDX-License-Identifier: Apache-2.0
"""Derived attributes of requests, as constraints see them (alpha in 1.37, DRADerivedAttributes).

A request may define attributes by expressions over each candidate device. A constraint that covers
the request takes such an attribute instead of what the device publishes under that name; selectors
never see them. So what a constraint compares depends on the request: its *source*.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpudra.api.errors import InputError
from gpudra.api.names import check_qualified_name
from gpudra.api.resource_v1 import DerivedAttribute
from gpudra.driver.core.allocator.reads import Reads, reads_of
from gpudra.driver.core.cel import (
    COST_LIMIT,
    CelCompileError,
    CompiledAttribute,
    compile_attribute,
)

MAX_DERIVED = 32  # DeviceDerivedAttributesMaxSize, per request

Source = tuple[str, str]
"""What a constraint compares: attribute, and the expression that derives it or ""."""


@dataclass(frozen=True, slots=True)
class DerivedPlan:
    """One derived attribute of a request."""

    compiled: CompiledAttribute
    reads: Reads


def compile_derived(
    attributes: Sequence[DerivedAttribute], where: str, refuse: Callable[[str], Exception]
) -> dict[str, DerivedPlan]:
    """Derived attributes of a request by name.

    Args:
        attributes: as written.
        where: the request, for messages.
        refuse: makes the error to raise out of a sentence.
    """
    if len(attributes) > MAX_DERIVED:
        raise refuse(f"{where}: {len(attributes)} derivedAttributes, {MAX_DERIVED} are allowed")
    plans: dict[str, DerivedPlan] = {}
    for index, one in enumerate(attributes):
        place = f"{where}: derivedAttributes[{index}]"
        try:
            check_qualified_name(one.name, "name", fully=True)
        except InputError as error:
            raise refuse(f"{place}: {error}") from error
        if one.name in plans:
            raise refuse(f"{place}: {one.name} is defined twice")
        try:
            compiled = compile_attribute(one.expression)
        except CelCompileError as error:
            raise refuse(f"{place}: CEL compile error: {error}") from error
        plans[one.name] = DerivedPlan(compiled, reads_of(compiled.root))
    return plans


def check_costs(plans: Sequence[DerivedPlan], refuse: Callable[[str], Exception]) -> None:
    """Refuses what the API server would not store: all of a claim share the limit of one."""
    cost = sum(plan.compiled.cost_estimate for plan in plans)
    if cost > COST_LIMIT:
        raise refuse(
            f"derivedAttributes may cost {cost} units together, {COST_LIMIT} are allowed per claim"
        )


def source_of(attribute: str, derived: Mapping[str, DerivedPlan]) -> Source:
    """Where a request has an attribute from: its own definition comes first."""
    plan = derived.get(attribute)
    return attribute, "" if plan is None else plan.compiled.expression
