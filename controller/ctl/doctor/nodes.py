# SPDX-License-Identifier: Apache-2.0
"""Checks of the nodes with GPUs: driver, device plugins, slices, container runtime, health. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping

from gpudra.controller.ctl.doctor.facts import AGENT, Facts, is_ready, labels, name_of
from gpudra.controller.ctl.doctor.findings import Finding, error, named, ok, warning
from gpudra.driver.core.nodestate import CONDITION, LABEL_PREFIX, device_plugin_resources
from gpudra.driver.kube.resources import Obj

_GPU_LABELS = (
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
    "feature.node.kubernetes.io/pci-1002.present",
)
_VENDORS = ("nvidia", "amd")
# What a node says about itself (docs/operations.md), the check it belongs to, and what mends it.
_REASONS = {
    "DriverMissing": (
        "driver",
        (
            "install the kernel driver (nvidia-smi must work there); with NVIDIA's driver container set "
            "kubeletPlugin.driverRoot=/run/nvidia/driver; on a node without GPUs keep the agent off with "
            "kubeletPlugin.nodeSelector"
        ),
    ),
    "DevicesNotBound": ("driver", "bind the cards to the driver: lspci -k there says who has them"),
    "NoDevices": (
        "driver",
        (
            "look whether the cards sit well (lspci); keep the agent off nodes without GPUs with "
            "kubeletPlugin.nodeSelector"
        ),
    ),
    "SelfTestFailed": ("driver", "nvidia-smi -q on the node says what is wrong; reboot it"),
    "GPUsUnreadable": ("driver", "look at the agent's log and at dmesg on the node"),
    "NotPublished": ("slices", "the agent's log says why it cannot publish"),
    "DevicePluginActive": (
        "device-plugin",
        (
            "take the device plugin off these nodes (its DaemonSet's nodeSelector): two schedulers "
            "would give out the same card"
        ),
    ),
    "GPUsUnhealthy": ("health", "gpudra devices shows the taints; docs/operations.md their causes"),
}
_CONTAINERD = re.compile(r"containerd://v?(\d+)\.(\d+)")
_CRIO = re.compile(r"cri-o://v?(\d+)\.(\d+)")


def gpu_nodes(facts: Facts) -> dict[str, Obj]:
    """Nodes that have GPUs, as far as anything says so, by name."""
    publish = {one["spec"].get("nodeName") for one in facts.of("resourceslices")}
    return {
        name_of(node): node
        for node in facts.of("nodes")
        if name_of(node) in publish or _says_gpus(node)
    }


def _says_gpus(node: Obj) -> bool:
    found = labels(node)
    return (
        _condition(node) is not None
        or any(name.startswith(LABEL_PREFIX) for name in found)
        or any(found.get(name) == "true" for name in _GPU_LABELS)
        or bool(device_plugin_resources(node, _VENDORS))
    )


def _says(node: Obj, condition: str) -> Mapping[str, str]:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == condition), {})


def _condition(node: Obj) -> Mapping[str, str] | None:
    return _says(node, CONDITION) or None


def check_nodes(facts: Facts) -> Iterator[Finding]:
    """What nodes say of themselves, and whether an agent looks after each of them."""
    if "nodes" in facts.missing:
        return
    nodes = gpu_nodes(facts)
    if not nodes:
        yield error(
            "nodes",
            "no node has GPUs that anybody knows of",
            "the agent has to run on them: kubectl get pods -A -l app.kubernetes.io/name=gpudra -o wide",
        )
        return
    trouble = [
        *_not_ready(nodes),
        *_by_reason(nodes),
        *_without_agent(facts, nodes),
        *_beside_plugin(nodes),
    ]
    yield from trouble
    if not trouble:
        yield ok("driver", f"the driver answers on all {len(nodes)} nodes with GPUs")
        yield ok("device-plugin", "no device plugin offers the same cards")


def _not_ready(nodes: Mapping[str, Obj]) -> Iterator[Finding]:
    down = [name for name, node in nodes.items() if _says(node, "Ready").get("status") != "True"]
    if down:
        yield error(
            "nodes",
            f"{named(down)} are not Ready, so nothing is given out there",
            "kubectl describe node says why; mostly the kubelet or the network is down",
            down,
        )


def _by_reason(nodes: Mapping[str, Obj]) -> Iterator[Finding]:
    groups: dict[tuple[str, str], list[str]] = {}
    for name, node in nodes.items():
        said = _condition(node)
        if said is not None and (said["status"] != "True" or said.get("reason") == "GPUsUnhealthy"):
            groups.setdefault((str(said.get("reason")), str(said.get("message"))), []).append(name)
    for (reason, message), names in sorted(groups.items()):
        check, fix = _REASONS.get(reason, ("driver", "kubectl describe node shows more"))
        text = f"{named(names)}: {reason}: {message}"
        make = warning if reason == "GPUsUnhealthy" else error
        yield make(check, text, fix, names)


def _without_agent(facts: Facts, nodes: Mapping[str, Obj]) -> Iterator[Finding]:
    """Nodes where nothing of ours was ever heard of."""
    pods = {str(one["spec"].get("nodeName")): one for one in facts.part("pods", AGENT)}
    publish = {one["spec"].get("nodeName") for one in facts.of("resourceslices")}
    silent = [
        name
        for name, node in nodes.items()
        if name not in publish and name not in pods and _condition(node) is None
    ]
    if silent:
        yield error(
            "agents",
            f"no agent runs on {named(silent)}, which have GPUs",
            "kubeletPlugin.nodeSelector, affinity and tolerations of the chart must let the "
            "DaemonSet onto them",
            silent,
        )


def _beside_plugin(nodes: Mapping[str, Obj]) -> Iterator[Finding]:
    """Nodes with a device plugin whose agent has not said so yet."""
    found = {
        name: device_plugin_resources(node, _VENDORS)
        for name, node in nodes.items()
        if (_condition(node) or {}).get("reason") != "DevicePluginActive"
    }
    both = {name: offered for name, offered in found.items() if offered}
    if both:
        offered = sorted({one for each in both.values() for one in each})
        yield error(
            "device-plugin",
            f"a device plugin offers {', '.join(offered)} on {named(both)}",
            _REASONS["DevicePluginActive"][1],
            both,
        )


def check_slices(facts: Facts) -> Iterator[Finding]:
    """Every node with GPUs publishes, and every pool is whole."""
    if "resourceslices" in facts.missing or "nodes" in facts.missing:
        return
    pools: dict[str, list[Obj]] = {}
    for one in facts.of("resourceslices"):
        pools.setdefault(str(one["spec"]["pool"]["name"]), []).append(one)
    known = {name_of(one) for one in facts.of("nodes")}
    parts = sorted(name for name, slices in pools.items() if not _is_whole(slices))
    orphans = sorted(
        name
        for name, slices in pools.items()
        if (node := slices[0]["spec"].get("nodeName")) and node not in known
    )
    silent = _silent(facts, pools)
    yield from _slice_trouble(parts, orphans, silent)
    if pools and not (parts or orphans or silent):
        count = sum(len(slices) for slices in pools.values())
        yield ok("slices", f"{len(pools)} pools with {count} slices are whole")


def _slice_trouble(parts: list[str], orphans: list[str], silent: list[str]) -> Iterator[Finding]:
    if parts:
        yield error(
            "slices",
            f"slices are missing in the pool of {named(parts)}: the scheduler gives nothing out of it",
            "the agent completes it within seconds; if not, its log says why "
            "(a slice that somebody else deletes or changes comes back)",
            parts,
        )
    if orphans:
        yield error(
            "slices",
            f"slices are published for {named(orphans)}, and there is no such node",
            "kubectl delete resourceslices --field-selector spec.nodeName=NAME",
            orphans,
        )
    if silent:
        yield error(
            "slices",
            f"{named(silent)} have GPUs and publish nothing",
            "the kubelet deletes slices 30 s after it lost the agent: look at the agent's /readyz "
            "and log, and whether the kubelet runs",
            silent,
        )


def _is_whole(slices: Iterable[Obj]) -> bool:
    """Whether the newest generation has as many slices as it says."""
    pools = [one["spec"]["pool"] for one in slices]
    newest = max(pool.get("generation", 0) for pool in pools)
    current = [pool for pool in pools if pool.get("generation", 0) == newest]
    return all(pool.get("resourceSliceCount") == len(current) for pool in current)


def _silent(facts: Facts, pools: Mapping[str, object]) -> list[str]:
    """Nodes that say they are ready, or whose agent is, without slices; others are told elsewhere."""
    agents = {one["spec"].get("nodeName") for one in facts.part("pods", AGENT) if is_ready(one)}
    found = []
    for name, node in gpu_nodes(facts).items():
        said = _condition(node)
        well = said is not None and said["status"] == "True"
        if name not in pools and (well or (name in agents and said is None)):
            found.append(name)
    return sorted(found)


def check_runtime(facts: Facts) -> Iterator[Finding]:
    """The container runtimes read CDI files, and none has failed to."""
    nodes = gpu_nodes(facts)
    old: list[str] = []
    asked: list[str] = []
    for name, node in nodes.items():
        verdict = runtime_verdict(_runtime(node))
        if verdict is not None:
            (asked if verdict else old).append(name)
    if old:
        yield error(
            "cdi",
            f"the container runtime of {named(old)} knows no CDI: {_runtime(nodes[old[0]])}",
            "upgrade to containerd 1.7 (better 2.0) or CRI-O 1.23",
            old,
        )
    if asked:
        yield warning(
            "cdi",
            f"containerd 1.7 on {named(asked)} reads CDI files only when told to",
            'set enable_cdi = true and cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"] in '
            '[plugins."io.containerd.grpc.v1.cri"] and restart it',
            asked,
        )
    yield from _unresolved(facts)
    if nodes and not old and not asked and not facts.stuck:
        yield ok("cdi", "the container runtimes read CDI files")


def runtime_verdict(version: str) -> bool | None:
    """None: CDI is on. True: it has to be switched on. False: there is none, or nobody knows it."""
    if found := _CONTAINERD.match(version):
        number = (int(found[1]), int(found[2]))
        return None if number >= (2, 0) else number >= (1, 7)
    if found := _CRIO.match(version):
        return None if (int(found[1]), int(found[2])) >= (1, 23) else False
    return False


def _runtime(node: Obj) -> str:
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return str(info.get("containerRuntimeVersion", ""))


def _unresolved(facts: Facts) -> Iterator[Finding]:
    for one in facts.stuck:
        about = one.get("regarding") or one.get("involvedObject") or {}
        pod = f"{about.get('namespace')}/{about.get('name')}"
        note = " ".join(str(one.get("note") or one.get("message")).split())
        yield error(
            "cdi",
            f"the container runtime cannot resolve a CDI device for pod {pod}: {note[:200]}",
            "kubeletPlugin.cdiDir must be a folder that the runtime reads "
            "(cdi_spec_dirs of containerd, cdi_spec_dirs of CRI-O), and enable_cdi true",
            [pod],
        )


def check_health(facts: Facts) -> Iterator[Finding]:
    """Devices that are kept from new claims."""
    found = set()
    for one in facts.of("resourceslices"):
        for device in one["spec"].get("devices") or ():
            taints = device.get("taints") or ()
            if any(taint.get("effect") in ("NoSchedule", "NoExecute") for taint in taints):
                found.add(f"{one['spec']['pool']['name']}/{device['name']}")
    if found:
        yield warning(
            "health",
            f"{len(found)} devices are tainted: {named(found)}",
            "gpudra devices shows the causes; docs/operations.md says when each ends",
            found,
        )
