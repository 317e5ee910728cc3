# SPDX-License-Identifier: Apache-2.0
"""Finds out what the API server keeps of a slice, by dry-run writes and reading the answers.

Feature gates cannot be asked for, and a version says little: gates are switched per cluster. A
server with a gate off drops the fields silently (or refuses what is left of the object), so only
what comes back counts. One write per feature, since one refused field would hide the others. Runs
before the agent publishes for the first time, and again when it reconnects.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from gpudra.api.errors import InvalidError
from gpudra.driver.core.resourceslices import ServerFeatures, slice_base_name
from gpudra.driver.kube.resources import RESOURCE_SLICES, Obj
from gpudra.driver.kube.verbs import KubeApi

_COUNTERS = {"slices": {"value": "8"}}
_SHARED_COUNTERS = {"sharedCounters": [{"name": "probe", "counters": _COUNTERS}]}
_CONSUMES = {"consumesCounters": [{"counterSet": "probe", "counters": _COUNTERS}]}
_SHARE = {
    "allowMultipleAllocations": True,
    "capacity": {
        "memory": {
            "value": "1Gi",
            "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Mi", "step": "1Mi"}},
        }
    },
}
_TAINTS = {"taints": [{"key": "probe.gpudra.io/probe", "effect": "NoSchedule"}]}
_LISTS = {"attributes": {"probe": {"strings": ["a", "b"]}}}


async def probe_features(client: KubeApi, *, driver: str, node_name: str) -> ServerFeatures:
    """What slices of this node may hold. Writes nothing.

    Args:
        client: of the API; the account needs ``create`` on resourceslices.
        driver: name of the driver.
        node_name: of the node, which admission may check against the account's own.

    Raises:
        ApiError: the server could not be asked (away, forbidden): nothing is known then.
    """
    base = _base(driver, node_name)
    sets, consumption, shares, taints, lists = await asyncio.gather(
        _keeps(client, base, _SHARED_COUNTERS),
        # Since 1.35 sets and devices live in different slices; a server that wants them in one
        # refuses this, and our layout cannot be published there.
        _keeps(client, base, _device(_CONSUMES)),
        _keeps(client, base, _device(_SHARE)),
        _keeps(client, base, _device(_TAINTS)),
        _keeps(client, base, _device(_LISTS)),
    )
    return ServerFeatures(
        counters=sets and consumption,
        consumable_capacity=shares,
        device_taints=taints,
        list_attributes=lists,
    )


def _device(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"devices": [{"name": "probe", **fields}]}


def _base(driver: str, node_name: str) -> Obj:
    return {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": RESOURCE_SLICES.kind,
        "metadata": {"name": f"{slice_base_name(node_name, driver)}-probe"},
        "spec": {
            "driver": driver,
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
        },
    }


async def _keeps(client: KubeApi, base: Obj, fields: Mapping[str, Any]) -> bool:
    obj = {**base, "spec": {**base["spec"], **fields}}
    try:
        answer = await client.create(RESOURCE_SLICES, obj, dry_run=True)
    except InvalidError:
        return False
    return _contains(answer.get("spec"), fields)


def _contains(answer: Any, sent: Any) -> bool:
    """Whether everything that was sent came back; the server may add."""
    if isinstance(sent, Mapping):
        return isinstance(answer, Mapping) and all(
            _contains(answer.get(key), value) for key, value in sent.items()
        )
    if isinstance(sent, list):
        return (
            isinstance(answer, list)
            and len(answer) == len(sent)
            and all(_contains(one, other) for one, other in zip(answer, sent, strict=True))
        )
    return bool(answer == sent)
