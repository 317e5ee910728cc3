# SPDX-License-Identifier: Apache-2.0
"""The controller's HTTP API: who may ask, and what is answered."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
import yaml

from gpudra.api.errors import UnavailableError
from gpudra.controller.managed.access import REMEMBER_SECONDS, Access, Wish
from gpudra.controller.managed.httpapi import HttpApi
from gpudra.controller.managed.loop import ManagedMode
from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.kube.resources import Obj, Resource
from gpudra.driver.kube.verbs import ListResult
from gpudra.driver.observability.http import StatusServer
from tests.support.managedsim import NAMESPACE, ManagedSim


@dataclass
class Reviews:
    """An API server that knows two people: alice may list everything, bob nothing."""

    asked: list[Obj] = field(default_factory=list)
    away: bool = False
    templates: list[Obj] = field(default_factory=list)

    async def create(self, resource: Resource, obj: Obj, **_: Any) -> Obj:
        """A review."""
        if self.away:
            raise UnavailableError("connection refused")
        self.asked.append(obj["spec"])
        if resource.kind == "TokenReview":
            name = obj["spec"]["token"]
            known = name in {"alice", "bob"}
            return {"status": {"authenticated": known, "user": {"username": name, "groups": ["g"]}}}
        return {"status": {"allowed": obj["spec"]["user"] == "alice"}}

    async def list(self, resource: Resource, namespace: str) -> ListResult:
        """Templates."""
        return ListResult(
            [one for one in self.templates if one["metadata"]["namespace"] == namespace], "1"
        )


@dataclass
class Served:
    """A running server and its cluster."""

    sim: ManagedSim
    reviews: Reviews
    url: str
    session: aiohttp.ClientSession
    leads: bool = True

    def mode(self) -> ManagedMode | None:
        """As ManagedStart tells it."""
        return self.sim.mode if self.leads else None

    async def ask(
        self, path: str, token: str = "alice", body: str | None = None
    ) -> tuple[int, Any]:
        """Status and JSON."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        method = "GET" if body is None else "POST"
        async with self.session.request(
            method, f"{self.url}/api/v1/{path}", data=body, headers=headers
        ) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """One node with four cards, of which a pod has one; another pod asks for too much."""
    sim = ManagedSim(1)
    sim.add_node("n1", "l4-4x")
    sim.add_template("gpu", "gpu.gpudra.io")
    sim.add_template("five", "gpu.gpudra.io", 5)
    sim.add_queue("q", quota={"gpus": "2"})
    sim.add_group("g", 3)
    sim.start()
    await sim.live(1)
    sim.submit("runs", "q", {"gpu": "gpu"}, life=1000)
    sim.submit("waits", "q", {"gpu": "five"}, life=1000)
    await sim.live(10)
    reviews = Reviews(templates=[
        {"metadata": {"name": "gpu", "namespace": NAMESPACE}, "spec": {"spec": {"devices": {
            "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.gpudra.io"}}]}}}},
    ])  # fmt: skip
    server = StatusServer(sim.metrics, port=0)
    async with aiohttp.ClientSession() as session:
        found = Served(sim, reviews, "", session)
        HttpApi(
            reviews,  # type: ignore[arg-type]
            mode=found.mode, holder=lambda: "other", clock=sim.clock,
        ).add_to(server)  # fmt: skip
        await server.start()
        found.url = f"http://127.0.0.1:{server.port}"
        yield found
    await server.close()
    await sim.kill()


async def test_the_api_server_decides_who_may_ask(served: Served) -> None:
    """No token, an unknown one, a person without the right: each is told what is missing."""
    assert (await served.ask("queues", token=""))[0] == 401
    assert (await served.ask("queues", token="mallory"))[0] == 401
    status, body = await served.ask(f"pods?namespace={NAMESPACE}", token="bob")
    assert status == 403
    assert body["message"] == f"bob may not list pods in namespace {NAMESPACE}"
    assert served.reviews.asked[-1]["resourceAttributes"] == {
        "verb": "list", "group": "", "resource": "pods", "namespace": NAMESPACE,
    }  # fmt: skip


async def test_what_is_answered(served: Served) -> None:
    """Queues with numbers, pods with their state and reason, groups with their phase."""
    status, queues = await served.ask("queues")
    assert status == 200
    (row,) = queues["items"]
    assert (row["name"], row["used"]["gpus"], row["running"], row["waiting"]) == ("q", "1", 1, 1)
    _, pods = await served.ask("pods?queue=q")
    states = {one["name"]: (one["state"], one["reason"]) for one in pods["items"]}
    assert states == {"runs": ("Running", "Placed"), "waits": ("Waiting", "NeverPlaceable")}
    assert (await served.ask("pods?queue=other"))[1] == {"items": []}
    _, groups = await served.ask("podgroups")
    assert [(one["name"], one["phase"]) for one in groups["items"]] == [("g", "Pending")]


def gang(count: int) -> str:
    """A gang's manifests."""
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"m{number}", "namespace": NAMESPACE},
            "spec": {
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
                "containers": [{"name": "c"}],
            },
        }
        for number in range(count)
    ]
    group = {
        "apiVersion": "gpudra.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "new", "namespace": NAMESPACE},
        "spec": {"minCount": count, "queue": "q"},
    }
    return yaml.safe_dump_all([group, *pods])


async def test_what_if_answers_without_creating_anything(served: Served) -> None:
    """Three more fit and are told their devices; four do not, and are told why."""
    before = served.sim.objects.revision
    status, answer = await served.ask("whatif", body=gang(3))
    assert status == 200, answer
    assert answer["fits"]
    assert [pod["node"] for pod in answer["pods"]] == ["n1"] * 3
    assert len({one["device"] for claim in answer["claims"] for one in claim["devices"]}) == 3
    status, answer = await served.ask("whatif", body=gang(4))
    assert status == 200
    assert not answer["fits"]
    assert answer["reason"]
    assert answer["message"]
    assert served.sim.objects.revision == before


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("", "no Pod or Job"),
        ("a: [", "neither YAML nor JSON"),
        ("- 1", "no Kubernetes object"),
        (gang(2).replace("minCount: 2", "minCount: 3"), "fewer than its minCount"),
        (gang(1).replace("Name: gpu\n", "Name: none\n"), "no ResourceClaimTemplate none"),
        (gang(1).split("---")[1], "label gpudra.io/queue is missing"),
    ],
)
async def test_a_question_that_cannot_be_understood(served: Served, body: str, why: str) -> None:
    """400, with what is wrong."""
    status, answer = await served.ask("whatif", body=body)
    assert status == 400, answer
    assert why in answer["message"]


async def test_who_cannot_answer_says_so(served: Served) -> None:
    """An instance that does not lead names the leader; without an API server nobody gets in."""
    served.leads = False
    status, body = await served.ask("queues")
    assert (status, body["message"]) == (503, "this instance does not lead, other does")
    served.reviews.away = True
    assert (await served.ask("podgroups"))[0] == 503


async def test_a_decision_is_remembered_for_seconds_only() -> None:
    """Rights that are taken away end soon; another right is asked for anew."""
    clock, reviews = VirtualClock(), Reviews()
    access = Access(reviews, clock)  # type: ignore[arg-type]
    wish = Wish("list", "", "pods")
    assert (await access.decide("Bearer alice", wish)).status == 200
    assert (await access.decide("Bearer alice", wish)).status == 200
    assert len(reviews.asked) == 2
    await access.decide("Bearer alice", Wish("list", "", "pods", "other"))
    assert len(reviews.asked) == 4
    await clock.advance(REMEMBER_SECONDS)
    await access.decide("Bearer alice", wish)
    assert len(reviews.asked) == 6
