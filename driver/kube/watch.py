# SPDX-License-Identifier: Apache-2.0
"""One watch request as an iterator of events: lines to objects, and a deadline of our own.

Used by `KubeClient.watch`. It never reconnects and never invents a version: that is the
reflector's business.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import orjson

from gpudra.driver.kube.clock import Clock, TimerHandle
from gpudra.driver.kube.errors import error_from_status, unavailable
from gpudra.driver.kube.resources import Obj
from gpudra.driver.kube.transport import Call, Transport

# etcd refuses objects above 1.5 MiB; a line far above that is not a watch event.
_MAX_LINE = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event as the server sent it.

    Attributes:
        type: ``ADDED``, ``MODIFIED``, ``DELETED`` or ``BOOKMARK``.
        object: the object; of a bookmark only kind and ``metadata.resourceVersion``.
    """

    type: str
    object: Obj


async def watch_events(
    transport: Transport, call: Call, *, deadline: float
) -> AsyncIterator[WatchEvent]:
    """Events until the server ends the stream normally.

    A line that was cut off is never an event. After ``deadline`` seconds, counted from the request
    and not from the last byte, the stream is given up: a server that is alive has ended it by then.

    Raises:
        ApiError: the request was refused, an ERROR event came, the stream broke off, or the
            deadline passed.
    """
    watchdog = _Watchdog(transport.options.clock, deadline)
    try:
        async with transport.stream(call) as response:
            watchdog.guard(response)
            async for lines in _line_batches(response, watchdog, call, transport):
                for line in lines:
                    yield _decode(line, call, transport)
    finally:
        watchdog.cancel()


async def _line_batches(
    response: aiohttp.ClientResponse, watchdog: "_Watchdog", call: Call, transport: Transport
) -> AsyncIterator[list[bytes]]:
    rest = b""
    server = transport.connection.server
    try:
        async for chunk in response.content.iter_any():
            if b"\n" not in chunk:
                rest += chunk
                if len(rest) > _MAX_LINE:
                    raise unavailable(ValueError("endless line"), obj=call.obj, server=server)
                continue
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            yield lines
    except (aiohttp.ClientError, OSError) as error:
        cause = watchdog.reason() or error
        raise unavailable(cause, obj=call.obj, server=server) from error
    if watchdog.expired:
        raise unavailable(watchdog.reason() or TimeoutError(), obj=call.obj, server=server)


def _decode(line: bytes, call: Call, transport: Transport) -> WatchEvent:
    if not line.strip():
        # Some proxies keep a stream alive with empty lines.
        return WatchEvent("BOOKMARK", {})
    try:
        event = orjson.loads(line)
        kind, obj = event["type"], event["object"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise unavailable(error, obj=call.obj, server=transport.connection.server) from error
    if kind == "ERROR":
        raise error_from_status(
            obj if isinstance(obj, dict) else {"message": str(obj)}, obj=call.obj, verb="watch"
        )
    return WatchEvent(kind, obj)


class _Watchdog:
    """Closes a response when its time is over; the reader then sees the connection end."""

    def __init__(self, clock: Clock, deadline: float) -> None:
        self.expired = False
        self._deadline = deadline
        self._clock = clock
        self._timer: TimerHandle | None = None

    def guard(self, response: aiohttp.ClientResponse) -> None:
        def expire() -> None:
            self.expired = True
            response.close()

        self._timer = self._clock.call_later(self._deadline, expire)

    def reason(self) -> TimeoutError | None:
        if not self.expired:
            return None
        return TimeoutError(f"the watch did not end within {self._deadline:g} s")

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
