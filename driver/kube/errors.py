# SPDX-License-Identifier: Apache-2.0
"""From what the server or the network said to the error tree of ``gpudra.api.errors``.

The reasons are those of ``metav1.Status``. Called by the client, the watch stream (an ERROR event
carries a Status too) and, the other way round, by the fake server.
"""

import math
from collections.abc import Mapping
from typing import Any

import orjson

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
from gpudra.driver.kube.resources import Obj

# Without a Retry-After the wait is ours to choose; one second is what client-go takes.
DEFAULT_RETRY_AFTER = 1.0
_EXPIRED_REASONS = frozenset({"Expired", "Gone"})
_TOO_LARGE_VERSION = "ResourceVersionTooLarge"


def error_from_status(
    status: Mapping[str, Any],
    *,
    http_status: int = 0,
    obj: str = "",
    verb: str = "",
    retry_after: float | None = None,
) -> ApiError:
    """The error for a ``Status`` object.

    Args:
        status: the Status; may lack any field, and may sit inside another one (``status.status``).
        http_status: code of the HTTP answer, when there was one; the code in the body goes before.
        obj: the object as a person would name it.
        verb: what was tried, for the message of a refusal.
        retry_after: value of the Retry-After header.
    """
    body = _innermost(status)
    code = _as_int(body.get("code")) or http_status
    reason = str(body.get("reason") or "")
    message = str(body.get("message") or reason or f"HTTP {code}")
    if code == 410 or reason in _EXPIRED_REASONS:
        return ExpiredError(message, status=410, reason=reason or "Expired", obj=obj)
    if code == 429:
        wait = _retry_after(body, retry_after)
        return TooManyRequestsError(
            message, retry_after=DEFAULT_RETRY_AFTER if wait is None else wait, obj=obj
        )
    return _by_code(code, reason, message, body, obj=obj, verb=verb)


def _by_code(
    code: int, reason: str, message: str, body: Mapping[str, Any], *, obj: str, verb: str
) -> ApiError:
    if code == 404:
        return NotFoundError(message, status=code, reason=reason or "NotFound", obj=obj)
    if code == 409:
        kind = AlreadyExistsError if reason == "AlreadyExists" else ConflictError
        return kind(message, status=code, reason=reason or "Conflict", obj=obj)
    if code in (401, 403):
        what = "the server does not know who we are" if code == 401 else "the account may not do it"
        return ForbiddenError(
            f"{verb or 'request'} refused, {what}: {message}",
            status=code,
            reason=reason or ("Unauthorized" if code == 401 else "Forbidden"),
            obj=obj,
            hint="check the credentials" if code == 401 else "check the role of the account",
        )
    if code in (400, 422):
        return InvalidError(
            message, status=code, reason=reason or "Invalid", causes=_causes(body), obj=obj
        )
    if code >= 500 or code in (0, 408):
        if is_version_too_large(body):
            reason = _TOO_LARGE_VERSION
        return UnavailableError(message, status=code, reason=reason, obj=obj)
    return ApiError(message, status=code, reason=reason, obj=obj)


def error_from_response(
    http_status: int, body: bytes, headers: Mapping[str, str], *, obj: str = "", verb: str = ""
) -> ApiError:
    """The error for an HTTP answer of 400 and above, whatever its body is (proxies send HTML)."""
    try:
        status = orjson.loads(body)
    except orjson.JSONDecodeError:
        status = None
    if not isinstance(status, dict):
        text = body[:200].decode("utf-8", "replace").strip()
        status = {"message": text or f"HTTP {http_status}"}
    if "code" not in _innermost(status):
        status = {**_innermost(status), "code": http_status}
    return error_from_status(
        status,
        http_status=http_status,
        obj=obj,
        verb=verb,
        retry_after=parse_retry_after(headers.get("Retry-After")),
    )


def unavailable(error: BaseException, *, obj: str, server: str) -> UnavailableError:
    """The error for a request that got no answer."""
    detail = str(error) or type(error).__name__
    return UnavailableError(f"no answer from {server}: {detail}", reason="NoAnswer", obj=obj)


def parse_retry_after(text: str | None) -> float | None:
    """Seconds of a Retry-After header; None when absent or not a number of seconds."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def is_version_too_large(status: Mapping[str, Any]) -> bool:
    """Whether the server says that our version lies in its future (an etcd backup was restored)."""
    return any(reason == _TOO_LARGE_VERSION for reason, _ in _raw_causes(status)) or (
        "Too large resource version" in str(status.get("message") or "")
    )


def error_to_status(error: ApiError) -> Obj:
    """The ``Status`` object for an error: the other direction, for the fake server."""
    status: Obj = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.what,
        "reason": error.reason,
        "code": error.status,
    }
    details: Obj = {}
    if isinstance(error, InvalidError) and error.causes:
        details["causes"] = [
            {"reason": "FieldValueInvalid", "field": field, "message": message}
            for field, message in error.causes
        ]
    if isinstance(error, TooManyRequestsError):
        details["retryAfterSeconds"] = math.ceil(error.retry_after)
    if details:
        status["details"] = details
    return status


def _innermost(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Some proxies and watch errors wrap the Status: ``{"status": {"code": 410}}`` or ``{"object": …}``."""
    for wrapper in ("status", "object", "Status"):
        inner = status.get(wrapper)
        if isinstance(inner, Mapping) and ("code" in inner or "reason" in inner):
            return inner
    return status


def _raw_causes(status: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, Mapping) else None
    if not isinstance(causes, list):
        return []
    return [(str(c.get("reason") or ""), c) for c in causes if isinstance(c, Mapping)]


def _causes(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (str(cause.get("field") or ""), str(cause.get("message") or reason))
        for reason, cause in _raw_causes(status)
    ]


def _retry_after(status: Mapping[str, Any], header: float | None) -> float | None:
    if header is not None:
        return header
    details = status.get("details")
    seconds = details.get("retryAfterSeconds") if isinstance(details, Mapping) else None
    return float(seconds) if isinstance(seconds, int) and seconds > 0 else None


def _as_int(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
