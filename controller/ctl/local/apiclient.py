# SPDX-License-Identifier: Apache-2.0
"""A small blocking HTTP client for the local cluster: health checks and a few API calls.

The cluster is set up with a handful of requests from one thread, long before anything of ours
runs in it; the asynchronous client of the driver would be more machinery than the task.
"""

import contextlib
import http.client
import json
import ssl
import urllib.parse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpudra.api.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)

SERVER_SIDE_APPLY = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"
FIELD_MANAGER = "gpudra-local"

_ERROR_BY_STATUS: dict[int, type[ApiError]] = {
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    400: InvalidError,
    422: InvalidError,
}


def is_healthy(url: str, timeout: float = 2.0) -> bool:
    """Whether a GET of ``url`` on this machine answers 200.

    Certificates are not checked: the components make their own for these ports, and nothing is
    sent or believed beyond "it answers".
    """
    parts = urllib.parse.urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", parts.path or "/")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class ApiClient:
    """Requests to the API server of the cluster.

    Args:
        server: ``https://127.0.0.1:PORT``.
        ca_file: the cluster's own authority.
        cert_file: client certificate, with ``key_file``; or give ``token``.
    """

    server: str
    ca_file: Path
    cert_file: Path | None = None
    key_file: Path | None = None
    token: str = ""

    def _connection(self, timeout: float) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.ca_file))
        if self.cert_file and self.key_file:
            context.load_cert_chain(self.cert_file, self.key_file)
        parts = urllib.parse.urlsplit(self.server)
        return http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=timeout, context=context
        )

    def _send(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        body: Any,
        content_type: str = "application/json",
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(
                f"{method} {path} got no answer ({error})",
                obj=self.server,
                hint="`gpudra local status` tells what is running",
            ) from error

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        timeout: float = 30,
    ) -> dict[str, Any]:
        """One call; ``path`` begins with ``/api`` or ``/apis``.

        Raises:
            ApiError: of the class that fits the status, with the server's message.
        """
        with contextlib.closing(self._connection(timeout)) as connection:
            response = self._send(connection, method, path, body, content_type)
            return _answer(response, f"{method} {path}")

    def create_all(self, path: str, bodies: Iterable[dict[str, Any]]) -> Iterator[None]:
        """Create objects over one connection, yielding after each; existing ones are left alone.

        Raises:
            ApiError: as `request`.
        """
        with contextlib.closing(self._connection(30)) as connection:
            for body in bodies:
                with contextlib.suppress(AlreadyExistsError):
                    _answer(self._send(connection, "POST", path, body), f"POST {path}")
                yield

    def apply(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Server-side apply of one object, taking over fields that others own."""
        return self.request(
            "PATCH",
            f"{path}?fieldManager={FIELD_MANAGER}&force=true",
            body,
            content_type=SERVER_SIDE_APPLY,
        )

    def watch(
        self, path: str, *, resource_version: str, timeout: float
    ) -> Iterator[dict[str, Any]]:
        """Events of a list ``path`` after ``resource_version``, until ``timeout`` seconds passed.

        The server ends the watch in time, so the iterator ends by itself.
        """
        joiner = "&" if "?" in path else "?"
        seconds = max(1, int(timeout))
        query = f"{path}{joiner}watch=1&resourceVersion={resource_version}&timeoutSeconds={seconds}"
        with contextlib.closing(self._connection(timeout + 5)) as connection:
            response = self._send(connection, "GET", query, None)
            if response.status >= http.client.BAD_REQUEST:
                raise _error(response.status, response.read(), f"watch {path}")
            with response, contextlib.suppress(TimeoutError):
                for line in response:
                    yield json.loads(line)


def _answer(response: http.client.HTTPResponse, what: str) -> dict[str, Any]:
    """The object in a whole response, read to its end so that the connection can go on.

    Raises:
        ApiError: the status is not one of success.
    """
    payload = response.read()
    if response.status >= http.client.BAD_REQUEST:
        raise _error(response.status, payload, what)
    answer: dict[str, Any] = json.loads(payload) if payload else {}
    return answer


def _error(status: int, payload: bytes, what: str) -> ApiError:
    """The error for an answer, in the server's own words."""
    try:
        details = json.loads(payload)
        message, reason = str(details["message"]), str(details.get("reason", ""))
    except (ValueError, KeyError, TypeError):
        message, reason = payload.decode(errors="replace").strip(), ""
    kind = _ERROR_BY_STATUS.get(status, UnavailableError if status >= 500 else ApiError)
    if reason == "AlreadyExists":
        kind = AlreadyExistsError
    return kind(f"{what} was answered {status}: {message}", status=status, reason=reason)
