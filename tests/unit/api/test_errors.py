# SPDX-License-Identifier: Apache-2.0
"""Errors: what happened, to which object, what to do."""

from gpudra.api.errors import (
    ApiError,
    ClaimError,
    ConflictError,
    DeviceInUseError,
    InputError,
    TooManyRequestsError,
    UnavailableError,
)


def test_an_error_reads_as_object_what_and_advice() -> None:
    """The text of an error names the object, what happened and what to do."""
    error = ClaimError("is not allocated", obj="claim default/a", hint="wait for the scheduler")
    assert str(error) == "claim default/a: is not allocated; wait for the scheduler"


def test_input_errors_gather_their_place_from_inside_out() -> None:
    """Each layer adds its part of the path, the file and the line."""
    inner = InputError("is negative", field="[2].size", hint="write 1 or more")
    outer = inner.within("placements", obj="Hardware lab", file="lab.yaml")
    assert str(outer) == "lab.yaml: Hardware lab: placements[2].size: is negative; write 1 or more"
    assert str(InputError("bad", file="f", line=3)) == "f:3: bad"


def test_retrying_is_a_property_of_the_class() -> None:
    """Only errors that may go away by themselves say that a retry is worth it."""
    assert DeviceInUseError.retryable
    assert UnavailableError.retryable
    assert not ConflictError.retryable
    assert not ApiError.retryable
    assert TooManyRequestsError("slow down", retry_after=2).retry_after == 2
