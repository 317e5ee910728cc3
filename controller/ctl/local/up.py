# SPDX-License-Identifier: Apache-2.0
"""``gpudra local up``: make the cluster as it should be, whatever is there already.

Every step looks at what is there and does the rest, so the command can be killed at any point
and run again. Nothing is remembered as done that can be seen.
"""

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpudra.api.errors import ApiError, GpudraError
from gpudra.controller.ctl.local import (
    agent,
    fakenodes,
    images,
    ownimage,
    prerequisites,
    state,
)
from gpudra.controller.ctl.local.apiclient import ApiClient
from gpudra.controller.ctl.local.build import HELM, TOOLS, Builder, Tool
from gpudra.controller.ctl.local.chart import Release, values
from gpudra.controller.ctl.local.components import CONTROLLER_PORT, ControlPlane, control_plane
from gpudra.controller.ctl.local.layout import Layout, checkout_dir
from gpudra.controller.ctl.local.node import Machine, Node
from gpudra.controller.ctl.local.plan import Wishes, plan
from gpudra.controller.ctl.local.process import ProcessTable
from gpudra.controller.ctl.local.progress import Progress
from gpudra.controller.ctl.local.state import AS_PODS, ClusterState, NodeState

NODE_READY_SECONDS = 90
STEPS_AROUND_BUILD = 6
IMAGE_FOLDER = "image"
"""Beside the programs, since all clusters of a checkout run the same image."""


class NodeError(GpudraError):
    """A node did not become Ready."""


@dataclass(frozen=True, slots=True)
class UpCommand:
    """One run of ``up``.

    Attributes:
        layout: files of the cluster.
        wishes: what was asked for.
        assume_yes: install distribution packages without asking.
    """

    layout: Layout
    wishes: Wishes
    assume_yes: bool = False

    def run(self) -> ClusterState:
        """Do all steps; return the running cluster.

        Raises:
            GpudraError: of the step that failed; run again to go on from there.
        """
        self.wishes.check()
        tools_dir = checkout_dir() / "deploy" / "local" / "tools"
        builder = Builder(tools_dir, self.layout.bin_dir)
        tools = self._tools()
        progress = Progress(total=STEPS_AROUND_BUILD + len(tools))
        progress.step("checking the machine")
        must_build = not all(builder.is_built(tool) for tool in tools)
        prerequisites.check(tools_dir=tools_dir, base=self.layout.base, must_build=must_build)
        prerequisites.install_packages(progress, assume_yes=self.assume_yes)
        with state.locked(self.layout):
            for tool in tools:
                builder.build(tool, progress)
            return self._start(progress)

    def _tools(self) -> tuple[Tool, ...]:
        """Helm only where the chart is installed."""
        old = state.load(self.layout)
        agent_as = self.wishes.agent_as or (old.agent_as if old else AS_PODS)
        return (*TOOLS, HELM) if self.wishes.agent and agent_as == AS_PODS else TOOLS

    def _start(self, progress: Progress) -> ClusterState:
        progress.step("certificates, configuration and images")
        self.layout.make_dirs()
        processes = ProcessTable(self.layout.pid_dir, self.layout.log_dir)
        old = state.load(self.layout)
        wanted = plan(self.layout, old, self.wishes, lambda name: is_running(name, processes, old))
        if old is not None:
            self._remove_nodes(old.nodes[len(wanted.nodes) :], processes)
        state.save(self.layout, wanted)
        plane = control_plane(self.layout, wanted)
        archive = self.layout.images_dir / "gpudra.tar"
        images.build_archive(_found(prerequisites.busybox_path()), archive)

        progress.step("control plane: etcd, API server, controller manager, scheduler")
        for component in plane.components():
            processes.ensure(component)
        self._forget_removed_nodes(plane.client, wanted)

        names = ", ".join(node.name for node in wanted.nodes)
        progress.step(f"nodes with containerd and kubelet: {names}")
        self._start_nodes(plane, processes, archive)

        progress.step(f"nodes that are only objects: {wanted.fake_nodes}")
        fakenodes.ensure(plane.client, wanted.fake_nodes, progress.tick)

        self._start_agents(plane, processes, progress)
        return wanted

    def _remove_nodes(self, nodes: tuple[NodeState, ...], processes: ProcessTable) -> None:
        for node in nodes:
            processes.stop(f"agent-{node.name}")
            Node(self.layout, node).stop(processes)

    def _forget_removed_nodes(self, client: ApiClient, wanted: ClusterState) -> None:
        """Delete the objects of real nodes that are not wanted any more."""
        names = {node.name for node in wanted.nodes}
        selector = f"!{fakenodes.LABEL}".replace("!", "%21").replace("/", "%2F")
        for item in client.request("GET", f"/api/v1/nodes?labelSelector={selector}")["items"]:
            if item["metadata"]["name"] not in names:
                client.request("DELETE", f"/api/v1/nodes/{item['metadata']['name']}")

    def _start_nodes(self, plane: ControlPlane, processes: ProcessTable, archive: Path) -> None:
        machine = Machine(
            ip=prerequisites.host_ip(),
            runc=_found(prerequisites.runc_path()),
            cni_bin_dir=_found(prerequisites.cni_dir()),
        )
        # All started before any is waited for: they become ready side by side.
        for node_state in plane.state.nodes:
            node = Node(self.layout, node_state)
            node.make_dirs()
            processes.ensure(node.containerd(machine))
            node.import_images([archive])
            processes.ensure(node.kubelet(plane, machine))
        for node_state in plane.state.nodes:
            wait_ready(plane.client, node_state.name)

    def _start_agents(
        self, plane: ControlPlane, processes: ProcessTable, progress: Progress
    ) -> None:
        wanted = plane.state
        as_pods = wanted.hardware and wanted.agent_as == AS_PODS
        if not wanted.hardware or as_pods:
            for node in wanted.nodes:
                processes.stop(f"agent-{node.name}")
        if as_pods:
            self._install_chart(plane, progress)
            return
        self._uninstall_chart(plane)
        agent.apply_all(plane.client, agent.manifests())
        if not wanted.hardware:
            progress.step("no kubelet plugin, as asked")
            return
        progress.step(f"gpudra's kubelet plugin on each node, simulated hardware {wanted.hardware}")
        agent.check_script()
        for node in plane.state.nodes:
            one = agent.Agent(node, plane.state.hardware)
            processes.ensure(one.component(one.prepare(plane)))

    def _install_chart(self, plane: ControlPlane, progress: Progress) -> None:
        progress.step(f"gpudra's chart, simulated hardware {plane.state.hardware}")
        folder = self.layout.bin_dir / IMAGE_FOLDER
        with ownimage.held(folder):
            own = ownimage.build(folder)
            progress.note(f"image {own.name}")
            nodes = [Node(self.layout, node) for node in plane.state.nodes]
            with ThreadPoolExecutor(max_workers=4) as imports:
                list(imports.map(lambda node: node.import_image(own.archive, own.name), nodes))
        agent.apply_all(plane.client, agent.prerequisites())
        progress.note("waiting for agent and controller")
        Release(self.layout).install(values(plane.state, own.tag), tick=progress.tick)

    def _uninstall_chart(self, plane: ControlPlane) -> None:
        """Where the agents ran as pods until now."""
        release = "labelSelector=owner%3Dhelm,name%3Dgpudra"
        path = f"/api/v1/namespaces/{agent.NAMESPACE}/secrets?{release}"
        if plane.client.request("GET", path)["items"]:
            Release(self.layout).uninstall()


def is_running(name: str, processes: ProcessTable, old: ClusterState | None) -> bool:
    """Whether a component runs, so that its port is its own; pods run while their kubelet does."""
    if old is not None and old.hardware and old.agent_as == AS_PODS:
        if name == CONTROLLER_PORT:
            name = f"kubelet-{old.nodes[0].name}"
        elif name.startswith("agent-"):
            name = f"kubelet-{name.removeprefix('agent-')}"
    return processes.running(name) is not None


def is_ready(node: dict[str, object]) -> bool:
    """Whether a Node object says Ready and the not-ready taint is gone."""
    status, spec = node.get("status", {}), node.get("spec", {})
    assert isinstance(status, dict)
    assert isinstance(spec, dict)
    ready = any(
        c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ())
    )
    tainted = any(
        taint["key"] == "node.kubernetes.io/not-ready" for taint in spec.get("taints", ())
    )
    return ready and not tainted


def wait_ready(client: ApiClient, name: str, timeout: float = NODE_READY_SECONDS) -> None:
    """Wait until pods can be scheduled to the node.

    Raises:
        NodeError: it was not Ready in time; says what its condition was.
    """
    deadline = time.monotonic() + timeout
    said = "the kubelet did not register it"
    while time.monotonic() < deadline:
        try:
            node = client.request("GET", f"/api/v1/nodes/{name}")
        except ApiError as error:
            said = str(error)
        else:
            if is_ready(node):
                return
            messages = [
                c.get("message", "")
                for c in node["status"].get("conditions", ())
                if c["type"] == "Ready"
            ]
            said = " ".join(messages) or "it has no Ready condition"
        time.sleep(0.2)
    raise NodeError(
        f"not Ready after {timeout:.0f} s: {said}",
        obj=f"node {name}",
        hint="read its kubelet's log",
    )


def _found(path: Path | None) -> Path:
    """The program that the first step has made sure of."""
    assert path is not None
    return path


def version_text(layout: Layout) -> str:
    """Version that the API server's binary tells of itself, for example ``v1.37.2``."""
    answer = subprocess.run(
        [layout.binary("kube-apiserver"), "--version"], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip().rpartition(" ")[2]
