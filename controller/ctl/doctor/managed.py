# SPDX-License-Identifier: Apache-2.0
"""Checks of NodePolicies, and of what managed mode needs where one asks for it. Pure."""

from collections.abc import Iterator

from gpudra.api.nodepolicy import CONFLICT
from gpudra.controller.ctl.doctor.facts import CONTROLLER, Facts, name_of
from gpudra.controller.ctl.doctor.findings import Finding, error, named, ok, warning

QUEUES = "queues"
GATE = "gpudra.io/admission"


def check_policies(facts: Facts) -> Iterator[Finding]:
    """No two NodePolicies are equally specific for one node."""
    disputed = [
        name_of(one)
        for one in facts.of("nodepolicies")
        for condition in (one.get("status") or {}).get("conditions") or ()
        if condition.get("type") == CONFLICT and condition.get("status") == "True"
    ]
    if disputed:
        yield warning(
            "policies",
            f"NodePolicies dispute nodes: {named(disputed)}",
            "kubectl describe nodepolicy shows the nodes; make one policy's nodeSelector narrower",
            disputed,
        )


def check_managed(facts: Facts) -> Iterator[Finding]:
    """Where a policy says ``managed: true``: the kinds, the gate and the taints are there."""
    users = [
        name_of(one) for one in facts.of("nodepolicies") if (one.get("spec") or {}).get("managed")
    ]
    if not users:
        return
    trouble = list(_managed_trouble(facts, users))
    yield from trouble
    if not trouble:
        yield ok("managed-mode", f"what NodePolicy {named(users)} needs for managed mode is there")


def _managed_trouble(facts: Facts, users: list[str]) -> Iterator[Finding]:
    check, why = "managed-mode", f"NodePolicy {named(users)} asks for managed mode, but"
    if QUEUES not in facts.kinds.get("gpudra.io/v1alpha1", ()):
        yield error(
            check,
            f"{why} the kind Queue is not installed",
            "kubectl apply -f deploy/charts/gpudra/crds/ (helm upgrade never adds CRDs)",
            users,
        )
    if facts.features is not None and not facts.features.device_taints:
        yield error(
            check,
            f"{why} the API server drops taints of devices, which keep the scheduler off them",
            "set --feature-gates=DRADeviceTaints=true on all components",
            users,
        )
    if "mutatingadmissionpolicies" not in facts.missing and not any(
        GATE in str(one["spec"]) for one in facts.of("mutatingadmissionpolicies")
    ):
        yield error(
            check,
            f"{why} no MutatingAdmissionPolicy puts the gate {GATE} on pods",
            "helm upgrade with managed.enabled=true; it needs MutatingAdmissionPolicy "
            "(admissionregistration.k8s.io/v1, Kubernetes 1.36)",
            users,
        )
    if not facts.part("deployments", CONTROLLER) and "deployments" not in facts.missing:
        yield error(
            check,
            f"{why} the controller is not installed",
            "helm upgrade with controller.enabled=true",
        )
