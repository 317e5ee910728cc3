# SPDX-License-Identifier: Apache-2.0
"""Who sees what of a claim, and what variables cannot express."""

from collections.abc import Sequence
from typing import Any

import pytest

from gpudra.api.errors import ClaimError
from gpudra.driver.core.allocatable import DeviceKind
from gpudra.driver.core.sharing import Backend, Consumer, broken_by, consumers_of, plan_sharing
from tests.support.sharing import (
    EVERYTHING,
    allocation,
    asking,
    consumer,
    device,
    parts_of,
    share,
)

CLAIMS = frozenset({"claim-1", "claim-2"})


def planned(
    consumers: Sequence[Consumer],
    backend: Backend | None = Backend.HAMI_CORE,
    *,
    requests: Sequence[str] = ("a", "b"),
) -> Backend:
    """The backend of a claim with a share of one card per request."""
    claim = allocation(*(share(number, request=one) for number, one in enumerate(requests)))
    parts = parts_of(claim, [device(number) for number in range(len(requests))])
    asks = asking(parts, backend) if backend else {}
    plan = plan_sharing(
        claim, parts, node=EVERYTHING, asks=asks, consumers=consumers, gpu_claims=CLAIMS
    )
    return plan.shares[0].backend


def test_containers_with_different_views_are_refused() -> None:
    """Variables come with the device, so both containers would get both sets."""
    one, two = consumer("a", uses={"claim-1": ["a"]}), consumer("b")
    with pytest.raises(ClaimError, match=r"container b of pod pod-1 sees request a, b while"):
        planned([one, two])


def test_naming_every_request_is_the_whole_claim() -> None:
    """Two ways to say the same are one view."""
    one = consumer("a", uses={"claim-1": ["a", "b"]}, shared_pids=True)
    planned([one, consumer("b", shared_pids=True)])


def test_two_claims_of_ours_in_one_container_are_refused() -> None:
    """The index of a card would depend on the other claim; a claim of another driver does not."""
    both = consumer(uses={"claim-1": (), "claim-2": ()})
    with pytest.raises(ClaimError, match="has claim claim-2 beside claim-1"):
        planned([both])
    with pytest.raises(ClaimError, match="has claim claim-2 beside claim-1"):
        planned([both], Backend.MPS, requests=("a",))
    planned([consumer(uses={"claim-1": (), "network": ()})])


def test_two_containers_with_process_ids_of_their_own_are_refused() -> None:
    """HAMi-core tells processes apart by id: two containers both have a process 1."""
    with pytest.raises(ClaimError, match="process ids of their own"):
        planned([consumer("a"), consumer("b")])
    with pytest.raises(ClaimError, match="process ids of their own"):
        planned([consumer(pod="p", shared_pids=True), consumer(pod="q", shared_pids=True)])
    planned([consumer("a", shared_pids=True), consumer("b", shared_pids=True)])
    planned([consumer("prepare", init=True), consumer("main")])


def test_what_does_not_fit_hami_core_can_still_be_chosen_otherwise() -> None:
    """Without an ask, the strongest backend that fits the use is taken."""
    assert planned([consumer()], None) is Backend.HAMI_CORE, "two cards in one view: not MPS"
    assert planned([consumer("a"), consumer("b")], None, requests=("a",)) is Backend.MPS
    with pytest.raises(ClaimError, match=r"mps: a container sees 2 devices.*hami-core: .*ids"):
        planned([consumer("a"), consumer("b")], None)


def test_a_mig_device_beside_a_share_is_refused() -> None:
    """CUDA numbers only the MIG device then."""
    claim = allocation(share(0), share(1, kind=DeviceKind.MIG, request="mig"))
    parts = parts_of(claim, [device(0), device(1, DeviceKind.MIG)])
    asks = asking([next(iter(parts))], Backend.HAMI_CORE)
    with pytest.raises(ClaimError, match=r"sees MIG device gpu-1-mig beside the share"):
        plan_sharing(claim, parts, node=EVERYTHING, asks=asks)


@pytest.mark.parametrize(
    ("consumers", "told"),
    [
        ([consumer()], ""),
        ([consumer(), consumer("late", uses={"claim-1": ["a"]})], "sees request a while"),
        ([consumer(), consumer(pod="other")], "process ids of their own"),
        ([consumer(uses={"claim-1": (), "claim-2": ()})], "has claim claim-2"),
    ],
)
def test_a_later_consumer_can_break_what_held(consumers: list[Consumer], told: str) -> None:
    """Then Isolated turns False with the reason; the running container is left alone."""
    claim = allocation(share(0, request="a"), share(1, request="b"))
    parts = parts_of(claim, [device(0), device(1)])
    plan = plan_sharing(
        claim,
        parts,
        node=EVERYTHING,
        asks=asking(parts, Backend.HAMI_CORE),
        consumers=[consumer()],
    )
    found = broken_by(claim, plan.steps, consumers, CLAIMS)
    assert told in found
    assert bool(told) == bool(found)


def test_backends_without_variables_cannot_be_broken() -> None:
    """Time slices hold for any number of containers."""
    claim = allocation(share())
    parts = parts_of(claim, [device(0)])
    plan = plan_sharing(claim, parts, node=EVERYTHING, asks=asking(parts, Backend.TIME_SLICE))
    assert broken_by(claim, plan.steps, [consumer("a"), consumer("b")], CLAIMS) == ""


def pod(**spec: Any) -> dict[str, Any]:
    """A pod with one claim by name and one made from a template."""
    return {
        "metadata": {"name": "p"},
        "spec": {
            "resourceClaims": [
                {"name": "own", "resourceClaimName": "claim-1"},
                {"name": "made", "resourceClaimTemplateName": "t"},
            ],
            **spec,
        },
        "status": {"resourceClaimStatuses": [{"name": "made", "resourceClaimName": "p-made-x"}]},
    }


def uses(name: str, *claims: Any, **more: Any) -> dict[str, Any]:
    """A container."""
    named = [{"name": one} if isinstance(one, str) else one for one in claims]
    return {"name": name, "resources": {"claims": named}, **more}


def test_consumers_are_read_from_pods() -> None:
    """Names of the pod become names of claims; init containers end, sidecars do not."""
    found = consumers_of(
        [
            pod(
                initContainers=[uses("init", "own"), uses("side", "own", restartPolicy="Always")],
                containers=[
                    uses(
                        "main", {"name": "made", "request": "b"}, {"name": "made", "request": "a"}
                    ),
                    uses("both", {"name": "own", "request": "a"}, "own"),
                    {"name": "idle"},
                ],
            )
        ]
    )
    assert [(one.container, one.init, dict(one.uses)) for one in found] == [
        ("init", True, {"claim-1": frozenset()}),
        ("side", False, {"claim-1": frozenset()}),
        ("main", False, {"p-made-x": frozenset({"a", "b"})}),
        ("both", False, {"claim-1": frozenset()}),
    ]


def test_pods_that_have_ended_use_nothing() -> None:
    """Nor does a claim that the pod's status does not name yet."""
    ended = pod(containers=[uses("main", "own")])
    ended["status"]["phase"] = "Succeeded"
    waiting = pod(containers=[uses("main", "made")])
    waiting["status"] = {}
    assert consumers_of([ended, waiting, {}]) == ()


def test_claims_for_extended_resources_are_found_in_the_status() -> None:
    """The scheduler makes such a claim and says which container has which request."""
    made = pod(containers=[{"name": "main"}], shareProcessNamespace=True)
    made["status"]["extendedResourceClaimStatus"] = {
        "resourceClaimName": "p-extended",
        "requestMappings": [
            {
                "containerName": "main",
                "resourceName": "x/gpu",
                "requestName": "container-0-request-0",
            }
        ],
    }
    (found,) = consumers_of([made])
    assert found.uses == {"p-extended": frozenset({"container-0-request-0"})}
    assert found.shared_pids
