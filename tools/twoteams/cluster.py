# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.twoteams.cluster``: the two figures of the simulator, then the same in small.

On the local cluster run the same jobs twice as real pods that sleep: first each team on a node of its
own with whole cards, given out by kube-scheduler; then both teams on both nodes in managed mode, with
shares and queues that lend. A day takes little more than a minute. What pods ran is read from their
containers' own times. Called by ``make demo-managed``; all that it makes is removed in the end.
"""

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gpudra.api.errors import GpudraError
from gpudra.controller.ctl.local.layout import layout_for
from tests.support.cluster import CORE, RESOURCE, Cluster, gpudra_local
from tests.support.gate import gate_installed
from tests.support.managedcluster import managed_controller, queue
from tools.twoteams.managed import CARD_MEMORY_MIB
from tools.twoteams.measure import Measure
from tools.twoteams.workload import DAY, TEAMS, Work, workload

DRIVER = "gpu.gpudra.io"
SPACE = "gpudra-two-teams"
NODES = ("node-1", "node-2")
CARDS_A_NODE = 2
CARDS = CARDS_A_NODE * len(NODES)
NEED = "gpudra.io/need"
# More than a day of work: what has begun is not taken back.
MIN_RUNTIME = "1h"
# No job is longer; what is cut off there makes the others longer, until the sum is right.
LONGEST = DAY / 4
_ROUNDS = 20
CLASSES = Path(__file__).parents[2] / "deploy" / "manifests" / "deviceclasses.yaml"

Obj = dict[str, Any]


def main() -> int:
    """Runs and prints."""
    parser = argparse.ArgumentParser(prog="make demo-managed", description=__doc__)
    parser.add_argument("--pods", type=int, default=40, help="jobs of one pod (default 40)")
    parser.add_argument("--seconds", type=float, default=80.0, help="of a day (default 80)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=2, help="of the simulator (default 2)")
    parser.add_argument("--dir", help="folder of another local cluster than the default one")
    args = parser.parse_args()
    print("==> 1/3 a day in the simulator", flush=True)
    simulated = [sys.executable, "-m", "tools.twoteams", "--nodes", str(args.nodes)]
    if subprocess.run(simulated, check=False).returncode:
        return 1
    try:
        _on_cluster(args)
    except (GpudraError, AssertionError) as error:
        print(f"FAILED: {error}")
        return 1
    return 0


def jobs(count: int, seed: int) -> list[Work]:
    """So many jobs of one pod, stretched to a full day of the cards."""
    single = [one for one in workload(CARDS, seed) if one.pods == 1]
    rng = random.Random(seed)  # noqa: S311 - a workload, no secret
    chosen = rng.sample(single, min(count, len(single)))
    for _ in range(_ROUNDS):
        stretch = CARDS * DAY / sum(one.card_seconds for one in chosen)
        chosen = [replace(one, seconds=min(one.seconds * stretch, LONGEST)) for one in chosen]
    return sorted(chosen, key=lambda one: (one.arrives, one.name))


def _on_cluster(args: argparse.Namespace) -> None:
    work = jobs(args.pods, args.seed)
    asked = sum(one.card_seconds for one in work) / (CARDS * DAY)
    print(
        f"\n==> the same in small on two real nodes, {CARDS_A_NODE} cards of each: {len(work)} pods, which need "
        f"{100 * asked:.0f} % of a day; a day takes {args.seconds:.0f} s",
        flush=True,
    )
    where = ("--dir", args.dir) if args.dir else ()
    up = gpudra_local("up", "--nodes", "2", "--agent-as", "processes", "--yes", *where)
    if up.returncode:
        raise GpudraError(f"the local cluster did not come up: {up.stderr[-2000:]}")
    cluster = Cluster.of(layout_for(args.dir))
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CLASSES))
    print("==> 2/3 each team has a node, and each job a whole card (stock mode)", flush=True)
    with _namespace(cluster, work):
        _show(_run(cluster, "exclusive", work, args.seconds))
    print("==> 3/3 both teams have both nodes: shares, and queues that lend (managed mode)")
    folder = tempfile.TemporaryDirectory(prefix="gpudra-two-teams-")
    with (
        folder as made,
        gate_installed(cluster),
        _policy(cluster),
        managed_controller(cluster, Path(made)),
        _queues(cluster),
        _namespace(cluster, work),
    ):
        _show(_run(cluster, "managed", work, args.seconds))


def _show(measure: Measure) -> None:
    for line in measure.lines():
        print(line, flush=True)


# --- what is made and removed -----------------------------------------------------------------


@contextlib.contextmanager
def _namespace(cluster: Cluster, work: Sequence[Work]) -> Iterator[None]:
    """The namespace with claim templates for whole cards and for each need."""
    labels = {f"queue.gpudra.io/{SPACE}-{team}": "true" for team in TEAMS}
    meta = {"name": SPACE, "labels": labels}
    cluster.kubectl("delete", "namespace", SPACE, "--ignore-not-found")
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    try:
        cluster.wait_for(
            f"{CORE}/namespaces/{SPACE}/serviceaccounts", "default", lambda _: True, what="to exist"
        )
        needs = {1000, *(one.need for one in work)}
        cluster.apply(*(_template(need) for need in sorted(needs)), namespace=SPACE)
        yield
    finally:
        cluster.kubectl("delete", "pods", "--all", "-n", SPACE, "--grace-period=1")
        cluster.delete_namespace(SPACE)


@contextlib.contextmanager
def _queues(cluster: Cluster) -> Iterator[None]:
    """A queue for each team, with half of the cards as its own."""
    made = [
        queue(f"{SPACE}-{team}", quota={"gpus": CARDS // 2}, reclaimMinRuntime=MIN_RUNTIME)
        for team in TEAMS
    ]
    cluster.apply(*made)
    try:
        yield
    finally:
        cluster.kubectl("delete", "queues", *(one["metadata"]["name"] for one in made))


@contextlib.contextmanager
def _policy(cluster: Cluster) -> Iterator[None]:
    """Both nodes managed, their cards whole and in shares."""
    spec = {"managed": True, "forms": ["whole", "share"]}
    head = {"apiVersion": "gpudra.io/v1alpha1", "kind": "NodePolicy"}
    cluster.apply({**head, "metadata": {"name": SPACE}, "spec": spec})
    try:
        for node in NODES:
            _published(cluster, node, managed=True)
        yield
    finally:
        cluster.kubectl("delete", "nodepolicy", SPACE)
        for node in NODES:
            _published(cluster, node, managed=False)


def _published(cluster: Cluster, node: str, *, managed: bool) -> None:
    """Waits until label and slices of a node say whether it is managed."""
    cluster.wait_for(
        f"{CORE}/nodes",
        node,
        lambda one: ("gpudra.io/managed" in one["metadata"]["labels"]) is managed,
        what=f"the label {'to come' if managed else 'to go'}",
    )

    def wanted(items: Mapping[str, Obj]) -> bool:
        devices = [one for item in items.values() for one in item["spec"].get("devices", ())]
        marks = [
            any(taint["key"] == f"{DRIVER}/managed" for taint in device.get("taints", ()))
            for device in devices
        ]
        return bool(marks) and all(mark is managed for mark in marks)

    cluster.wait_list(
        f"{RESOURCE}/resourceslices",
        wanted,
        what=f"the devices of {node} to be {'managed' if managed else 'stock'}",
        query=f"fieldSelector=spec.nodeName%3D{node}%2Cspec.driver%3D{DRIVER}",
    )


def _template(need: int) -> Obj:
    """A whole card, or so many thousandths of one, of the first cards of a node."""
    first = f'device.attributes["{DRIVER}"].index < {CARDS_A_NODE}'
    exactly: Obj = {
        "deviceClassName": f"{'gpu' if need == 1000 else 'share'}.gpudra.io",
        "selectors": [{"cel": {"expression": first}}],
    }
    if need < 1000:
        memory = max(1, CARD_MEMORY_MIB * need // 1000)
        exactly["capacity"] = {
            "requests": {"memory": f"{memory}Mi", "compute": str(-(-need // 10))}
        }
    devices: Obj = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if need < 1000:
        # Simulated cards have no driver that could keep the users apart.
        parameters = {
            "apiVersion": "gpudra.io/v1alpha1",
            "kind": "ShareConfig",
            "sharing": {"isolation": "none"},
        }
        devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"need-{need}"},
        "spec": {"spec": {"devices": devices}},
    }


def _pod(work: Work, world: str, seconds: float) -> Obj:
    """Sleeps as long as the job runs."""
    meta: Obj = {"name": work.name, "annotations": {NEED: str(work.need)}, "labels": {}}
    spec: Obj = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [
            {
                "name": "main",
                "image": "gpudra.local/busybox:1",
                "imagePullPolicy": "Never",
                "command": ["sleep", f"{max(1.0, seconds):.1f}"],
                "resources": {"claims": [{"name": "gpu"}]},
            }
        ],
    }
    need = work.need
    if world == "exclusive":
        need = 1000
        spec["nodeSelector"] = {"kubernetes.io/hostname": NODES[TEAMS.index(work.team)]}
    else:
        meta["labels"]["gpudra.io/queue"] = f"{SPACE}-{work.team}"
    spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": f"need-{need}"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


# --- a day ------------------------------------------------------------------------------------


def _run(cluster: Cluster, world: str, work: Sequence[Work], day: float) -> Measure:
    """Submits and withdraws the jobs at their hours; then reads what ran."""
    pods = f"{CORE}/namespaces/{SPACE}/pods"
    events = [(one.arrives, 0, one) for one in work]
    events += [(one.leaves, 1, one) for one in work if one.leaves < DAY]
    begin = time.time()
    for hour, leaves, one in sorted(events, key=lambda event: (event[0], event[1], event[2].name)):
        time.sleep(max(0.0, begin + hour / DAY * day - time.time()))
        if not leaves:
            cluster.client.request("POST", pods, _pod(one, world, one.seconds / DAY * day))
        elif _started(cluster.get(pods, one.name)) is None:
            cluster.client.request("DELETE", f"{pods}/{one.name}")
    time.sleep(max(0.0, begin + day - time.time()))
    measure = Measure(world, CARDS)
    found = {pod["metadata"]["name"]: pod for pod in cluster.client.request("GET", pods)["items"]}
    for one in work:
        started = _started(found[one.name]) if one.name in found else None
        if started is None:
            measure.unserved += 1
            continue
        ended = _ended(found[one.name]) or begin + day
        hours = DAY / day
        measure.ran(one, (started - begin) * hours, (ended - begin) * hours)
    return measure


def _state(pod: Obj) -> Obj:
    statuses = pod["status"].get("containerStatuses") or [{}]
    return dict(statuses[0].get("state") or {})


def _started(pod: Obj) -> float | None:
    """When its container started, in seconds since the epoch."""
    state = _state(pod)
    found = state.get("running") or state.get("terminated") or {}
    return _seconds(found.get("startedAt"))


def _ended(pod: Obj) -> float | None:
    return _seconds((_state(pod).get("terminated") or {}).get("finishedAt"))


def _seconds(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None


if __name__ == "__main__":
    sys.exit(main())
