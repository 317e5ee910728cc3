# SPDX-License-Identifier: Apache-2.0
"""The admission webhook: refuses claims that a node would refuse, when they are created.

Optional; served by every instance of the cluster side that is given a certificate. The rules are
those of `gpudra validate` (gpudra.controller.configcheck), the answer names the field. An update that
leaves the spec alone is let through: what was accepted before must stay editable (and deletable),
whatever a newer version thinks of it. Specs of claims and templates never change.
"""

import asyncio
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudra.api.errors import InputError
from gpudra.api.yamlfile import Step, field_path
from gpudra.controller.configcheck import CHECKERS, Place, Rules
from gpudra.driver.kube.clock import Clock
from gpudra.driver.observability import metrics as m
from gpudra.driver.observability.logging import KEY_CLAIM, get_logger
from gpudra.driver.observability.metrics import Metrics

if TYPE_CHECKING:
    from aiohttp import web

PATH = "/validate"
KINDS = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass")
_API = "admission.k8s.io/v1"
# The API server sends objects of at most 3 MiB; twice that with the old one.
_MAX_BYTES = 8 * 2**20
# Certificates are renewed by others, long before they end.
_RENEWAL_SECONDS = 30.0
# Several problems in one message, as far as people read.
_MAX_PROBLEMS = 8
log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookOptions:
    """Where and how it is served.

    Attributes:
        host: address to listen on.
        port: 0 = any free one.
        certificate: PEM file with the chain.
        key: PEM file.
    """

    host: str
    port: int
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Sent:
    """An object as the API server sends it: a Source without lines."""

    data: Any

    def error(self, what: str, path: Sequence[Step], hint: str = "") -> InputError:
        """An error about one field."""
        return InputError(what, field=field_path(path), hint=hint)


def review(raw: Any, rules: Rules) -> dict[str, Any]:
    """The answer to an AdmissionReview.

    Args:
        raw: the decoded body.
        rules: for the objects.

    Raises:
        InputError: it is no AdmissionReview of v1.
    """
    request = raw.get("request") if isinstance(raw, Mapping) else None
    if not isinstance(request, Mapping) or raw.get("apiVersion") != _API or not request.get("uid"):
        raise InputError(f"the body is no AdmissionReview of {_API}")
    problems = _problems(request, rules)
    response: dict[str, Any] = {"uid": request["uid"], "allowed": not problems}
    if problems:
        shown = "; ".join(str(one) for one in problems[:_MAX_PROBLEMS])
        more = len(problems) - _MAX_PROBLEMS
        message = f"{shown}; and {more} more" if more > 0 else shown
        response["status"] = {"code": 422, "reason": "Invalid", "message": message}
    return {"apiVersion": _API, "kind": "AdmissionReview", "response": response}


def _problems(request: Mapping[str, Any], rules: Rules) -> list[InputError]:
    """What is wrong with the object; nothing with what is none of our business."""
    found, before = request.get("object"), request.get("oldObject")
    if not isinstance(found, Mapping):
        return []
    if isinstance(before, Mapping) and before.get("spec") == found.get("spec"):
        return []
    kind = str((request.get("kind") or {}).get("kind"))
    checker = CHECKERS.get(kind) if kind in KINDS else None
    return list(checker(Place(Sent(found), (), rules))) if checker else []


class Webhook:
    """The TLS server.

    Args:
        options: where and how.
        rules: for the objects.
        metrics: of the process.
        clock: for looking at the certificate.
    """

    def __init__(
        self, options: WebhookOptions, rules: Rules, *, metrics: Metrics, clock: Clock
    ) -> None:
        self.port = options.port
        self._options = options
        self._rules = rules
        self._metrics = metrics
        self._clock = clock
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._stamp: object = None
        self._problem: str | None = "not listening yet"
        self._runner: web.AppRunner | None = None

    def problem(self) -> str | None:
        """For ``/readyz``: claims cannot be created while nobody answers here."""
        return self._problem

    async def start(self) -> None:
        """Listens.

        Raises:
            InputError: certificate, key or address cannot be used.
        """
        from aiohttp import web  # noqa: PLC0415 - only where it is served

        self._load()
        app = web.Application(client_max_size=_MAX_BYTES)
        app.router.add_post(PATH, self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=5.0)
        await runner.setup()
        host, port = self._options.host, self._options.port
        try:
            await web.TCPSite(runner, host or None, port, ssl_context=self._context).start()
        except OSError as error:
            await runner.cleanup()
            raise InputError(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                field="webhook-endpoint",
                hint="choose another address or end the process that holds it",
            ) from error
        self._runner = runner
        self.port = runner.addresses[0][1]
        self._problem = None
        log.info("webhook", port=self.port, path=PATH)

    async def run(self) -> None:
        """Takes over renewed certificates, until cancelled."""
        while True:
            await self._clock.sleep(_RENEWAL_SECONDS)
            self.renew()

    def renew(self) -> None:
        """Looks at the files; a pair that does not fit (half renewed) is looked at again later."""
        try:
            self._load()
        except InputError as error:
            log.warning("cannot take over the webhook's certificate", error=str(error))

    async def close(self) -> None:
        """Stops listening; harmless when not started."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _load(self) -> None:
        """New connections get the certificate of now.

        Raises:
            InputError: it cannot be used.
        """
        certificate, key = self._options.certificate, self._options.key
        try:
            stamp = [(one.st_ino, one.st_mtime_ns) for one in (certificate.stat(), key.stat())]
            if stamp != self._stamp:
                # A pair that does not fit would leave the context without any.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
                self._context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise InputError(
                f"certificate {certificate} with key {key} cannot be used: {error}",
                field="webhook-cert",
            ) from error
        self._stamp = stamp

    async def _answer(self, request: "web.Request") -> "web.Response":
        from aiohttp import web  # noqa: PLC0415 - loaded since start()

        try:
            raw = json.loads(await request.read())
            # Reading a configuration is work for milliseconds at most, but objects can be large.
            answer = await asyncio.to_thread(review, raw, self._rules)
        except (InputError, ValueError) as error:
            self._metrics.inc(m.ADMISSION_REVIEWS, kind="", outcome="error")
            return web.Response(status=400, text=f"{error}\n")
        self._count(raw["request"], answer["response"])
        return web.json_response(answer)

    def _count(self, request: Mapping[str, Any], response: Mapping[str, Any]) -> None:
        kind = str((request.get("kind") or {}).get("kind"))
        outcome = "allowed" if response["allowed"] else "refused"
        kind = kind if kind in KINDS else "other"
        self._metrics.inc(m.ADMISSION_REVIEWS, kind=kind, outcome=outcome)
        if not response["allowed"]:
            log.info(
                "refused an object",
                kind=kind,
                why=response["status"]["message"],
                **{KEY_CLAIM: f"{request.get('namespace', '')}/{request.get('name', '')}"},
            )
