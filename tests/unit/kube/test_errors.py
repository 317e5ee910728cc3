# SPDX-License-Identifier: Apache-2.0
"""From answers of the server to the error tree, and back."""

import orjson
import pytest

from gpudra.api.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    TooManyRequestsError,
    UnavailableError,
)
from gpudra.driver.kube.errors import (
    error_from_response,
    error_from_status,
    error_to_status,
    parse_retry_after,
)


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", InvalidError),
        (401, "Unauthorized", ForbiddenError),
        (403, "Forbidden", ForbiddenError),
        (404, "NotFound", NotFoundError),
        (405, "MethodNotAllowed", ApiError),
        (408, "Timeout", UnavailableError),
        (409, "Conflict", ConflictError),
        (409, "AlreadyExists", AlreadyExistsError),
        (410, "Gone", ExpiredError),
        (200, "Expired", ExpiredError),
        (422, "Invalid", InvalidError),
        (429, "TooManyRequests", TooManyRequestsError),
        (500, "InternalError", UnavailableError),
        (503, "ServiceUnavailable", UnavailableError),
    ],
)
def test_each_answer_has_its_class(code: int, reason: str, expected: type[ApiError]) -> None:
    """Code and reason decide the class; the object is named."""
    error = error_from_status({"code": code, "reason": reason, "message": "m"}, obj="pod a/b")
    assert type(error) is expected
    assert str(error).startswith("pod a/b: ")


def test_a_refusal_names_verb_and_object() -> None:
    """403 says what was tried on what."""
    error = error_from_status(
        {"code": 403, "message": "no"}, obj="resourceclaim default/a", verb="patch status"
    )
    assert "resourceclaim default/a: patch status refused" in str(error)
    assert not error.retryable


def test_an_invalid_object_names_its_fields() -> None:
    """422 carries the causes as pairs of field and message."""
    status = {
        "code": 422,
        "message": "invalid",
        "details": {"causes": [{"field": "spec.devices", "message": "Too many", "reason": "X"}]},
    }
    error = error_from_status(status)
    assert isinstance(error, InvalidError)
    assert error.causes == (("spec.devices", "Too many"),)


def test_a_body_that_is_no_status_is_quoted() -> None:
    """A proxy's page becomes a readable message."""
    error = error_from_response(502, b"<html>bad gateway</html>", {}, obj="pods", verb="list")
    assert isinstance(error, UnavailableError)
    assert "bad gateway" in str(error)
    assert error.status == 502


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"\xff", b'{"kind":"Status"}'])
def test_any_body_gives_an_error_with_the_code(body: bytes) -> None:
    """However poor the body, the HTTP code counts."""
    assert isinstance(error_from_response(404, body, {}), NotFoundError)


def test_the_wait_comes_from_header_details_or_default() -> None:
    """Retry-After goes before retryAfterSeconds, and without either it is a second."""
    header = error_from_response(429, b"{}", {"Retry-After": "7"})
    details = error_from_response(429, b'{"code":429,"details":{"retryAfterSeconds":3}}', {})
    neither = error_from_response(429, b"", {})
    waits = [
        e.retry_after for e in (header, details, neither) if isinstance(e, TooManyRequestsError)
    ]
    assert waits == [7.0, 3.0, 1.0]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2", 2.0), ("0.5", 0.5), ("-1", None), ("nan", None), ("inf", None), ("soon", None)],
)
def test_retry_after(text: str, seconds: float | None) -> None:
    """Only a sensible number of seconds is a wait."""
    assert parse_retry_after(text) == seconds


def test_a_version_from_the_future_is_recognised() -> None:
    """A server restored from a backup is told from one that is slow."""
    status = {
        "code": 504,
        "reason": "Timeout",
        "message": "Too large resource version: 900, current: 5",
        "details": {"causes": [{"reason": "ResourceVersionTooLarge", "message": "x"}]},
    }
    assert error_from_status(status).reason == "ResourceVersionTooLarge"


@pytest.mark.parametrize(
    "error",
    [
        InvalidError("bad", causes=[("spec.a", "must not")]),
        TooManyRequestsError("slow", retry_after=4.0),
        ExpiredError("old", status=410, reason="Expired"),
        AlreadyExistsError("there", status=409, reason="AlreadyExists"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_the_wire(error: ApiError) -> None:
    """What the fake server raises is what the client raises."""
    body = orjson.dumps(error_to_status(error))
    again = error_from_response(error.status, body, {})
    assert type(again) is type(error)
    assert vars(again) == vars(error)
