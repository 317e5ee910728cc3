# SPDX-License-Identifier: Apache-2.0
"""Whatever a pod holds: it is converted to something sound, or refused by field."""

import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpudra.api.errors import InputError
from gpudra.api.resource_v1 import ResourceClaimSpec
from gpudra.driver.core.cel import compile_selector
from gpudra.driver.core.conversion import words
from gpudra.driver.core.conversion.live import needs_of
from gpudra.driver.core.conversion.names import ask_of, name_of
from gpudra.driver.core.conversion.pods import convert_pod
from gpudra.driver.core.conversion.templates import template_of
from gpudra.driver.core.conversion.types import Classes
from gpudra.driver.core.conversion.workloads import Settings, convert_object
from tests.support.conversion import CARDS

UUID = "GPU-0f01d861-80c1-5881-8bfc-0ebb3e92ac5e"
RESOURCES = st.sampled_from(
    [
        *words.HAMI_RESOURCES.values(),
        *words.VOLCANO_RESOURCES.values(),
        *words.COUNTED,
        *(words.PRIORITY, "nvidia.com/mig-1g.10gb", "huawei.com/Ascend910B", "cpu"),
    ]
)
AMOUNTS = st.one_of(
    st.sampled_from(["0", "1", "2", "30", "100", "101", "3k", "16Gi", "-1", "0.5", "", "x"]),
    st.integers(0, 2**21),
)
VALUES = st.sampled_from(
    [
        *("true", "false", "", ",", "A100", "a100, H100 PCIe", UUID, f"{UUID},{UUID.lower()}"),
        *("mig", "hami-core", "mps", "binpack", "mutex,numa", "topology-aware", "0.5", "1", "4096"),
        *("c", "d", "0.33333", "team-a"),
    ]
)
KEYS = st.sampled_from(
    sorted(words.TRANSLATED | set(words.KAI_EXTRAS) | {"hami.io/x", "a", "pod-group-name"})
)
CONTAINERS = st.fixed_dictionaries(
    {
        "resources": st.fixed_dictionaries(
            {"limits": st.dictionaries(RESOURCES, AMOUNTS, max_size=3)}
        ),
        "env": st.sampled_from([[], [{"name": words.DISABLE_CONTROL, "value": "true"}]]),
    }
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "metadata",
                    "spec",
                    "template",
                    "tasks",
                    "containers",
                    "resources",
                    "limits",
                    "name",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    """Pods full of foreign words, most of them in sensible places."""
    containers = draw(st.lists(CONTAINERS, min_size=1, max_size=2))
    for name, container in zip("cd", containers, strict=False):
        container["name"] = name
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": draw(st.dictionaries(KEYS, VALUES, max_size=3))},
        "spec": {"containers": containers},
    }


@settings(max_examples=150, deadline=None)
@given(pods(), st.booleans())
def test_a_pod_is_converted_to_something_sound_or_refused(
    pod: dict[str, Any], managed: bool
) -> None:
    """No foreign word is left, names say requests, claims compile, and once is enough."""
    try:
        found = convert_pod(pod, managed=managed)
    except InputError:
        assert needs_of(pod, managed=managed).refusal
        return
    for container in found.pod["spec"]["containers"]:
        if container["name"] in found.asks:
            limits = container["resources"].get("limits") or {}
            assert not any(words.FOREIGN.fullmatch(key) for key in limits)
            assert container["resources"]["claims"] == [{"name": container["name"]}]
    for ask in found.asks.values():
        assert ask == ask_of(name_of(ask))
        check_claim(template_of(ask, cards=CARDS)["spec"]["spec"])
    if found.asks:
        assert set(needs_of(found.pod, managed=managed).asks) == set(found.templates)
    again = convert_pod(found.pod, managed=managed)
    assert (again.pod, again.asks) == (found.pod, {})


def check_claim(spec: dict[str, Any]) -> None:
    """A claim that the API would take, whose selectors compile."""
    claim = ResourceClaimSpec.from_dict(spec)
    (request,) = claim.devices.requests
    ways = [request.exactly] if request.exactly else list(request.first_available)
    assert 1 <= len(ways) <= 8
    for way in ways:
        assert way is not None
        for selector in way.selectors:
            assert selector.cel is not None
            compile_selector(selector.cel.expression)


@settings(max_examples=200, deadline=None)
@given(JUNK, st.sampled_from(["Pod", "Job", "CronJob", "JobSet", "Deployment", "PodGroup"]))
def test_a_file_of_anything_is_passed_or_refused(junk: Any, kind: str) -> None:
    """No shape of an object ends in anything but an answer or a refusal."""
    inside = junk if isinstance(junk, dict) else {"spec": junk}
    for version in ("v1", "batch.volcano.sh/v1alpha1", "scheduling.volcano.sh/v1beta1"):
        raw = {**inside, "apiVersion": version, "kind": kind}
        with contextlib.suppress(InputError):
            convert_object(raw, Settings(cards=CARDS, classes=Classes(), managed=True))
