# SPDX-License-Identifier: Apache-2.0
"""The small HTTP server of a process: ``/healthz``, ``/readyz``, ``/metrics``.

Started by the composition roots of the agent and the cluster side. ``/healthz`` fails only for
what a restart cures, because the kubelet restarts the container; ``/readyz`` fails as long as the
process cannot do its work. Both list every check by name, in the form that Kubernetes' own
components use. The web framework is imported when the server starts: the commands that never
start one do not pay for it.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from gpudra.api.errors import InputError
from gpudra.driver.observability.logging import KEY_ERROR, get_logger
from gpudra.driver.observability.metrics import Metrics

if TYPE_CHECKING:
    from aiohttp import web

# None: fine. Text: why not. Quick, without I/O: the kubelet waits one second.
Check = Callable[[], str | None]

# Answers a request of a path that another part of the process serves.
Handler: TypeAlias = "Callable[[web.Request], Awaitable[web.StreamResponse]]"

# Scrapers and probes hold connections open; they get this long to finish (seconds).
SHUTDOWN_SECONDS = 1.0

log = get_logger(__name__)


class StatusServer:
    """Serves checks and metrics.

    Args:
        metrics: what ``/metrics`` shows.
        host: address to listen on, empty for every one; loopback unless a probe comes from
            elsewhere.
        port: TCP port; 0 takes any free one, see `port` after `start`.
    """

    def __init__(self, metrics: Metrics, *, host: str = "127.0.0.1", port: int = 8080) -> None:
        self.port = port
        self._host = host
        self._metrics = metrics
        self._live: dict[str, Check] = {}
        self._ready: dict[str, Check] = {}
        self._routes: list[tuple[str, str, Handler]] = []
        self._runner: web.AppRunner | None = None

    def add_live(self, name: str, check: Check) -> None:
        """A check of ``/healthz`` (and of ``/readyz``): fails only for what a restart cures."""
        self._live[name] = check

    def add_ready(self, name: str, check: Check) -> None:
        """A check of ``/readyz`` alone."""
        self._ready[name] = check

    def add_route(self, method: str, path: str, handler: Handler) -> None:
        """Serve one more path; before `start`."""
        self._routes.append((method, path, handler))

    async def start(self) -> None:
        """Listen.

        Raises:
            InputError: the address cannot be used.
        """
        from aiohttp import web  # noqa: PLC0415 - see the module docstring

        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._scrape)
        for method, path, handler in self._routes:
            app.router.add_route(method, path, handler)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host or None, self.port).start()
        except OSError as error:
            await runner.cleanup()
            raise InputError(
                f"cannot listen on {self._host}:{self.port}: {error.strerror or error}",
                field="http-endpoint",
                hint="choose another address or end the process that holds it",
            ) from error
        self._runner = runner
        self.port = runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening; harmless when not started."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _healthz(self, _request: "web.Request") -> "web.Response":
        return _report(self._live)

    async def _readyz(self, _request: "web.Request") -> "web.Response":
        return _report({**self._live, **self._ready})

    async def _scrape(self, _request: "web.Request") -> "web.Response":
        from aiohttp import web  # noqa: PLC0415 - loaded since start()

        body, content_type = self._metrics.render()
        return web.Response(body=body, headers={"Content-Type": content_type})


def evaluate(checks: dict[str, Check]) -> tuple[bool, str]:
    """Whether all hold, and the text that says so, one line a check in the order of adding."""
    lines: list[str] = []
    fine = True
    for name, check in checks.items():
        reason = _outcome(name, check)
        fine = fine and reason is None
        lines.append(f"[+]{name} ok" if reason is None else f"[-]{name} failed: {reason}")
    lines.append("ok" if fine else "failed")
    return fine, "\n".join(lines) + "\n"


def _outcome(name: str, check: Check) -> str | None:
    try:
        return check()
    except Exception as error:
        log.exception("health check raised", check=name, **{KEY_ERROR: error})
        return f"check raised {type(error).__name__}: {error}"


def _report(checks: dict[str, Check]) -> "web.Response":
    from aiohttp import web  # noqa: PLC0415 - loaded since start()

    fine, text = evaluate(checks)
    headers = {"Cache-Control": "no-store"}
    return web.Response(text=text, status=200 if fine else 503, headers=headers)
