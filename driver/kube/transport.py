# SPDX-License-Identifier: Apache-2.0
"""HTTP to one API server: authentication, throttling, time-outs; bodies stay bytes.

Below `KubeClient`; nothing else uses it. What is retried here is only what certainly did not
happen (401 with fresher credentials, 429) or may happen twice (a GET on a stale connection).
"""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from gpudra.api.errors import ApiError, InputError, TooManyRequestsError, UnavailableError
from gpudra.driver.kube.auth import Connection
from gpudra.driver.kube.clock import Clock, SystemClock
from gpudra.driver.kube.errors import error_from_response, unavailable

_JSON = "application/json"
# A dead peer is noticed by the kernel after 30 + 3 * 10 s, long before a watch's own deadline.
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a client behaves; all times in seconds.

    Attributes:
        user_agent: tells an administrator who is asking.
        timeout: for a whole plain request, its body included.
        connect_timeout: until the connection stands.
        watch_grace: how long past the server's own time-out a watch may last.
        throttle_retries: how often a 429 is tried again before it is the caller's.
        throttle_budget: longest Retry-After that the client itself waits for.
        clock: for waits and deadlines.
        rng: for jitter.
        on_request: told of every plain request that ended; watches are none.
    """

    user_agent: str = "gpudra"
    timeout: float = 30.0
    connect_timeout: float = 10.0
    watch_grace: float = 15.0
    throttle_retries: int = 4
    throttle_budget: float = 30.0
    clock: Clock = field(default_factory=SystemClock)
    rng: random.Random = field(default_factory=random.Random)
    on_request: "Callable[[Request], None] | None" = None


@dataclass(frozen=True, slots=True)
class Request:
    """A request that ended, for whoever counts them.

    Attributes:
        verb: as in RBAC, without a subresource.
        resource: plural; empty for what is no resource (``/version``).
        code: ``2xx``, the HTTP status of a failure, or ``0`` when no answer came.
        seconds: until the answer was complete, waits and repetitions included.
    """

    verb: str
    resource: str
    code: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    Attributes:
        method: HTTP method.
        path: from the server's root.
        obj: the object as a person would name it, for errors.
        verb: as in RBAC, for errors.
        params: query.
        body: encoded; None for none.
        content_type: of the body.
        throttled: whether a 429 may be waited out here.
    """

    method: str
    path: str
    obj: str
    verb: str
    params: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = _JSON
    throttled: bool = True

    @property
    def plural(self) -> str:
        """The resource in the path; empty when there is none."""
        parts = self.path.strip("/").split("/")
        rest = parts[{"api": 2, "apis": 3}.get(parts[0], len(parts)) :]
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            rest = rest[2:]
        return rest[0] if rest else ""


# A new TLS connection costs several milliseconds in the middle of a Prepare; the API server closes
# idle ones after 90 s (k8s.io/apiserver, secure_serving.go).
KEEPALIVE = 80.0


class Transport:
    """Connections to one server. Must be made and closed inside the running loop."""

    def __init__(self, connection: Connection, options: ClientOptions) -> None:
        self.connection = connection
        self.options = options
        ssl_context = connection.ssl_context
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                ssl=ssl_context if ssl_context is not None else True,
                keepalive_timeout=KEEPALIVE,
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=options.connect_timeout),
            auto_decompress=True,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": options.user_agent, "Accept": _JSON},
        )

    async def close(self) -> None:
        """Close all connections; watches end."""
        await self._session.close()

    async def request(self, call: Call) -> bytes:
        """Body of a successful answer. Raises `ApiError`."""
        tell = self.options.on_request
        if tell is None:
            return await self._request(call)
        started, code = self.options.clock.monotonic(), "0"
        try:
            body = await self._request(call)
            code = "2xx"
        except ApiError as error:
            code = str(error.status)
            raise
        finally:
            seconds = self.options.clock.monotonic() - started
            tell(Request(call.verb.partition(" ")[0], call.plural, code, seconds))
        return body

    async def _request(self, call: Call) -> bytes:
        renewed = False
        throttles = 0
        while True:
            try:
                return await self._once(call)
            except TooManyRequestsError as error:
                throttles += 1
                await self._wait_or_raise(call, error, throttles)
            except ApiError as error:
                if error.status != 401 or renewed:
                    raise
                renewed = True
                if not await self._renewed():
                    raise

    async def json(self, call: Call) -> Any:
        """Decoded body of a successful answer. Raises `ApiError`, also for a body that is no JSON."""
        body = await self.request(call)
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise unavailable(error, obj=call.obj, server=self.connection.server) from error

    @contextlib.asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer whose body is read piece by piece; 401 is tried once more like elsewhere.

        Raises:
            ApiError: the answer is not a success. Errors while reading are the reader's.
        """
        response = await self._open_stream(call)
        try:
            yield response
        finally:
            response.close()

    async def _open_stream(self, call: Call) -> aiohttp.ClientResponse:
        for last in (False, True):
            response = await self._send(call)
            if response.status < 300:
                _keep_alive(response)
                return response
            error = await self._error(call, response)
            if error.status != 401 or last or not await self._renewed():
                raise error
        raise AssertionError("unreachable: the second try returns or raises")

    async def _once(self, call: Call) -> bytes:
        try:
            async with asyncio.timeout(self.options.timeout):
                response = await self._send(call)
                if response.status >= 300:
                    raise await self._error(call, response)
                async with response:
                    return await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unavailable(error, obj=call.obj, server=self.connection.server) from error

    async def _send(self, call: Call) -> aiohttp.ClientResponse:
        for last in (False, True):
            try:
                return await self._session.request(
                    call.method,
                    self.connection.server + call.path,
                    params=dict(call.params),
                    data=call.body,
                    headers=await self._headers(call),
                    proxy=self.connection.proxy,
                    server_hostname=self.connection.server_name,
                    # API servers do not redirect; whoever does shall not get our credentials.
                    allow_redirects=False,
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                # An idle connection that the server closed meanwhile; a GET may be sent again.
                if last or call.method != "GET":
                    raise unavailable(error, obj=call.obj, server=self.connection.server) from error
            except (aiohttp.ClientError, OSError) as error:
                raise unavailable(error, obj=call.obj, server=self.connection.server) from error
        raise AssertionError("unreachable: the second try returns or raises")

    async def _renewed(self) -> bool:
        """Whether there are other credentials than those that were refused."""
        try:
            return await self.connection.credentials.renew()
        except InputError:
            return False  # the refusal says more than why there are no new ones

    async def _headers(self, call: Call) -> dict[str, str]:
        headers = dict(self.connection.headers)
        try:
            authorization = await self.connection.credentials.authorization()
        except InputError as error:
            # The file may appear, the provider may recover: worth trying again.
            raise UnavailableError(
                f"no credentials: {error}", reason="NoCredentials", obj=call.obj
            ) from error
        if authorization:
            headers["Authorization"] = authorization
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        return headers

    async def _error(self, call: Call, response: aiohttp.ClientResponse) -> ApiError:
        async with response:
            try:
                body = await response.read()
            except aiohttp.ClientError:
                body = b""  # the status line alone says enough
        return error_from_response(
            response.status, body, response.headers, obj=call.obj, verb=call.verb
        )

    async def _wait_or_raise(self, call: Call, error: TooManyRequestsError, count: int) -> None:
        options = self.options
        too_often = count > options.throttle_retries
        if not call.throttled or too_often or error.retry_after > options.throttle_budget:
            raise error
        # Up to a tenth on top, so that those who were refused together do not return together.
        await options.clock.sleep(error.retry_after * (1.0 + 0.1 * options.rng.random()))


def _keep_alive(response: aiohttp.ClientResponse) -> None:
    connection = response.connection
    transport = connection.transport if connection is not None else None
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None:
        return
    with contextlib.suppress(OSError):  # a socket of a kind without keep-alive
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds in _KEEPALIVE:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
