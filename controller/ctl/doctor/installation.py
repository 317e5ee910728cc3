# SPDX-License-Identifier: Apache-2.0
"""Checks of what the chart installs: classes, admission policies, agents, controller. Pure."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from gpudra.api.resource_v1 import Device, DeviceClass
from gpudra.controller.ctl.doctor.facts import (
    AGENT,
    CONTROLLER,
    LEASE,
    Facts,
    is_ready,
    name_of,
)
from gpudra.controller.ctl.doctor.findings import Finding, error, named, ok, unknown, warning
from gpudra.driver.core.cel import (
    CelCompileError,
    CelDevice,
    CelEvaluationError,
    compile_selector,
)
from gpudra.driver.kube.resources import Obj, object_key

_UPGRADE = "helm upgrade gpudra deploy/charts/gpudra -n gpudra-system --reuse-values"
_POLICIES = {
    "resourceslices": "an agent could write the slices of every node",
    "nodes": "an agent could change every node object",
}
_READY_CHECKS = {
    "kubelet": (
        "kubelet-registration",
        (
            "look whether the kubelet runs with the --root-dir that kubeletPlugin.kubeletRoot names, "
            "and at its log for plugin_watcher"
        ),
    ),
    "registration-socket": (
        "kubelet-registration",
        "kubeletPlugin.kubeletRoot must be the kubelet's --root-dir; restart the agent's pod",
    ),
    "service-socket": ("agents", "something removed the agent's socket: restart its pod"),
    "hardware": (
        "driver",
        (
            "install or mend the kernel driver there (nvidia-smi must work), or keep the agent off "
            "nodes without GPUs with kubeletPlugin.nodeSelector"
        ),
    ),
    "slices": ("slices", "the agent's log says why it cannot publish: kubectl logs"),
}


def check_classes(facts: Facts) -> Iterator[Finding]:
    """The DeviceClasses exist, and their selectors give an answer for what is published."""
    if "deviceclasses" in facts.missing:
        return
    found = {name_of(one): one for one in facts.of("deviceclasses")}
    lacking = [name for name in class_names(facts.driver) if name not in found]
    if lacking:
        yield error(
            "device-classes",
            f"DeviceClass {named(lacking)} is missing, claims that name it stay pending",
            f"{_UPGRADE} (deviceClasses.create must be true), "
            "or kubectl apply -f deploy/manifests/deviceclasses.yaml",
            lacking,
        )
    samples = _samples(facts)
    trouble = [
        finding
        for name, one in sorted(found.items())
        for finding in _judge(facts.driver, name, DeviceClass.from_dict(dict(one)), samples)
    ]
    yield from trouble
    if not lacking and not trouble:
        yield ok("device-classes", f"{named(class_names(facts.driver))} select what they should")


def class_names(driver: str) -> Mapping[str, str]:
    """The classes of the chart, and the type of device that each selects."""
    base = driver.removeprefix("gpu.")
    forms = {f"{form}.{base}": form for form in ("mig", "share", "monitor")}
    return {driver: "gpu", f"nvidia.{driver}": "gpu", **forms}


def _samples(facts: Facts) -> dict[str, list[CelDevice]]:
    """One published device of each type and vendor, by type."""
    found: dict[tuple[str, str], CelDevice] = {}
    for one in facts.of("resourceslices"):
        for raw in one["spec"].get("devices") or ():
            values = raw.get("attributes") or {}
            key = (
                str((values.get("type") or {}).get("string", "")),
                str((values.get("vendor") or {}).get("string", "")),
            )
            if key not in found:
                found[key] = CelDevice.from_device(facts.driver, Device.from_dict(raw))
    samples: dict[str, list[CelDevice]] = {}
    for (form, _), device in found.items():
        samples.setdefault(form, []).append(device)
    return samples


def _judge(
    driver: str, name: str, wanted: DeviceClass, samples: Mapping[str, list[CelDevice]]
) -> Iterator[Finding]:
    expressions = [one.cel.expression for one in wanted.spec.selectors if one.cel]
    form = class_names(driver).get(name)
    if form is None and not any(driver in text for text in expressions):
        return
    try:
        selectors = [compile_selector(text, list_attributes=True) for text in expressions]
        hits = {
            kind
            for kind, devices in samples.items()
            for device in devices
            if all(selector.matches(device) for selector in selectors)
        }
    except (CelCompileError, CelEvaluationError) as trouble:
        yield error(
            "device-classes",
            f"a selector of DeviceClass {name} gives no answer: {' '.join(str(trouble).split())}",
            f'begin it with device.driver == "{driver}" and guard attributes that not every device '
            "has: one such error ends the whole attempt to place a pod",
            [name],
        )
        return
    if form in samples and form not in hits and not name.startswith("nvidia."):
        yield error(
            "device-classes",
            f"DeviceClass {name} selects none of the published devices of type {form}",
            f"restore its selector: {_UPGRADE}, or kubectl apply -f deploy/manifests/deviceclasses.yaml",
            [name],
        )


def check_admission(facts: Facts) -> Iterator[Finding]:
    """The policies that confine agents exist, name the agents' account and deny."""
    if "validatingadmissionpolicies" in facts.missing:
        return
    namespace, name = facts.account(AGENT)
    account = f"system:serviceaccount:{namespace}:{name}"
    denied = {
        str(one["spec"].get("policyName"))
        for one in facts.of("validatingadmissionpolicybindings")
        if "Deny" in (one["spec"].get("validationActions") or ())
    }
    trouble: list[Finding] = []
    for resource, danger in _POLICIES.items():
        about = [one for one in facts.of("validatingadmissionpolicies") if _is_about(one, resource)]
        trouble += _policy_trouble(resource, danger, account, about, denied)
    yield from trouble
    if not trouble:
        yield ok("admission", f"{account} is confined to its own node")


def _policy_trouble(
    resource: str, danger: str, account: str, about: list[Obj], denied: set[str]
) -> Iterator[Finding]:
    fix = f"{_UPGRADE} --set admissionPolicy.enabled=true"
    if not about:
        yield error(
            "admission", f"no admission policy confines agents' writes of {resource}: {danger}", fix
        )
        return
    good = [one for one in about if f'"{account}"' in str(one["spec"].get("matchConditions"))]
    names = [name_of(one) for one in about]
    if not good:
        message = f"admission policy {named(names)} does not name {account}: {danger}"
        yield error("admission", message, fix, names)
    elif not any(name_of(one) in denied for one in good):
        message = f"admission policy {named(names)} has no binding that denies: {danger}"
        yield error("admission", message, fix, names)


def _is_about(policy: Obj, resource: str) -> bool:
    """Whether it is one for accounts of agents (as the chart's) on this resource."""
    rules = (policy["spec"].get("matchConstraints") or {}).get("resourceRules") or ()
    about = any(resource in (rule.get("resources") or ()) for rule in rules)
    return about and "system:serviceaccount:" in str(policy["spec"].get("matchConditions"))


def check_agents(facts: Facts) -> Iterator[Finding]:
    """The DaemonSet runs everywhere, and every agent is ready."""
    if "daemonsets" in facts.missing or "pods" in facts.missing:
        return
    sets = facts.part("daemonsets", AGENT)
    if not sets:
        yield from _without_daemon_set(facts)
        return
    trouble = [finding for pod in facts.part("pods", AGENT) for finding in _pod(facts, pod)]
    yield from _merged(trouble)
    for one in sets:
        status = one.get("status") or {}
        wanted, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
        if wanted == 0:
            yield error(
                "agents",
                f"DaemonSet {object_key(one)} runs on no node",
                "give nodes the labels that kubeletPlugin.nodeSelector asks for, or clear it",
                [object_key(one)],
            )
        elif ready < wanted and not trouble:
            yield error(
                "agents",
                f"DaemonSet {object_key(one)} has {ready} of {wanted} agents ready",
                f"kubectl describe daemonset {name_of(one)} -n {one['metadata']['namespace']}",
                [object_key(one)],
            )
        elif not trouble:
            yield ok("agents", f"all {wanted} agents are ready")


def _without_daemon_set(facts: Facts) -> Iterator[Finding]:
    if facts.of("resourceslices"):
        yield warning(
            "agents",
            "agents publish, but no DaemonSet of the chart runs them",
            "nothing, if they are started otherwise, as development clusters do",
        )
        return
    yield error(
        "agents",
        f"no agent of {facts.driver} is installed",
        "helm install gpudra deploy/charts/gpudra -n gpudra-system "
        f"(or name another driver: --driver; this one is {facts.driver})",
    )


def _pod(facts: Facts, pod: Obj) -> Iterator[Finding]:
    if is_ready(pod) or pod["metadata"].get("deletionTimestamp"):
        return
    key, node = object_key(pod), str(pod["spec"].get("nodeName") or "no node yet")
    checks = facts.failing.get(key, {})
    for name, why in checks.items():
        check, fix = _READY_CHECKS.get(name, ("agents", "kubectl logs shows the agent's story"))
        yield error(check, f"the agent is not ready: {name}: {why}", fix, [node])
    if not checks:
        reason = _waiting(pod) or "it does not say why"
        yield error(
            "agents",
            f"an agent is not ready: {reason}",
            f"kubectl describe pod -n {pod['metadata']['namespace']} {name_of(pod)}",
            [node],
        )


def _waiting(pod: Obj) -> str:
    status = pod.get("status") or {}
    for one in status.get("containerStatuses") or ():
        waiting = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            return f"{waiting['reason']} {waiting.get('message', '')}".strip()
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            return str(condition.get("message") or condition.get("reason") or "")
    return ""


def _merged(found: list[Finding]) -> Iterator[Finding]:
    """One finding for many nodes that say the same."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for one in found:
        groups.setdefault((one.check, one.message), []).append(one)
    for (check, message), same in groups.items():
        nodes = {node for one in same for node in one.objects}
        yield error(check, f"{message} (on {named(nodes)})", same[0].fix, nodes)


def check_controller(facts: Facts) -> Iterator[Finding]:
    """The cluster side runs and one of its instances leads."""
    if "deployments" in facts.missing:
        return
    found = facts.part("deployments", CONTROLLER)
    if not found:
        yield warning(
            "controller",
            "the controller is not installed: nobody compares nodes, keeps the status of policies "
            "or counts what is allocated",
            f"{_UPGRADE} --set controller.enabled=true",
        )
        return
    for one in found:
        key = object_key(one)
        if not (one.get("status") or {}).get("availableReplicas"):
            yield error(
                "controller",
                f"no pod of Deployment {key} is available",
                f"kubectl describe deployment {name_of(one)} -n {one['metadata']['namespace']}",
                [key],
            )
        else:
            yield _leader(facts, str(one["metadata"]["namespace"]), key)


def _leader(facts: Facts, namespace: str, key: str) -> Finding:
    if "leases" in facts.missing:
        return unknown("controller", facts.missing["leases"])
    for lease in facts.of("leases"):
        if (lease["metadata"].get("namespace"), name_of(lease)) == (namespace, LEASE):
            spec = lease.get("spec") or {}
            renewed = spec.get("renewTime")
            age = (facts.now - datetime.fromisoformat(renewed)).total_seconds() if renewed else 1e9
            if spec.get("holderIdentity") and age < 2 * spec.get("leaseDurationSeconds", 15):
                return ok("controller", f"{spec['holderIdentity']} leads")
    return error(
        "controller",
        f"no instance of {key} holds the lease {namespace}/{LEASE}",
        f"kubectl logs -n {namespace} deployment/{key.rpartition('/')[2]}",
        [key],
    )
