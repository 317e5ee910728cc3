# SPDX-License-Identifier: Apache-2.0
"""Which backend keeps shares apart, and what is refused by name."""

from dataclasses import replace

import pytest

from gpudra.api.config.v1alpha1 import Isolation
from gpudra.api.errors import ClaimError
from gpudra.driver.core.allocatable import DeviceKind
from gpudra.driver.core.sharing import Ask, Backend, NodeSharing, plan_sharing
from tests.support.sharing import EVERYTHING, allocation, asking, device, parts_of, share


def chosen(
    node: NodeSharing = EVERYTHING,
    ask: Backend | None = None,
    kind: DeviceKind = DeviceKind.SHARE,
    **fields: object,
) -> Backend | None:
    """The backend of a claim with one device."""
    claim = allocation(share(kind=kind))
    parts = parts_of(claim, [device(0, kind, **fields)])
    asks = asking(parts, ask) if ask else {}
    shares = plan_sharing(claim, parts, node=node, asks=asks).shares
    return shares[0].backend if shares else None


def without(*gone: Backend) -> NodeSharing:
    """A node that lacks some backends."""
    reasons = {one: "not installed" if one in gone else "" for one in Backend}
    return replace(EVERYTHING, backends=reasons)


def test_the_words_are_those_of_the_configuration() -> None:
    """Core has an enum of its own, with the values that users write."""
    assert [one.value for one in Backend] == [one.value for one in Isolation]


def test_the_strongest_usable_backend_is_taken_by_itself() -> None:
    """MPS before HAMi-core; what limits nobody is never taken unasked."""
    assert chosen() is Backend.MPS
    assert chosen(without(Backend.MPS)) is Backend.HAMI_CORE
    with pytest.raises(ClaimError, match=r"nothing .* gpu-0-share .*mps: not installed.*to none"):
        chosen(without(Backend.MPS, Backend.HAMI_CORE))


def test_the_policy_decides_where_the_claim_does_not() -> None:
    """The node's default beats strength, the claim beats both."""
    node = replace(EVERYTHING, default=Backend.HAMI_CORE)
    assert chosen(node) is Backend.HAMI_CORE
    assert chosen(node, Backend.NONE) is Backend.NONE
    with pytest.raises(ClaimError, match=r"the node's policy asks for isolation mps"):
        chosen(replace(without(Backend.MPS), default=Backend.MPS))


@pytest.mark.parametrize("backend", list(Backend))
def test_what_is_asked_for_is_given_or_refused_by_name(backend: Backend) -> None:
    """Nothing weaker is taken instead."""
    assert chosen(ask=backend) is backend
    with pytest.raises(ClaimError, match=f"isolation {backend} .*not installed"):
        chosen(without(backend), backend)
    forbidding = replace(EVERYTHING, allowed=frozenset(Backend) - {backend})
    with pytest.raises(ClaimError, match=f"isolation {backend} .*policy does not allow"):
        chosen(forbidding, backend)


def test_whole_devices_are_shared_only_if_the_claim_asks() -> None:
    """The policy's default is for shares."""
    node = replace(EVERYTHING, default=Backend.HAMI_CORE)
    assert chosen(node, kind=DeviceKind.WHOLE) is None
    assert chosen(node, kind=DeviceKind.MIG) is None
    assert chosen(node, Backend.MPS, DeviceKind.WHOLE) is Backend.MPS


@pytest.mark.parametrize(
    ("backend", "kind", "fields", "why"),
    [
        (Backend.HAMI_CORE, DeviceKind.WHOLE, {}, "it limits shares"),
        (Backend.TIME_SLICE, DeviceKind.MIG, {}, "no time slices of its own"),
        (Backend.MPS, DeviceKind.SHARE, {"compute_capability": (6, 1)}, "before Volta"),
        (Backend.MPS, DeviceKind.SHARE, {"vendor": "amd"}, "for cards of nvidia"),
        (Backend.HAMI_CORE, DeviceKind.SHARE, {"vendor": "amd"}, "for cards of nvidia"),
    ],
)
def test_a_device_that_a_backend_cannot_serve_is_refused(
    backend: Backend, kind: DeviceKind, fields: dict[str, object], why: str
) -> None:
    """The reason names the device's side of it."""
    with pytest.raises(ClaimError, match=why):
        chosen(ask=backend, kind=kind, **fields)


def test_none_serves_cards_of_any_vendor() -> None:
    """Declared cards can be shared, without limits."""
    assert chosen(ask=Backend.NONE, vendor="amd") is Backend.NONE


def test_an_empty_ask_is_no_ask() -> None:
    """Configuration that says nothing about isolation leaves it to the node."""
    claim = allocation(share())
    parts = parts_of(claim, [device(0)])
    found = plan_sharing(claim, parts, node=EVERYTHING, asks=dict.fromkeys(parts, Ask()))
    assert found.shares[0].backend is Backend.MPS
