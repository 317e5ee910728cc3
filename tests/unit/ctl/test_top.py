# SPDX-License-Identifier: Apache-2.0
"""``gpudra top``: finding agents, reading them, saying what is missing, printing."""

import argparse
import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import yaml

from gpudra.api.errors import ForbiddenError, InputError, NotFoundError, UnavailableError
from gpudra.controller.ctl import cluster, top
from gpudra.controller.ctl.agentmetrics import Reading, Usage, agents_of, usages_of
from gpudra.driver.kube.resources import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from gpudra.driver.kube.verbs import ListResult
from gpudra.driver.observability import metrics as m
from gpudra.driver.observability.metrics import Component, Metrics

GIB = 2**30


def pod(name: str, node: str, *, port: str = "http", **status: Any) -> dict[str, Any]:
    """An agent's pod as the chart makes it."""
    return {
        "metadata": {"name": name, "namespace": "gpudra-system"},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "a", "ports": [{"name": port, "containerPort": 8080}]}],
        },
        "status": {"phase": "Running", **status},
    }


def exposition(*series: tuple[str, str, int, int | None]) -> str:
    """What an agent serves: claim, form, GiB used of 80, per cent."""
    metrics = Metrics(Component.AGENT)
    metrics.observe(m.PHASE_SECONDS, 0.1, operation="prepare", phase="api")
    metrics.set(m.IN_FLIGHT, 3, operation="prepare")
    for claim, form, used, percent in series:
        labels = {"namespace": "team-a", "claim": claim, "device": f"gpu-{claim}", "form": form}
        metrics.set(m.CLAIM_MEMORY, 80 * GIB, **labels)
        metrics.set(m.CLAIM_MEMORY_USED, used * GIB, **labels)
        metrics.set(m.CLAIM_PROCESSES, 1, **labels)
        if percent is not None:
            metrics.set(m.CLAIM_COMPUTE, percent, **labels)
    return metrics.render()[0].decode()


class Api:
    """An API server with agents behind its proxy; a test says what it may not, or what is down."""

    def __init__(self) -> None:
        self.pods = [pod("agent-1", "node-1"), pod("agent-2", "node-2")]
        self.texts: dict[str, str | Exception] = {
            "agent-1": exposition(("big", "gpu", 40, 90), ("small", "share", 2, 95)),
            "agent-2": exposition(("part", "mig", 8, None)),
        }
        self.nodes = ["node-1", "node-2"]
        self.errors: dict[Resource, Exception] = {}
        self.asked: list[str | None] = []

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> ListResult:
        """LIST."""
        if resource in self.errors:
            raise self.errors[resource]
        items: list[Any] = []
        if resource == PODS:
            assert "app.kubernetes.io/component=kubelet-plugin" in label_selector
            self.asked.append(namespace)
            items = self.pods
        elif resource == RESOURCE_SLICES:
            items = [{"spec": {"nodeName": node}} for node in self.nodes]
        elif resource == RESOURCE_CLAIMS:
            meta = {"name": "big", "namespace": "team-a"}
            items = [{"metadata": meta, "status": {"reservedFor": [{"name": "trainer-0"}]}}]
        return ListResult(items=items, resource_version="1")

    async def get_raw(self, path: str) -> bytes:
        """GET through the proxy."""
        name = path.split("/")[6].split(":")[1]
        assert path == f"/api/v1/namespaces/gpudra-system/pods/http:{name}:8080/proxy/metrics"
        found = self.texts[name]
        if isinstance(found, Exception):
            raise found
        return found.encode()


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    """An API server that every command of the test asks."""
    found = Api()
    monkeypatch.setattr(cluster, "ask", lambda _args, question: asyncio.run(question(found)))
    return found


def run(*words: str) -> int:
    """The command."""
    return top.run(parse(words))


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Its arguments."""
    parser = argparse.ArgumentParser()
    top.add_arguments(parser)
    return parser.parse_args(words)


def names(out: str) -> list[str]:
    """The column of claims."""
    return [line.split()[2] for line in out.splitlines()[1:]]


def test_the_table_shows_what_every_claim_uses(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    """Largest first; who uses it comes from the claims; what is not told shows a dash."""
    assert run() == 0
    out, err = capsys.readouterr()
    header, *rows = [line.split() for line in out.splitlines()]
    assert header == [
        "NODE",
        "NAMESPACE",
        "CLAIM",
        "FORM",
        "DEVICE",
        "MEMORY",
        "OF",
        "MEM%",
        "GPU%",
        "PROCESSES",
        "PODS",
    ]
    assert rows == [
        [
            "node-1",
            "team-a",
            "big",
            "gpu",
            "gpu-big",
            "40960Mi",
            "81920Mi",
            "50",
            "90",
            "1",
            "trainer-0",
        ],
        ["node-2", "team-a", "part", "mig", "gpu-part", "8192Mi", "81920Mi", "10", "-", "1", "-"],
        [
            "node-1",
            "team-a",
            "small",
            "share",
            "gpu-small",
            "2048Mi",
            "81920Mi",
            "2",
            "95",
            "1",
            "-",
        ],
    ]
    assert err == ""
    assert api.asked == ["gpudra-system"]


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("memory", ["big", "part", "small"]),
        ("compute", ["small", "big", "part"]),
        ("claim", ["big", "part", "small"]),
        ("node", ["big", "small", "part"]),
    ],
)
def test_the_order_is_the_one_asked_for(
    api: Api, capsys: pytest.CaptureFixture[str], sort: str, order: list[str]
) -> None:
    """What uses most comes first, names go up."""
    run("--sort", sort)
    assert names(capsys.readouterr().out) == order


def test_one_node_and_one_namespace_can_be_chosen(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other agents are not even asked."""
    api.texts["agent-1"] = AssertionError("must not be asked")
    run("--node", "node-2")
    assert names(capsys.readouterr().out) == ["part"]
    run("--node", "node-2", "-n", "team-b")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "no prepared claims tell what they use\n")


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_programs_get_numbers(api: Api, capsys: pytest.CaptureFixture[str], output: str) -> None:
    """Bytes and per cent, and no key for what nobody tells."""
    run("-o", output, "--sort", "node")
    out = capsys.readouterr().out
    found = json.loads(out) if output == "json" else yaml.safe_load(out)
    assert found["problems"] == []
    assert found["items"][0] == {
        "node": "node-1",
        "namespace": "team-a",
        "claim": "big",
        "device": "gpu-big",
        "form": "gpu",
        "memoryBytes": 80 * GIB,
        "memoryUsedBytes": 40 * GIB,
        "computePercent": 90,
        "processes": 1,
        "pods": ["trainer-0"],
    }
    assert "computePercent" not in found["items"][2]


FORBIDDEN = ForbiddenError("forbidden", status=403)
DOWN = UnavailableError("connection refused", status=503)
MISSING = [
    (
        FORBIDDEN,
        "you may not read the metrics of pod gpudra-system/agent-2 on node node-2: the right",
    ),
    (DOWN, "pod gpudra-system/agent-2 on node node-2 does not answer: connection refused"),
    (NotFoundError("no", status=404), "pod gpudra-system/agent-2 on node node-2 has no metrics"),
]


@pytest.mark.parametrize(("error", "note"), MISSING)
def test_one_agent_that_cannot_be_read_is_named_and_costs_only_its_node(
    api: Api, capsys: pytest.CaptureFixture[str], error: Exception, note: str
) -> None:
    """The rest is shown, the exit code is good, the note goes to stderr."""
    api.texts["agent-2"] = error
    assert run() == 0
    out, err = capsys.readouterr()
    assert names(out) == ["big", "small"]
    assert f"note: {note}" in err


@pytest.mark.parametrize(("error", "note"), MISSING)
def test_if_no_agent_can_be_read_the_reason_is_the_error(
    api: Api, error: Exception, note: str
) -> None:
    """An empty table would look as if nothing ran."""
    api.texts = {"agent-1": error, "agent-2": error}
    with pytest.raises(UnavailableError, match="usage of GPUs") as caught:
        run()
    assert note in str(caught.value)


def test_without_the_right_to_list_pods_the_right_is_named(api: Api) -> None:
    """And the ways around it."""
    api.errors[PODS] = FORBIDDEN
    with pytest.raises(ForbiddenError, match="may not list pods in namespace gpudra-system") as one:
        run()
    assert "--agent NODE=URL" in str(one.value)


def test_without_agents_it_says_where_it_looked(api: Api) -> None:
    """Nothing found in the usual namespace, or in the one named."""
    api.pods, api.nodes = [], []
    with pytest.raises(UnavailableError, match="no agent of gpudra in namespace gpudra-system"):
        run()
    with pytest.raises(UnavailableError, match="no agent of gpudra anywhere"):
        run("--agent-namespace", "")
    assert api.asked == ["gpudra-system", None]


def test_a_node_whose_agent_is_gone_is_named(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    """Its devices are listed, so somebody may look for its claims in vain."""
    api.nodes.append("node-3")
    run()
    assert "note: node node-3 has GPUs, but no agent runs on it now" in capsys.readouterr().err


def test_pods_that_may_not_be_seen_are_left_out(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    """Usage is shown without them, and the reason is told."""
    api.errors = {RESOURCE_CLAIMS: FORBIDDEN, RESOURCE_SLICES: FORBIDDEN}
    assert run() == 0
    out, err = capsys.readouterr()
    assert names(out) == ["big", "part", "small"]
    assert "note: the pods of claims are not known" in err


def test_agents_are_pods_that_run_and_serve() -> None:
    """Pods that end are left out in silence, those without the port are told."""
    ending = pod("old", "node-1")
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    done = pod("done", "node-1", phase="Failed")
    agents, problems = agents_of([pod("a", "node-1"), ending, done, pod("b", "n2", port="odd")])
    assert [one.node for one in agents] == ["node-1"]
    assert problems == ["agent gpudra-system/b on node n2 serves no metrics (no port http)"]


@pytest.mark.parametrize("text", ["", "<html>no</html>", 'gpudra_claim_processes{claim="a"} 1\n'])
def test_what_is_no_usage_is_none(text: str) -> None:
    """A proxy's page, or an agent of another version."""
    assert usages_of(text, "n") == []


def test_damaged_series_are_told(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    """Not mistaken for idle claims."""
    api.texts["agent-2"] = 'gpudra_claim_processes{namespace="a",claim="b" x\n'
    run()
    assert "pod gpudra-system/agent-2 on node node-2 does not answer" in capsys.readouterr().err


class StoppedError(Exception):
    """The person has seen enough."""


def stop_after(rounds: int) -> tuple[Callable[[float], Any], list[float]]:
    """A sleep that ends the watch."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == rounds:
            raise StoppedError

    return sleep, slept


async def test_watching_draws_again_after_each_pause(capsys: pytest.CaptureFixture[str]) -> None:
    """A look that fails in between is told, and the next one is shown."""
    one = Usage(node="n", namespace="a", claim="c", device="d", form="gpu", processes=1)
    answers: list[Reading | Exception] = [Reading(usages=(one,)), DOWN, Reading(usages=(one,))]

    async def look() -> tuple[Reading, top.Users]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer, {}

    sleep, slept = stop_after(3)
    with pytest.raises(StoppedError):
        await top.watch(look, parse(["--watch", "--interval", "2.5"]), sleep=sleep)
    out, err = capsys.readouterr()
    assert slept == [2.5] * 3
    assert out.count("every 2.5 s") == 3
    assert out.count("gpu") == 2
    assert top.CLEAR not in out, "no codes of terminals in a file"
    assert "note: connection refused" in err


async def test_watching_fails_when_the_first_look_does() -> None:
    """Somebody without rights gets an answer, not an empty screen."""

    async def look() -> tuple[Reading, top.Users]:
        raise DOWN

    sleep, _ = stop_after(1)
    with pytest.raises(UnavailableError):
        await top.watch(look, parse(["--watch"]), sleep=sleep)


def test_watching_is_for_tables(api: Api) -> None:
    """A stream of documents would need a reader of its own."""
    with pytest.raises(InputError, match="--watch"):
        run("--watch", "-o", "json")


@pytest.mark.parametrize("words", [["--interval", "0"], ["--interval", "x"], ["--agent", "node-1"]])
def test_odd_arguments_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With the text that was given."""
    with pytest.raises(SystemExit):
        parse(words)
    assert repr(words[1]) in capsys.readouterr().err
