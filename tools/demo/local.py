# SPDX-License-Identifier: Apache-2.0
"""The real world: the local cluster, looked at through kubectl."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from gpudra.api.errors import GpudraError
from gpudra.api.resource_v1 import ResourceClaim, ResourceSlice
from gpudra.controller.ctl.devices import holders_by_device
from gpudra.controller.ctl.local import state
from gpudra.controller.ctl.local.agent import NAMESPACE as AGENT_NAMESPACE
from gpudra.controller.ctl.local.build import HELM, TOOLS, Builder
from gpudra.controller.ctl.local.layout import checkout_dir, layout_for
from gpudra.controller.ctl.local.prerequisites import problems
from tools.demo.world import (
    DRIVER,
    GPUS,
    NAMESPACE,
    ROOT,
    ContainerView,
    Object,
    documents,
    pod_of,
    say,
)

READY_SECONDS = 120


class CommandError(GpudraError):
    """A command of the demo failed."""


def obstacles() -> list[str]:
    """Why no local cluster can run on this machine; nothing when it can."""
    layout = layout_for(None)
    tools_dir = checkout_dir() / "deploy" / "local" / "tools"
    builder = Builder(tools_dir, layout.bin_dir)
    must_build = not all(builder.is_built(tool) for tool in (*TOOLS, HELM))
    return problems(tools_dir=tools_dir, base=layout.base, must_build=must_build)


class LocalCluster:
    """See tools.demo.world.World."""

    outcome = "real-cluster"

    def __init__(self, directory: str | None = None) -> None:
        self._layout = layout_for(directory)
        self._node = ""
        self._several = False

    async def start(self) -> None:
        """Brings the cluster up, with the agent, and empties the demo's namespace."""
        say("==> a local Kubernetes; the first time it is built from source, which takes a while")
        gpudra = str(Path(sys.executable).with_name("gpudra"))
        up = await asyncio.create_subprocess_exec(
            *(gpudra, "local", "up", "--agent-as", "pods", "--dir", str(self._layout.base)),
            cwd=ROOT,
        )
        if await up.wait() != 0:
            raise CommandError("the local cluster did not come up; its reason is above")
        found = state.load(self._layout)
        assert found is not None, "up has just written the state"
        nodes = [node.name for node in found.nodes]
        await self._kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
        self._node, self._several = await self._free_node(nodes), len(nodes) > 1
        await self._kubectl("create", "namespace", NAMESPACE)
        await self._until_published()
        say(
            "==> gpudra is installed from deploy/charts/gpudra, with an image made of this checkout"
        )
        await self._show("get", "pods", "-n", AGENT_NAMESPACE, "-o", "wide")
        say()

    async def stop(self) -> None:
        """The cluster stays: the farewell says how to go on with it."""

    async def slices(self) -> list[ResourceSlice]:
        """See World."""
        selector = f"--field-selector=spec.driver={DRIVER},spec.nodeName={self._node}"
        return [
            ResourceSlice.from_dict(raw) for raw in await self._list("resourceslices", selector)
        ]

    async def show_slices(self) -> None:
        """See World."""
        selector = f"--field-selector=spec.nodeName={self._node}"
        await self._show("get", "resourceslices", selector)
        say()
        await self._show_gpudra("devices", "--node", self._node, "-o", "wide")

    async def claims(self) -> list[ResourceClaim]:
        """See World."""
        return [ResourceClaim.from_dict(raw) for raw in await self._list("resourceclaims", "-A")]

    async def run_pod(self, file: Path) -> str:
        """See World. On a cluster of several nodes the pod is bound to one that is free."""
        where = f"   (on {self._node})" if self._several else ""
        say(f"$ kubectl apply -n {NAMESPACE} -f {file.relative_to(ROOT)}{where}")
        found = documents(file)
        pod = pod_of(found)
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": self._node}
        text = yaml.safe_dump_all(found)
        say((await self._kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=text)).rstrip())
        name = str(pod["metadata"]["name"])
        ready = ("--for=condition=Ready", f"--timeout={READY_SECONDS}s")
        await self._kubectl("wait", "-n", NAMESPACE, f"pod/{name}", *ready)
        await self._show("get", "pod", name, "-n", NAMESPACE, "-o", "wide")
        return name

    async def remove(self, file: Path) -> None:
        """See World."""
        pod = pod_of(documents(file))["metadata"]["name"]
        claim = await self._claim_of(pod)
        say(f"$ kubectl delete -n {NAMESPACE} -f {file.relative_to(ROOT)}")
        await self._kubectl("delete", "-n", NAMESPACE, "-f", str(file))
        gone = ("--for=delete", f"--timeout={READY_SECONDS}s")
        await self._kubectl("wait", "-n", NAMESPACE, f"resourceclaim/{claim}", *gone)

    async def describe_claim(self, pod: str) -> str:
        """See World."""
        claim = await self._claim_of(pod)
        say(f"$ kubectl describe resourceclaim {claim} -n {NAMESPACE}")
        return await self._kubectl("describe", "resourceclaim", claim, "-n", NAMESPACE)

    async def container(self, pod: str) -> ContainerView:
        """See World: asks a shell in the container."""
        script = "env | grep -E '^(GPUDRA|NVIDIA)_'; echo; ls /dev | grep ^nvidia"
        text = await self._kubectl("exec", "-n", NAMESPACE, pod, "--", "sh", "-c", script)
        variables, _, files = text.partition("\n\n")
        pairs = (line.partition("=") for line in variables.splitlines())
        return ContainerView({name: value for name, _, value in pairs}, tuple(files.split()))

    def farewell(self) -> Sequence[str]:
        """See World."""
        default = self._layout.base == layout_for(None).base
        down = "make cluster-down" if default else f"gpudra local down --dir {self._layout.base}"
        return (
            "The cluster and the pods still run. Go on with",
            f"  export KUBECONFIG={self._layout.admin_kubeconfig}",
            f"  export PATH={self._layout.bin_dir}:{Path(sys.executable).parent}:$PATH",
            f"  gpudra devices; kubectl get pods,resourceclaims -n {NAMESPACE}",
            "  kubectl apply -f deploy/examples/nvlink-domain/example.yaml   # more in deploy/examples",
            "and stop everything with",
            f"  {down}",
        )

    async def _free_node(self, nodes: Sequence[str]) -> str:
        """The first node of which no GPU is held: the story depends on which are free."""
        held = {
            key[1]: holders[0].claim
            for key, holders in holders_by_device(await self.claims()).items()
            if key[0] == DRIVER
        }
        free = [node for node in nodes if node not in held]
        if not free:
            raise CommandError(
                f"GPUs are held on every node, for example by claim {next(iter(held.values()))}",
                hint="delete the pods that use them, or start afresh with `make cluster-down`",
            )
        return free[0]

    async def _until_published(self) -> None:
        """The agent publishes within seconds; a broken one is told, not waited for for ever."""
        for _ in range(READY_SECONDS):
            if sum(len(one.spec.devices) for one in await self.slices()) >= GPUS:
                return
            await asyncio.sleep(1)
        raise CommandError(
            f"{self._node} published fewer than {GPUS} GPUs within {READY_SECONDS} s",
            hint=f"look at `kubectl get pods -n {AGENT_NAMESPACE}` and their logs",
        )

    async def _claim_of(self, pod: str) -> str:
        path = "jsonpath={.status.resourceClaimStatuses[0].resourceClaimName}"
        return await self._kubectl("get", "pod", pod, "-n", NAMESPACE, "-o", path)

    async def _list(self, *arguments: str) -> list[Object]:
        found: list[Object] = json.loads(await self._kubectl("get", *arguments, "-o", "json"))[
            "items"
        ]
        return found

    async def _show(self, *arguments: str) -> None:
        say(f"$ kubectl {' '.join(arguments)}")
        say((await self._kubectl(*arguments)).rstrip())

    async def _show_gpudra(self, *arguments: str) -> None:
        say(f"$ gpudra {' '.join(arguments)}")
        command = [str(Path(sys.executable).with_name("gpudra")), *arguments]
        say((await self._run(command)).rstrip())

    async def _kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return await self._run([str(self._layout.binary("kubectl")), *arguments], stdin)

    async def _run(self, command: Sequence[str], stdin: str | None = None) -> str:
        environment = {**os.environ, "KUBECONFIG": str(self._layout.admin_kubeconfig)}
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        if done.returncode != 0:
            shown = " ".join([Path(command[0]).name, *command[1:]])
            raise CommandError(f"`{shown}` failed: {done.stderr.strip()}")
        return done.stdout
