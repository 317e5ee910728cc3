# SPDX-License-Identifier: Apache-2.0
"""``gpudra doctor``: what each thing that can be wrong is called, and what is advised."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from gpudra.controller.ctl.doctor import cli, rights
from gpudra.controller.ctl.doctor.facts import Access, Facts, failing_checks
from gpudra.controller.ctl.doctor.findings import Finding, Status, named
from gpudra.controller.ctl.doctor.nodes import runtime_verdict
from gpudra.controller.ctl.doctor.rights import Right
from gpudra.driver.core.features import ServerFeatures
from tests.support.doctorfacts import DRIVER, NODES, healthy, manifests, node

Break = Callable[[Facts], Facts]


@dataclass(frozen=True)
class Sabotage:
    """Something that is wrong.

    Attributes:
        name: of the case.
        broken: breaks a healthy cluster.
        check: the check that has to tell.
        says: words of its message.
        advises: words of its advice.
        status: how bad it is.
    """

    name: str
    broken: Break
    check: str
    says: str
    advises: str
    status: Status = Status.ERROR


def without(plural: str, name: str = "") -> Break:
    """A kind, or one object of it, is not there."""

    def broken(facts: Facts) -> Facts:
        left = [one for one in facts.of(plural) if name and one["metadata"]["name"] != name]
        return replace(facts, objects={**facts.objects, plural: left})

    return broken


def changed(plural: str, index: int, change: Callable[[dict[str, object]], object]) -> Break:
    """One object is otherwise."""

    def broken(facts: Facts) -> Facts:
        change(facts.objects[plural][index])
        return facts

    return broken


def condition(index: int, **fields: str) -> Callable[[dict[str, object]], object]:
    """A condition of an object says something else."""
    return lambda one: one["status"]["conditions"][index].update(fields)


def more(plural: str, one: dict[str, object]) -> Break:
    """One more object."""
    return lambda facts: replace(facts, objects={**facts.objects, plural: [*facts.of(plural), one]})


SABOTAGES = (
    Sabotage("old server", lambda f: replace(f, version="v1.33.1"), "api-versions", "too old", "1.34"),
    Sabotage(
        "kinds not served", lambda f: replace(f, kinds={}), "api-versions", "resourceslices",
        "--runtime-config",
    ),
    Sabotage(
        "no CRD", lambda f: replace(f, kinds={**f.kinds, "gpudra.io/v1alpha1": frozenset()}), "crds",
        "NodePolicy", "kubectl apply -f deploy/charts/gpudra/crds/",
    ),
    Sabotage(
        "gate off", lambda f: replace(f, features=ServerFeatures(counters=True, device_taints=True)),
        "features", "DRAConsumableCapacity", "--feature-gates=DRAConsumableCapacity=true",
        Status.WARNING,
    ),
    Sabotage(
        "no right",
        lambda f: replace(f, access=[Access(account="a:b", refused=(Right("", "nodes/status", "patch"),))]),
        "permissions", "a:b may not patch nodes/status", "helm upgrade",
    ),
    Sabotage(
        "class gone", without("deviceclasses", f"mig.{DRIVER[4:]}"), "device-classes",
        "mig.gpudra.io is missing", "deviceClasses.create",
    ),
    Sabotage(
        "class of another driver",
        changed("deviceclasses", 0, lambda one: one["spec"].update(
            selectors=[{"cel": {"expression": 'device.driver == "x.example"'}}])),
        "device-classes", "selects none of the published devices", "restore its selector",
    ),
    Sabotage(
        "class that raises",
        more("deviceclasses", {"metadata": {"name": "mine"}, "spec": {"selectors": [
            {"cel": {"expression": f'device.attributes["{DRIVER}"].profile == "1g.10gb"'}}]}}),
        "device-classes", "DeviceClass mine gives no answer", "guard attributes",
    ),
    Sabotage(
        "no policy", without("validatingadmissionpolicies"), "admission", "slices of every node",
        "admissionPolicy.enabled=true",
    ),
    Sabotage(
        "policy for another account",
        changed("daemonsets", 0, lambda one: one["spec"]["template"]["spec"].update(
            serviceAccountName="renamed")),
        "admission", "does not name system:serviceaccount:gpudra-system:renamed", "helm upgrade",
    ),
    Sabotage(
        "policy without binding", without("validatingadmissionpolicybindings"), "admission",
        "no binding that denies", "helm upgrade",
    ),
    Sabotage(
        "nothing installed",
        lambda f: without("daemonsets")(without("resourceslices")(f)),
        "agents", "no agent of gpu.gpudra.io is installed", "helm install",
    ),
    Sabotage(
        "selector that fits no node",
        changed("daemonsets", 0, lambda one: one["status"].update(desiredNumberScheduled=0)),
        "agents", "runs on no node", "kubeletPlugin.nodeSelector",
    ),
    Sabotage(
        "image cannot be pulled",
        changed("pods", 1, lambda one: one["status"].update(
            conditions=[], containerStatuses=[{"state": {"waiting": {"reason": "ImagePullBackOff"}}}])),
        "agents", "ImagePullBackOff", "kubectl describe pod",
    ),
    Sabotage(
        "kubelet does not register",
        lambda f: replace(
            changed("pods", 0, condition(0, status="False"))(f),
            failing={"gpudra-system/agent-node-a": {"kubelet": "not registered yet"}},
        ),
        "kubelet-registration", "not registered yet (on node-a)", "--root-dir",
    ),
    Sabotage(
        "no leader",
        changed("leases", 2, lambda one: one["spec"].update(renewTime="2026-06-01T11:00:00Z")),
        "controller", "holds the lease", "kubectl logs",
    ),
    Sabotage(
        "controller not installed", without("deployments"), "controller", "not installed",
        "controller.enabled=true", Status.WARNING,
    ),
    Sabotage(
        "driver missing",
        changed("nodes", 1, condition(1, status="False", reason="DriverMissing", message="no NVML")),
        "driver", "node-b: DriverMissing: no NVML", "install the kernel driver",
    ),
    Sabotage(
        "device plugin",
        changed("nodes", 0, lambda one: one["status"]["allocatable"].update({"nvidia.com/gpu": "4"})),
        "device-plugin", "offers nvidia.com/gpu on node-a", "take the device plugin off",
    ),
    Sabotage(
        "node down", changed("nodes", 0, condition(0, status="Unknown")), "nodes",
        "node-a are not Ready", "kubectl describe node",
    ),
    Sabotage(
        "agent missing on a node",
        more("nodes", {**node("node-c"), "metadata": {"name": "node-c", "labels": {"nvidia.com/gpu.present": "true"}},
             "status": {"conditions": [{"type": "Ready", "status": "True"}],
                        "nodeInfo": {"containerRuntimeVersion": "cri-o://1.34.0"}}}),
        "agents", "no agent runs on node-c", "tolerations",
    ),
    Sabotage(
        "slice gone",
        lambda f: replace(f, objects={**f.objects, "resourceslices": f.of("resourceslices")[1:]}),
        "slices", "missing in the pool of node-a", "comes back",
    ),
    Sabotage(
        "slices of a node that is gone", without("nodes", "node-b"), "slices", "no such node",
        "kubectl delete resourceslices",
    ),
    Sabotage(
        "ready and silent",
        lambda f: replace(f, objects={**f.objects, "resourceslices": [
            one for one in f.of("resourceslices") if one["spec"]["nodeName"] != "node-b"]}),
        "slices", "node-b have GPUs and publish nothing", "30 s",
    ),
    Sabotage(
        "runtime without CDI",
        changed("nodes", 0, lambda one: one["status"]["nodeInfo"].update(
            containerRuntimeVersion="containerd://1.6.8")),
        "cdi", "containerd://1.6.8", "upgrade to containerd",
    ),
    Sabotage(
        "runtime looks elsewhere",
        lambda f: replace(f, stuck=[{
            "regarding": {"kind": "Pod", "namespace": "team", "name": "train"},
            "note": f"CDI device injection failed: unresolvable CDI devices {DRIVER}/gpu=x"}]),
        "cdi", "pod team/train", "cdi_spec_dirs",
    ),
    Sabotage(
        "clock ahead",
        changed("leases", 0, lambda one: one["spec"].update(renewTime="2026-06-01T12:05:00.5Z")),
        "clock", "ahead of the server's on node-a", "timedatectl",
    ),
    Sabotage(
        "clock behind",
        changed("leases", 1, lambda one: one["spec"].update(renewTime="2026-06-01T11:00:00.5Z")),
        "clock", "behind the server's on node-b", "timedatectl",
    ),
    Sabotage(
        "our clock", lambda f: replace(f, clock=300.0), "clock", "300 s", "this machine's clock",
        Status.WARNING,
    ),
    Sabotage(
        "managed mode without its pieces",
        more("nodepolicies", {"metadata": {"name": "p"}, "spec": {"managed": True}}),
        "managed-mode", "NodePolicy p asks for managed mode, but the kind Queue", "crds/",
    ),
    Sabotage(
        "policies dispute",
        more("nodepolicies", {"metadata": {"name": "p"}, "spec": {},
             "status": {"conditions": [{"type": "Conflict", "status": "True"}]}}),
        "policies", "dispute nodes: p", "narrower", Status.WARNING,
    ),
    Sabotage(
        "may not read",
        lambda f: replace(f, missing={"leases": "we may not list leases.coordination.k8s.io: no"}),
        "reading", "may not list leases.coordination.k8s.io", "may read it", Status.UNKNOWN,
    ),
)  # fmt: skip


def reds(found: tuple[Finding, ...]) -> list[str]:
    """Checks that are not green."""
    return [one.check for one in found if one.status is not Status.OK]


def test_a_healthy_cluster_is_green_everywhere() -> None:
    """Every check says ok, and none is silent about what it looked at."""
    found = cli.diagnose(healthy())
    assert reds(found) == []
    assert {one.check for one in found} >= {
        *("api-versions", "crds", "features", "permissions", "clock", "device-classes"),
        *("admission", "agents", "controller", "driver", "device-plugin", "slices", "cdi"),
    }


@pytest.mark.parametrize("case", SABOTAGES, ids=lambda case: case.name)
def test_what_is_wrong_is_told_with_the_right_advice(case: Sabotage) -> None:
    """The check that it belongs to tells it, says what to do, and decides the exit code."""
    found = cli.diagnose(case.broken(healthy()))
    told = [
        one
        for one in found
        if (one.check, one.status) == (case.check, case.status) and case.says in one.message
    ]
    assert told, [one for one in found if one.status is not Status.OK]
    assert case.advises in told[0].fix
    assert cli.is_healthy(found) == (case.status is not Status.ERROR)


def test_many_nodes_are_one_line() -> None:
    """Five hundred nodes with the same trouble are one finding that names five and counts all."""
    facts = healthy()
    sick = [node(f"node-{number:03}") for number in range(500)]
    for one in sick:
        one["status"]["conditions"][1].update(status="False", reason="NoDevices", message="none")
    found = cli.diagnose(replace(facts, objects={**facts.objects, "nodes": sick}))
    (told,) = [one for one in found if one.check == "driver"]
    assert "node-004 and 495 more" in told.message
    assert len(told.objects) == 500


def test_a_green_report_and_a_red_one_for_people() -> None:
    """One line a finding, the advice below it, a sum; colours only when asked for."""
    found = cli.diagnose(without("deviceclasses", DRIVER)(healthy()))
    plain, painted = cli.report(found, colour=False), cli.report(found, colour=True)
    assert "\x1b" not in plain
    assert "\x1b[31merror" in painted
    assert f"DeviceClass {DRIVER} is missing" in plain
    assert "-> helm upgrade" in plain
    assert plain.endswith("1 error\n")


def test_the_json_shape_is_that_of_the_docs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``-o json``: healthy, driver, findings with check, status, message, fix, objects; exit code 1."""
    from gpudra.controller.ctl import main

    broken = without("deviceclasses", DRIVER)(healthy())
    monkeypatch.setattr("gpudra.controller.ctl.cluster.ask", lambda *_: broken)
    assert main.main(["doctor", "-o", "json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["healthy"], data["driver"]) == (False, DRIVER)
    assert {frozenset(one) for one in data["findings"]} == {
        frozenset({"check", "status", "message", "fix", "objects"})
    }
    monkeypatch.setattr("gpudra.controller.ctl.cluster.ask", lambda *_: healthy())
    assert main.main(["doctor", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["healthy"] is True
    assert "\x1b" not in cli.report(cli.diagnose(healthy()), colour=sys.stdout.isatty())


def test_rights_of_the_agent_are_those_of_its_role() -> None:
    """What is asked for is what the manifest grants, no more and no less."""
    (role,) = manifests("ClusterRole")
    granted = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    wanted = {(one.group, one.resource, one.verb) for one in rights.AGENT}
    # Events may be written through the core group too; one way is enough.
    assert granted - {("", "events", "create"), ("", "events", "patch")} == wanted


def test_what_readyz_says_is_understood() -> None:
    """Failing checks by name, whether the text has its lines or is folded into one."""
    text = "[+]service-socket ok\n[-]kubelet failed: not registered yet\n[-]slices failed: a b\nfailed\n"
    wanted = {"kubelet": "not registered yet", "slices": "a b"}
    assert failing_checks(text) == wanted
    assert failing_checks(" ".join(text.split())) == wanted
    assert failing_checks("[+]a ok") == {}


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        ("containerd://2.4.2", None),
        ("containerd://1.7.20", True),
        ("containerd://1.6.0", False),
        ("cri-o://1.34.1", None),
        ("cri-o://1.22.0", False),
        ("docker://28.0", False),
        ("", False),
    ],
)
def test_runtimes_that_know_cdi(version: str, verdict: bool | None) -> None:
    """Containerd has it on since 2.0 and can since 1.7, CRI-O since 1.23."""
    assert runtime_verdict(version) is verdict


def test_names_are_cut_after_five() -> None:
    """A message about many stays short."""
    assert named(NODES) == "node-a, node-b"
    assert named(str(number) for number in range(9)) == "0, 1, 2, 3, 4 and 4 more"
