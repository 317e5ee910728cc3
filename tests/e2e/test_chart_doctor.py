# SPDX-License-Identifier: Apache-2.0
"""``gpudra doctor`` where the demo has run: green, red after each of many sabotages, green again."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gpudra.controller.ctl.doctor import rights
from gpudra.controller.ctl.local.certs import kubeconfig
from gpudra.controller.ctl.main import main
from tests.support.cluster import Cluster
from tests.support.helm import Helm, find
from tests.support.installation import Installation
from tests.support.sabotage import SABOTAGES, Sabotage

T = TypeVar("T")


class Doctor:
    """``gpudra doctor`` on a cluster, in this process."""

    def __init__(self, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
        self._config = f"--kubeconfig={cluster.layout.admin_kubeconfig}"
        self._capsys = capsys

    def asked(self) -> tuple[int, list[dict[str, Any]]]:
        """Exit code and findings."""
        code = main(["doctor", "-o", "json", self._config])
        return code, json.loads(self._capsys.readouterr().out)["findings"]

    def until(self, wanted: Callable[[int, list[dict[str, Any]]], T | None], what: str) -> T:
        """Asks again until the answer is as wanted; what is spoiled shows after a moment."""
        deadline = time.monotonic() + 120
        while True:
            code, findings = self.asked()
            if found := wanted(code, findings):
                return found
            bad = [one for one in findings if one["status"] != "ok"]
            assert time.monotonic() < deadline, f"waited for {what}; last: {json.dumps(bad)}"

    def until_green(self) -> None:
        """Exit code 0, and nothing but ok."""
        self.until(
            lambda code, found: code == 0 and {one["status"] for one in found} == {"ok"}, "green"
        )


@pytest.fixture
def doctor(installed: Installation, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """On the demo's cluster."""
    return Doctor(installed.cluster, capsys)


def test_the_doctor_is_green_after_the_demo(doctor: Doctor) -> None:
    """Nothing but ok."""
    doctor.until_green()


@pytest.mark.parametrize("case", SABOTAGES, ids=lambda case: case.name)
def test_the_doctor_is_red_while_spoiled_and_green_when_mended(
    installed: Installation, doctor: Doctor, case: Sabotage
) -> None:
    """Each sabotage is told with the right advice, and not any more once it is mended."""
    with case.spoil(installed.cluster):

        def told(code: int, findings: list[dict[str, Any]]) -> dict[str, Any] | None:
            red = [
                one for one in findings if (one["check"], one["status"]) == (case.check, "error")
            ]
            return next((one for one in red if code == 1 and case.says in one["message"]), None)

        assert case.advises in doctor.until(told, case.says)["fix"]
    doctor.until_green()


@pytest.fixture
def powerless(installed: Installation, tmp_path: Path) -> str:
    """A kubeconfig of an account that nobody gave any right."""
    cluster = installed.cluster
    token = cluster.kubectl("create", "token", "default", "-n", "default").strip()
    authority = cluster.layout.pki_dir / "ca.crt"
    file = tmp_path / "kubeconfig"
    file.write_text(kubeconfig(cluster.state.server, authority, {"token": token}))
    return str(file)


@pytest.mark.parametrize(
    ("words", "lacks"),
    [
        ("devices", 'cannot list resource "resourceslices" in API group "resource.k8s.io"'),
        ("claims", 'cannot list resource "resourceclaims" in API group "resource.k8s.io"'),
        ("claims -n team", 'in the namespace "team"'),
        ("explain claim/a", 'cannot list resource "'),
        ("uncordon gpu-1", 'cannot list resource "devicetaintrules"'),
    ],
)
def test_a_missing_right_is_told_with_verb_and_resource(
    powerless: str, words: str, lacks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, exit code 1."""
    assert main([*words.split(), "--kubeconfig", powerless]) == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert lacks in err


def test_the_doctor_says_what_it_may_not_look_at(
    powerless: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is called red for want of a right; each right is named."""
    assert main(["doctor", "-o", "json", "--kubeconfig", powerless]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {one["status"] for one in findings} <= {"ok", "unknown"}
    told = " ".join(one["message"] for one in findings)
    for right in ("list nodes", "list resourceslices.resource.k8s.io", "create resourceslices"):
        assert right in told


def test_rights_of_the_controller_are_in_its_role() -> None:
    """What the doctor asks for is what the chart grants, at least."""
    objects = Helm.built().template("--set", "managed.enabled=true")
    granted = {
        (group, resource, verb)
        for rule in find(objects, "ClusterRole", "gpudra-controller")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    needed = rights.CONTROLLER + rights.MANAGED
    wanted = {(one.group, one.resource, one.verb) for one in needed}
    assert wanted - granted == set()
