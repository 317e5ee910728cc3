# SPDX-License-Identifier: Apache-2.0
"""What the API server fills in or clears by itself on write, per kind. Pure.

Only what our programs can notice: defaults of ``resource.k8s.io/v1`` types, ``timeAdded`` of
taints, the entries of ``status.devices`` that end with the allocation, a pod's first phase.
"""

from collections.abc import Callable, Iterator
from datetime import datetime

from gpudra.driver.kube.clock import rfc3339
from gpudra.driver.kube.resources import Obj

# new object (changed in place), old object or None, time
Defaulter = Callable[[Obj, Obj | None, datetime], None]


def default_claim(new: Obj, old: Obj | None, now: datetime) -> None:
    """Defaults of a ResourceClaim, and the device statuses of a claim that lost its allocation."""
    _default_claim_spec(new.get("spec") or {})
    status = new.get("status") or {}
    allocation = status.get("allocation")
    if allocation is None:
        _drop_deallocated(status, (old or {}).get("status") or {})
        return
    for result in (allocation.get("devices") or {}).get("results") or ():
        _default_tolerations(result)
    allocation.setdefault("allocationTimestamp", rfc3339(now))


def _drop_deallocated(status: Obj, before: Obj) -> None:
    """Device statuses end with the allocation of their device; foreign ones are left to be refused."""
    results = ((before.get("allocation") or {}).get("devices") or {}).get("results") or ()
    gone = {_device(result) for result in results}
    if gone and status.get("devices"):
        status["devices"] = [item for item in status["devices"] if _device(item) not in gone]
        if not status["devices"]:
            del status["devices"]


def _device(item: Obj) -> tuple[object, ...]:
    return tuple(item.get(key) for key in ("driver", "pool", "device", "shareID"))


def default_claim_template(new: Obj, _old: Obj | None, _now: datetime) -> None:
    """Defaults of the claim inside a ResourceClaimTemplate."""
    _default_claim_spec((new.get("spec") or {}).get("spec") or {})


def default_slice(new: Obj, _old: Obj | None, now: datetime) -> None:
    """``timeAdded`` of device taints that came without one."""
    for device in (new.get("spec") or {}).get("devices") or ():
        for taint in device.get("taints") or ():
            taint.setdefault("timeAdded", rfc3339(now))


def default_taint_rule(new: Obj, old: Obj | None, now: datetime) -> None:
    """``timeAdded`` of the rule's taint; set anew when only the effect changes."""
    taint = (new.get("spec") or {}).get("taint")
    if not isinstance(taint, dict):
        return
    before = ((old or {}).get("spec") or {}).get("taint") or {}
    same_time = taint.get("timeAdded") == before.get("timeAdded")
    if before and same_time and taint.get("effect") != before.get("effect"):
        taint["timeAdded"] = rfc3339(now)
    taint.setdefault("timeAdded", rfc3339(now))


def default_pod(new: Obj, old: Obj | None, _now: datetime) -> None:
    """A new pod is Pending."""
    if old is None:
        new.setdefault("status", {}).setdefault("phase", "Pending")


def _default_claim_spec(spec: Obj) -> None:
    for request in _requests(spec):
        _default_tolerations(request)
        mode = request.setdefault("allocationMode", "ExactCount")
        if mode == "ExactCount":
            request.setdefault("count", 1)


def _requests(spec: Obj) -> Iterator[Obj]:
    for request in (spec.get("devices") or {}).get("requests") or ():
        if isinstance(request.get("exactly"), dict):
            yield request["exactly"]
        yield from request.get("firstAvailable") or ()


def _default_tolerations(holder: Obj) -> None:
    for toleration in holder.get("tolerations") or ():
        toleration.setdefault("operator", "Equal")
