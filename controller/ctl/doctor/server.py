# SPDX-License-Identifier: Apache-2.0
"""Checks of the API server: version, kinds, feature gates, rights of accounts, clocks. Pure."""

import re
from collections.abc import Iterator
from datetime import datetime

from gpudra.controller.ctl.doctor.facts import NODE_LEASES, Facts, name_of
from gpudra.controller.ctl.doctor.findings import Finding, error, named, ok, unknown, warning
from gpudra.driver.core.features import ServerFeatures

_OLDEST = (1, 34)
_DRA = "resource.k8s.io/v1"
_DRA_KINDS = ("deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices")
_SKEW = 10.0
"""Seconds that a node's clock may be ahead of the server's."""
_BEHIND = 120.0
"""A node that is Ready renewed its lease at most 40 s ago; older means that its clock is slow."""
_OURS = 60.0
_GATES = {
    "counters": ("DRAPartitionableDevices", "MIG parts; one form of each card is published"),
    "consumable_capacity": ("DRAConsumableCapacity", "shares"),
    "device_taints": ("DRADeviceTaints", "taints; sick devices are left out instead"),
}


def check_version(facts: Facts) -> Iterator[Finding]:
    """Kubernetes is new enough and serves what claims need."""
    found = re.match(r"v?(\d+)\.(\d+)", facts.version)
    if found and (int(found[1]), int(found[2])) < _OLDEST:
        yield error(
            "api-versions",
            f"Kubernetes {facts.version} is too old",
            "upgrade to 1.34 or newer",
        )
        return
    lacking = [kind for kind in _DRA_KINDS if kind not in facts.kinds.get(_DRA, ())]
    if lacking:
        yield error(
            "api-versions",
            f"the API server does not serve {', '.join(lacking)} of {_DRA}",
            "start kube-apiserver without --runtime-config=resource.k8s.io/v1=false and with the "
            "feature gate DynamicResourceAllocation",
            lacking,
        )
        return
    yield ok("api-versions", f"Kubernetes {facts.version} serves {_DRA}")


def check_kinds(facts: Facts) -> Iterator[Finding]:
    """Our own kinds are installed."""
    if "nodepolicies" in facts.kinds.get("gpudra.io/v1alpha1", ()):
        yield ok("crds", "NodePolicy is served")
    else:
        yield error(
            "crds",
            "the kind NodePolicy is not installed, so agents go by their defaults",
            "kubectl apply -f deploy/charts/gpudra/crds/ (helm upgrade never adds CRDs)",
            ["nodepolicies.gpudra.io"],
        )


def check_features(facts: Facts) -> Iterator[Finding]:
    """What a dry-run write of a slice keeps; gates cannot be asked for."""
    if facts.features is None:
        why = facts.missing.get("features", "nothing is known")
        yield unknown("features", why, "ask with an account that may create resourceslices")
        return
    off = {gate: what for field, (gate, what) in _GATES.items() if _is_off(facts.features, field)}
    if not off:
        yield ok("features", "the API server keeps counters, shares and taints of devices")
    for gate, what in off.items():
        yield warning(
            "features",
            f"the API server drops what {gate} needs, so there are no {what}",
            f"set --feature-gates={gate}=true on kube-apiserver, kube-scheduler, "
            "kube-controller-manager and the kubelets (on by default since 1.36)",
            [gate],
        )


def _is_off(features: ServerFeatures, field: str) -> bool:
    return not getattr(features, field)


def check_access(facts: Facts) -> Iterator[Finding]:
    """The accounts of agent and controller may do what they have to."""
    for one in facts.access:
        check = "permissions"
        if one.problem:
            yield unknown(
                check, f"{one.account}: {one.problem}", "ask with an administrator's account"
            )
        elif one.refused:
            lacks = [str(right) for right in one.refused]
            yield error(
                check,
                f"{one.account} may not {named(lacks)}",
                "helm upgrade restores the chart's roles; without helm: "
                f"kubectl describe clusterrole {one.account.rpartition(':')[2]}",
                lacks,
            )
        else:
            yield ok(check, f"{one.account} may do what it has to")


def check_reading(facts: Facts) -> Iterator[Finding]:
    """What we may not read ourselves."""
    for plural, why in facts.missing.items():
        if plural != "features":
            yield unknown("reading", why, "ask with an account that may read it")


def check_clock(facts: Facts) -> Iterator[Finding]:
    """Nodes, server and we agree about the time, by the nodes' leases."""
    ahead, behind = [], []
    ready = {name_of(one) for one in facts.of("nodes") if _is_ready(one)}
    for lease in facts.of("leases"):
        if lease["metadata"].get("namespace") != NODE_LEASES or name_of(lease) not in ready:
            continue
        renewed = (lease.get("spec") or {}).get("renewTime")
        off = (datetime.fromisoformat(renewed) - facts.now).total_seconds() if renewed else 0.0
        if off > _SKEW:
            ahead.append(name_of(lease))
        elif off < -_BEHIND:
            behind.append(name_of(lease))
    fix = "let chrony or systemd-timesyncd run there: timedatectl status"
    if ahead:
        yield error("clock", f"clocks run ahead of the server's on {named(ahead)}", fix, ahead)
    if behind:
        yield error("clock", f"clocks are behind the server's on {named(behind)}", fix, behind)
    if facts.clock is not None and abs(facts.clock) > _OURS:
        yield warning(
            "clock",
            f"this machine's clock differs from the server's by {abs(facts.clock):.0f} s",
            "ages that gpudra prints are wrong by that much; set this machine's clock",
        )
    elif not ahead and not behind:
        yield ok("clock", "the clocks of the nodes agree with the server's")


def _is_ready(node: dict[str, object]) -> bool:
    status = node.get("status")
    conditions = status.get("conditions") or () if isinstance(status, dict) else ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
