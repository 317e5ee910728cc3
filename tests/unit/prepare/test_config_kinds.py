# SPDX-License-Identifier: Apache-2.0
"""Opaque configuration: strict for what users send, lenient for what is stored."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudra.api.config.v1alpha1 import (
    API_VERSION,
    KINDS,
    GpuConfig,
    Isolation,
    ShareConfig,
    TimeSliceLength,
    decode_stored,
    decode_user,
)
from gpudra.api.errors import InputError


def raw(kind: str, **fields: Any) -> dict[str, Any]:
    """Parameters of a kind."""
    return {"apiVersion": API_VERSION, "kind": kind, **fields}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_may_be_empty(kind: str) -> None:
    """Defaults decide, and nothing is dereferenced that is not there."""
    found = decode_user(raw(kind))
    assert found.kind == kind
    assert found.sharing.isolation is None
    assert decode_user(raw(kind, sharing={})) == found


def test_values_are_read_by_their_names_in_json() -> None:
    """CamelCase outside, enumerations inside."""
    sharing = {"isolation": "time-slice", "timeSlice": "long"}
    found = decode_user(raw("GpuConfig", sharing=sharing))
    assert isinstance(found, GpuConfig)
    assert found.sharing.isolation is Isolation.TIME_SLICE
    assert found.sharing.time_slice is TimeSliceLength.LONG
    share = decode_user(raw("ShareConfig", sharing={"isolation": "hami-core"}))
    assert isinstance(share, ShareConfig)


@pytest.mark.parametrize(
    ("parameters", "field", "message"),
    [
        (None, "parameters", "is not an object"),
        ([], "parameters", "is not an object"),
        ({}, "apiVersion", "None is not known here"),
        ({"apiVersion": "gpudra.io/v9", "kind": "GpuConfig"}, "apiVersion", "gpudra.io/v9"),
        ({"apiVersion": API_VERSION, "kind": ["x"]}, "kind", "is not known here"),
        (raw("GpuConfig", sharing=None), "sharing", "is null"),
        (raw("GpuConfig", sharing=[]), "sharing", "valid dictionary"),
        (
            raw("GpuConfig", sharing={"isolation": "hami-core"}),
            "sharing.isolation",
            "Input should be",
        ),
        (
            raw("MigConfig", sharing={"isolation": "time-slice"}),
            "sharing.isolation",
            "Input should be",
        ),
        (
            raw("GpuConfig", sharing={"time_slice": "long"}),
            "sharing.time_slice",
            "not a known field",
        ),
        (
            raw("GpuConfig", sharing={"timeSlice": "long"}),
            "sharing.timeSlice",
            "only with isolation",
        ),
    ],
)
def test_mistakes_are_named_by_field(parameters: Any, field: str, message: str) -> None:
    """Also for values of the wrong type."""
    with pytest.raises(InputError) as caught:
        decode_user(parameters)
    assert caught.value.field == field
    assert message in str(caught.value)


def test_all_mistakes_are_named_at_once() -> None:
    """A user repairs a file in one go."""
    with pytest.raises(InputError) as caught:
        decode_user(raw("GpuConfig", colour=1, sharing={"isolation": "x", "size": 2}))
    assert all(
        word in str(caught.value) for word in ("colour", "sharing.isolation", "sharing.size")
    )


def test_stored_parameters_keep_what_is_understood() -> None:
    """Fields of a newer version are dropped at every depth; values are still checked."""
    newer = raw("GpuConfig", colour=1, sharing={"isolation": "none", "size": {"a": 1}})
    found = decode_stored(newer)
    assert found.sharing.isolation is Isolation.NONE
    with pytest.raises(InputError):
        decode_stored(raw("GpuConfig", sharing={"isolation": "from-the-future"}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["apiVersion", "kind", "sharing", "isolation", "x"]), inner
        )
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(JSON, st.sampled_from(sorted(KINDS)))
def test_no_input_gives_anything_but_a_config_or_an_input_error(body: Any, kind: str) -> None:
    """Parameters are whatever somebody wrote into a claim."""
    for parameters in (body, raw(kind, sharing=body)):
        for decode in (decode_user, decode_stored):
            try:
                decode(parameters)
            except InputError:
                continue
