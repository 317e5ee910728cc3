# SPDX-License-Identifier: Apache-2.0
"""Trouble on request: what the fake server shall do wrong, to whom, and how often.

Tests set it up through `Faults`; the HTTP front asks it before each answer and each watch.
"""

from dataclasses import dataclass

from gpudra.api.errors import (
    ApiError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    TooManyRequestsError,
    UnavailableError,
)

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
_CLASSES: dict[int, type[ApiError]] = {
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: ExpiredError,
    400: InvalidError,
    422: InvalidError,
}


@dataclass(slots=True)
class _Rule:
    kind: str
    verb: str
    resource: str
    times: int | None
    status: int = 0
    reason: str = ""
    message: str = ""
    retry_after: float | None = None
    seconds: float = 0.0
    after_events: int = 0
    half_line: bool = True

    def fits(self, verb: str, resource: str) -> bool:
        return self.verb in ("*", verb) and self.resource in ("*", resource)


@dataclass(frozen=True, slots=True)
class WatchPlan:
    """How one watch shall go wrong.

    Attributes:
        silent: accept, then never send a byte.
        cut_after: reset the connection when this many events have been sent; None = never.
        half_line: before the cut, send the first half of the next event.
        error_after: send an ERROR event after this many events and end; None = never.
        error: what the ERROR event says.
    """

    silent: bool = False
    cut_after: int | None = None
    half_line: bool = False
    error_after: int | None = None
    error: ApiError | None = None


class Faults:
    """The list of troubles. Rules are tried in the order they were set; each is used ``times`` times.

    ``times=None`` means until `clear`. ``resource`` is the plural, ``*`` fits everything.
    """

    def __init__(self) -> None:
        self._rules: list[_Rule] = []
        self._unavailable = False

    def fail(
        self,
        *,
        verb: str = "*",
        resource: str = "*",
        status: int,
        times: int | None = 1,
        reason: str = "",
        retry_after: float | None = None,
        message: str = "",
    ) -> None:
        """Answer with a status code."""
        self._rules.append(
            _Rule("fail", verb, resource, times, status, reason, message, retry_after)
        )

    def delay(
        self, seconds: float, *, verb: str = "*", resource: str = "*", times: int | None = 1
    ) -> None:
        """Wait before the answer, on the server's clock."""
        self._rules.append(_Rule("delay", verb, resource, times, seconds=seconds))

    def cut_stream(
        self,
        *,
        resource: str = "*",
        after_events: int = 0,
        half_line: bool = True,
        times: int | None = 1,
    ) -> None:
        """Reset a watch's connection when the event after ``after_events`` is due."""
        self._rules.append(
            _Rule("cut", "watch", resource, times, after_events=after_events, half_line=half_line)
        )

    def silent_watch(self, *, resource: str = "*", times: int | None = 1) -> None:
        """Accept a watch, then never send a byte and never end it."""
        self._rules.append(_Rule("silent", "watch", resource, times))

    def stream_error(
        self,
        *,
        resource: str = "*",
        after_events: int = 0,
        status: int = 410,
        reason: str = "",
        message: str = "",
        times: int | None = 1,
    ) -> None:
        """End a watch with an ERROR event when ``after_events`` events have been sent."""
        self._rules.append(
            _Rule(
                "error", "watch", resource, times, status, reason, message,
                after_events=after_events,
            )
        )  # fmt: skip

    def unavailable(self, on: bool = True) -> None:
        """Refuse every new request with 503 until switched off; open watches go on."""
        self._unavailable = on

    @property
    def is_unavailable(self) -> bool:
        """Whether everything is refused now."""
        return self._unavailable

    def clear(self) -> None:
        """No trouble any more."""
        self._rules.clear()
        self._unavailable = False

    def failure(self, verb: str, resource: str) -> ApiError | None:
        """The error for a request, if one is due."""
        if self._unavailable:
            return make_error(503, message="the server is switched off")
        rule = self._take("fail", verb, resource)
        if rule is None:
            return None
        return make_error(
            rule.status, reason=rule.reason, message=rule.message, retry_after=rule.retry_after
        )

    def latency(self, verb: str, resource: str) -> float:
        """Seconds to wait before the answer."""
        rule = self._take("delay", verb, resource)
        return rule.seconds if rule is not None else 0.0

    def watch_plan(self, resource: str) -> WatchPlan:
        """How a watch that begins now shall go wrong."""
        if self._take("silent", "watch", resource) is not None:
            return WatchPlan(silent=True)
        if (cut := self._take("cut", "watch", resource)) is not None:
            return WatchPlan(cut_after=cut.after_events, half_line=cut.half_line)
        if (rule := self._take("error", "watch", resource)) is not None:
            error = make_error(rule.status, reason=rule.reason, message=rule.message)
            return WatchPlan(error_after=rule.after_events, error=error)
        return WatchPlan()

    def _take(self, kind: str, verb: str, resource: str) -> _Rule | None:
        for rule in self._rules:
            if rule.kind == kind and rule.fits(verb, resource):
                if rule.times is not None:
                    rule.times -= 1
                    if rule.times <= 0:
                        self._rules.remove(rule)
                return rule
        return None


def make_error(
    status: int, *, reason: str = "", message: str = "", retry_after: float | None = None
) -> ApiError:
    """The error for a status code."""
    reason = reason or _REASONS.get(status, "InternalError")
    message = message or f"injected trouble: {status} {reason}"
    if status == 429:
        return TooManyRequestsError(message, retry_after=retry_after or 0.0)
    return _CLASSES.get(status, UnavailableError)(message, status=status, reason=reason)
