# SPDX-License-Identifier: Apache-2.0
"""Who we are to the API server: fixed headers, token files that rotate, and external providers.

A service account token changes on disk about every hour; whoever reads it once stops working. The
client asks `Credentials.authorization` for each request and calls `Credentials.renew` upon 401.
Built by `gpudra.driver.kube.kubeconfig`.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gpudra.api.errors import InputError
from gpudra.driver.kube.clock import Clock

# Kubelet rotates a projected token at 80 % of its life (10 minutes at least), so a minute is early
# enough, and it is what the official clients do.
TOKEN_REREAD_SECONDS = 60.0


class Credentials(Protocol):
    """Source of the Authorization header."""

    async def authorization(self) -> str | None:
        """Value of the header; None sends none (client certificates)."""

    async def renew(self) -> bool:
        """After a 401: get new credentials. True when another try may succeed with them."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Everything that is needed to speak to one API server.

    Attributes:
        server: base URL without a trailing slash.
        credentials: source of the Authorization header.
        ssl_context: None for plain HTTP.
        server_name: name to verify in the server's certificate, when it is not the URL's host.
        proxy: URL of an HTTP proxy.
        headers: sent with each request (impersonation).
    """

    server: str
    credentials: Credentials
    ssl_context: ssl.SSLContext | None = None
    server_name: str | None = None
    proxy: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class StaticCredentials:
    """A header that never changes, or none."""

    def __init__(self, header: str | None = None) -> None:
        self._header = header

    async def authorization(self) -> str | None:
        """See `Credentials.authorization`."""
        return self._header

    async def renew(self) -> bool:
        """Nothing can change: a 401 is final."""
        return False


class TokenFile:
    """A bearer token in a file that somebody rotates: read again each minute and upon 401.

    A file that cannot be read for a moment costs nothing as long as there is an older token.
    """

    def __init__(self, path: str | Path, clock: Clock) -> None:
        self._path = Path(path)
        self._clock = clock
        self._token = ""
        self._read_at = 0.0

    async def authorization(self) -> str | None:
        """See `Credentials.authorization`. Raises InputError when no token was ever read."""
        age = self._clock.monotonic() - self._read_at
        if not self._token or age >= TOKEN_REREAD_SECONDS:
            self._read()
        return f"Bearer {self._token}"

    async def renew(self) -> bool:
        """Read the file now; another try makes sense only with another token."""
        before = self._token
        self._read()
        return self._token != before

    def _read(self) -> None:
        try:
            # A few hundred bytes from a memory file system: not worth a thread.
            token = self._path.read_text(encoding="utf-8").strip()
        except OSError as error:
            if self._token:
                return
            raise InputError(
                f"cannot read the token: {error.strerror or error}", file=str(self._path)
            ) from error
        if not token:
            if self._token:
                return
            raise InputError("the token file is empty", file=str(self._path))
        self._token = token
        self._read_at = self._clock.monotonic()


class ProviderCredentials:
    """Tokens from an exec plugin or an auth provider, by way of ``kubernetes.aio``.

    Args:
        loader: a ``KubeConfigLoader`` that has been loaded.
        configuration: the ``Configuration`` that it fills.
        clock: decides when a minute is over.
    """

    def __init__(self, loader: Any, configuration: Any, clock: Clock) -> None:
        self._loader = loader
        self._configuration = configuration
        self._clock = clock
        self._checked_at = clock.monotonic()
        self._lock = asyncio.Lock()

    async def authorization(self) -> str | None:
        """See `Credentials.authorization`. The provider decides whether its token has expired."""
        if self._clock.monotonic() - self._checked_at >= TOKEN_REREAD_SECONDS:
            async with self._lock:
                if self._clock.monotonic() - self._checked_at >= TOKEN_REREAD_SECONDS:
                    await self._load()
        return self._header()

    async def renew(self) -> bool:
        """Ask the provider anew, even if it said that the token was good for longer."""
        async with self._lock:
            before = self._header()
            if hasattr(self._loader, "exec_plugin_expiry"):
                del self._loader.exec_plugin_expiry
            await self._load()
            return self._header() != before

    async def _load(self) -> None:
        try:
            await self._loader.load_and_set(self._configuration)
        # The loader lets everything through that a provider can raise.
        except Exception as error:
            raise InputError(f"cannot get credentials: {error}") from error
        self._checked_at = self._clock.monotonic()

    def _header(self) -> str | None:
        header = self._configuration.api_key.get("BearerToken")
        return str(header) if header else None
