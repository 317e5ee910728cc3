# SPDX-License-Identifier: Apache-2.0
"""What claims are told about their devices in ``status.devices``."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from gpudra.api.errors import ApiError, ForbiddenError, UnavailableError
from gpudra.driver.kube.resources import Obj, Resource
from gpudra.kubelet_plugin.claim_status import DELAY, LOOK_PERIOD, ClaimStatus
from gpudra.kubelet_plugin.forms import UserReader
from tests.support.formsnode import FormsNode, decoy_library, hardware, isolation
from tests.support.logs import Captured
from tests.support.plugin import DRIVER, FakeClaims, Instance, uid


class StatusApi:
    """Claims of a node; what is applied is kept, and answers may be errors."""

    def __init__(self, claims: FakeClaims) -> None:
        self._claims = claims
        self.bodies: list[Obj] = []
        self.options: list[dict[str, Any]] = []
        self.errors: list[ApiError] = []

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        """GET of a claim or pod."""
        return await self._claims.get(resource, name, namespace)

    async def patch(self, resource: Resource, name: str, body: Obj, **options: Any) -> Obj:
        """Server-side apply."""
        if self.errors:
            raise self.errors.pop(0)
        self.bodies.append(body)
        self.options.append(options)
        claim = self._claims.objects[f"{options['namespace']}/{name}"]
        claim["status"]["devices"] = body["status"]["devices"]
        return claim


class Desk:
    """A node with an agent that reports."""

    def __init__(self, node: FormsNode, plugin: Instance) -> None:
        self.node = node
        self.plugin = plugin
        self.api = StatusApi(node.api)
        self.status = ClaimStatus(
            self.api,
            DRIVER,
            records=lambda: plugin.checkpoint.records,
            devices=lambda: node.devices,
            users=UserReader(node.api, DRIVER).read,
            clock=node.clock,
            rng=random.Random(1),
        )
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Starts, or goes on, until there is nothing to do."""
        if self._task is None:
            self._task = asyncio.create_task(self.status.run())
        await asyncio.sleep(0)
        await self.node.clock.advance(DELAY)
        for _ in range(200):
            await asyncio.sleep(0)

    async def end(self) -> None:
        """Ends the task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def prepared(self, number: int, *devices: Any, config: tuple[Any, ...] = ()) -> None:
        """A claim is prepared, and what the agent has to say is said."""
        (answer,) = await self.plugin.prepare(self.node.claim(number, *devices, config=config))
        assert answer.ok, answer.error
        self.status.prepared(self.plugin.checkpoint.records[uid(number)])
        await self.run()

    def told(self) -> list[dict[str, Any]]:
        """The entries of the last report."""
        found: list[dict[str, Any]] = self.api.bodies[-1]["status"]["devices"]
        return found


@pytest.fixture
async def desk(tmp_path: Path) -> Any:
    """Simulated cards and a library that looks like HAMi-core."""
    with hardware("simulated", tmp_path) as found:
        node = FormsNode(tmp_path / "node", found.lib)
        node.hami_library = str(decoy_library(tmp_path))
        made = Desk(node, await node.start())
        yield made
        await made.end()


def conditions(entry: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Status and reason by type."""
    return {one["type"]: (one["status"], one["reason"]) for one in entry["conditions"]}


async def test_each_form_says_what_it_is_and_what_holds(desk: Desk) -> None:
    """Whole, MIG, share and monitor, each with uuid, CDI ids and the condition Isolated."""
    node = desk.node
    await desk.prepared(1, node.device(0))
    (whole,) = desk.told()
    assert conditions(whole) == {"Ready": ("True", "Prepared"), "Isolated": ("True", "Exclusive")}
    assert whole["data"]["uuid"] == node.cards[0]
    assert whole["data"]["cdiDeviceIDs"] == [f"{DRIVER}/claim={uid(1)}-{node.device(0)}"]

    await desk.prepared(2, node.device(1, "1g10gb-0"))
    (part,) = desk.told()
    assert conditions(part)["Isolated"] == ("True", "MIG")
    assert part["data"]["uuid"] == node.instances()[1][0].uuid
    assert part["data"]["parentUUID"] == node.cards[1]

    await desk.prepared(3, node.share(2, "10Gi"))
    (share,) = desk.told()
    assert conditions(share)["Isolated"] == ("True", "HamiCore")
    assert share["data"]["limits"] == {"memory": "10240Mi"}
    assert share["shareID"] == uid(1)

    await desk.prepared(4, node.share(3), config=(isolation("none"),))
    (none,) = desk.told()
    assert conditions(none)["Isolated"] == ("False", "NoIsolation")
    message = next(one["message"] for one in none["conditions"] if one["type"] == "Isolated")
    assert message == "not enforced: memory, compute"

    await desk.prepared(5, {"device": node.device(0, "monitor"), "adminAccess": True})
    (monitor,) = desk.told()
    assert conditions(monitor)["Isolated"] == ("False", "Monitor")
    assert monitor["data"]["uuid"] == node.cards[0]


async def test_it_is_applied_to_this_very_claim_by_this_driver(desk: Desk) -> None:
    """A claim of the same name made later is not touched, nor entries of other drivers."""
    await desk.prepared(1, desk.node.device(0))
    assert desk.api.bodies[0]["metadata"]["uid"] == uid(1)
    options = desk.api.options[0]
    assert (options["patch_type"], options["subresource"]) == ("apply", "status")
    assert options["field_manager"] == DRIVER


async def test_a_start_reports_what_is_missing_and_nothing_else(desk: Desk) -> None:
    """The process may end between preparing and reporting; what is told already is not repeated."""
    await desk.plugin.prepare(desk.node.claim(1, desk.node.device(0)))
    await desk.run()
    assert len(desk.api.bodies) == 1
    await desk.end()
    again = Desk(desk.node, desk.plugin)
    await again.run()
    await again.end()
    assert again.api.bodies == []


async def test_a_pod_that_breaks_a_limit_is_told(desk: Desk) -> None:
    """Two containers with process ids of their own count in one cache: Isolated turns False."""
    await desk.prepared(1, desk.node.share(0))
    assert conditions(desk.told()[0])["Isolated"][0] == "True"
    uses = {"resources": {"claims": [{"name": "g"}]}}
    desk.node.api.pods["pod-c1"] = {
        "metadata": {"name": "pod-c1"},
        "spec": {
            "containers": [{"name": "a", **uses}, {"name": "b", **uses}],
            "resourceClaims": [{"name": "g", "resourceClaimName": "c1"}],
        },
    }
    await desk.node.clock.advance(LOOK_PERIOD)
    await desk.run()
    (entry,) = desk.told()
    assert conditions(entry)["Isolated"] == ("False", "HamiCore")
    assert "share" in next(o["message"] for o in entry["conditions"] if o["type"] == "Isolated")


async def test_an_api_that_is_away_is_asked_again(desk: Desk) -> None:
    """The report comes late rather than never."""
    desk.api.errors = [UnavailableError("no connection"), UnavailableError("no connection")]
    await desk.prepared(1, desk.node.device(0))
    assert desk.api.bodies == []
    for _ in range(4):
        await desk.node.clock.advance(5.0)
        await desk.run()
    assert len(desk.api.bodies) == 1


async def test_a_missing_right_is_said_once(desk: Desk, logs: Captured) -> None:
    """Claims are prepared all the same."""
    desk.api.errors = [ForbiddenError("may not"), ForbiddenError("may not")]
    await desk.prepared(1, desk.node.device(0))
    await desk.prepared(2, desk.node.device(1))
    said = [line for line in logs.lines if line["event"] == "cannot report on a claim"]
    assert len(said) == 1
