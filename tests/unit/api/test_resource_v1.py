# SPDX-License-Identifier: Apache-2.0
"""resource.k8s.io/v1 objects: JSON in, JSON out, nothing lost."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudra.api import resource_v1 as v1
from gpudra.api.attributes import UnknownValue, decode_attribute, encode_attribute
from gpudra.api.errors import InputError
from gpudra.api.quantity import Quantity
from gpudra.api.semver import Semver

SLICE: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "s", "managedFields": [{"manager": "x"}], "uid": "u"},
    "spec": {
        "driver": "gpu.example.com",
        "nodeName": "node-a",
        "pool": {"name": "node-a", "generation": 0, "resourceSliceCount": 1},
        "devices": [
            {
                "name": "gpu-0",
                "attributes": {
                    "model": {"string": "H100"},
                    "index": {"int": 0},
                    "ecc": {"bool": False},
                    "driverVersion": {"version": "580.1.0"},
                    "peers": {"strings": ["a", "b"]},
                    "later": {"duration": "3s"},
                },
                "capacity": {"memory": {"value": "80Gi", "requestPolicy": {"default": "1Gi"}}},
                "consumesCounters": [{"counterSet": "c", "counters": {"m": {"value": "1"}}}],
                "taints": [{"key": "k", "effect": "NoSchedule", "futureField": 1}],
                "inventedLater": {"a": [1]},
            }
        ],
    },
}


def test_an_object_comes_back_as_it_came() -> None:
    """Known, unknown and future fields survive reading and writing."""
    assert v1.ResourceSlice.from_dict(SLICE).to_dict() == SLICE


def test_attribute_values_are_plain_python_values() -> None:
    """Each form of an attribute is told by the type of its value."""
    device = v1.ResourceSlice.from_dict(SLICE).spec.devices[0]
    assert device.attributes == {
        "model": "H100",
        "index": 0,
        "ecc": False,
        "driverVersion": Semver.parse("580.1.0"),
        "peers": ("a", "b"),
        "later": UnknownValue({"duration": "3s"}),
    }
    assert device.capacity["memory"].value == Quantity.parse("80Gi")


@pytest.mark.parametrize("nothing", [None, "absent", []])
def test_null_missing_and_empty_lists_read_alike(nothing: object) -> None:
    """A slice whose devices are null, missing or empty has no devices."""
    spec = {k: v for k, v in SLICE["spec"].items() if k != "devices"}
    if nothing != "absent":
        spec["devices"] = nothing
    assert v1.ResourceSlice.from_dict({**SLICE, "spec": spec}).spec.devices == ()


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("spec",), [], "spec"),
        (("spec", "driver"), 5, "spec.driver"),
        (("spec", "driver"), None, "spec.driver"),
        (("spec", "pool", "generation"), "1", "spec.pool.generation"),
        (("spec", "pool", "generation"), 2**63, "spec.pool.generation"),
        (("spec", "devices"), {}, "spec.devices"),
        (("spec", "devices", 0, "name"), None, "spec.devices[0].name"),
        (("spec", "devices", 0, "attributes", "model"), {}, "spec.devices[0].attributes[model]"),
        (("spec", "devices", 0, "attributes", "model"), {"int": 1, "string": "x"}, "spec.devices[0].attributes[model]"),
        (("spec", "devices", 0, "attributes", "v"), {"version": "1"}, "spec.devices[0].attributes[v]"),
        (("spec", "devices", 0, "capacity", "memory", "value"), "80 GB", "spec.devices[0].capacity[memory].value"),
        (("spec", "devices", 0, "taints", 0, "effect"), None, "spec.devices[0].taints[0].effect"),
    ],
)  # fmt: skip
def test_a_malformed_field_is_named_by_its_path(
    path: tuple[str | int, ...], value: object, field: str
) -> None:
    """The error of a malformed value carries the path of its field."""
    raw = _deep_copy(SLICE)
    target: Any = raw
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    with pytest.raises(InputError) as caught:
        v1.ResourceSlice.from_dict(raw)
    assert caught.value.field == field


def test_claims_get_the_defaults_of_the_api_server() -> None:
    """AllocationMode is ExactCount unless said; a claim without status has none."""
    claim = v1.ResourceClaim.from_dict(
        {
            "metadata": {"name": "c", "namespace": "n"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "g"}}]}},
        }
    )
    exactly = claim.spec.devices.requests[0].exactly
    assert exactly is not None
    assert (exactly.allocation_mode, exactly.count) == (v1.EXACT_COUNT, None)
    assert (claim.key, claim.status.allocation) == ("n/c", None)


def test_values_of_a_later_api_can_be_told_apart_like_any_other() -> None:
    """Unknown forms compare and hash, whatever JSON they hold."""
    one, same, other = ({"later": {"a": [n]}} for n in (1, 1, 2))
    assert len({UnknownValue(one), UnknownValue(same), UnknownValue(other)}) == 2


SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=8),
    st.builds(lambda a, b, c: Semver.parse(f"{a}.{b}.{c}"), *[st.integers(0, 99)] * 3),
)


@given(st.one_of(SCALARS, st.lists(st.text(max_size=4), min_size=1).map(tuple)))
def test_any_attribute_value_survives_the_wire(value: Any) -> None:
    """Encoding and decoding an attribute gives the same value of the same type."""
    back = decode_attribute(encode_attribute(value))
    assert back == value
    assert type(back) is type(value)


def _deep_copy(raw: Any) -> Any:
    if isinstance(raw, dict):
        return {key: _deep_copy(value) for key, value in raw.items()}
    return [_deep_copy(value) for value in raw] if isinstance(raw, list) else raw
