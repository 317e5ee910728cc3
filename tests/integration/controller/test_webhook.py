# SPDX-License-Identifier: Apache-2.0
"""The admission webhook over TLS: served with a certificate, which may be renewed meanwhile."""

import random
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpudra.api.errors import InputError
from gpudra.controller.app import App
from gpudra.controller.configcheck import Rules
from gpudra.controller.options import parse
from gpudra.controller.webhook import PATH, Webhook, WebhookOptions
from gpudra.driver.kube.clock import VirtualClock
from gpudra.driver.kube.fakeserver import FakeApiServer
from gpudra.driver.observability.metrics import Component, Metrics
from tests.support.tls import Certificates, make_certificates
from tests.unit.webhook.test_review import DRIVER, body, made


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    """For 127.0.0.1."""
    return make_certificates(tmp_path)


@pytest.fixture
async def webhook(certificates: Certificates) -> AsyncIterator[Webhook]:
    """Served on any free port."""
    pair = certificates.server
    options = WebhookOptions(host="127.0.0.1", port=0, certificate=pair.certificate, key=pair.key)
    metrics = Metrics(Component.CONTROLLER)
    found = Webhook(options, Rules(driver=DRIVER), metrics=metrics, clock=VirtualClock())
    assert found.problem() == "not listening yet"
    await found.start()
    yield found
    await found.close()


async def post(webhook: Webhook, ca: Path, raw: Any) -> tuple[int, Any]:
    """As the API server calls it."""
    trust = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(ca)))
    async with (
        aiohttp.ClientSession(connector=trust) as session,
        session.post(f"https://127.0.0.1:{webhook.port}{PATH}?timeout=10s", **raw) as response,
    ):
        text = response.content_type != "application/json"
        return response.status, await (response.text() if text else response.json())


async def test_reviews_are_answered_and_counted(
    webhook: Webhook, certificates: Certificates
) -> None:
    """One that is fine, one that is not, and one that is none."""
    good = body("ResourceClaim", made("ResourceClaim", sharing={"isolation": "mps"}))
    bad = body("ResourceClaim", made("ResourceClaim", sharing={"isolation": "hami"}))
    status, found = await post(webhook, certificates.ca, {"json": good})
    assert (status, found["response"]["allowed"]) == (200, True)
    status, found = await post(webhook, certificates.ca, {"json": bad})
    assert (status, found["response"]["allowed"]) == (200, False)
    for raw in ({"data": b"{"}, {"json": {"kind": "Pod"}}):
        status, _ = await post(webhook, certificates.ca, raw)
        assert status == 400
    text = webhook._metrics.render()[0].decode()
    for kind, outcome, count in (
        ("ResourceClaim", "allowed", 1),
        ("ResourceClaim", "refused", 1),
        ("", "error", 2),
    ):
        series = f'gpudra_admission_reviews_total{{kind="{kind}",outcome="{outcome}"}}'
        assert f"{series} {count}.0" in text
    assert webhook.problem() is None


async def test_a_renewed_certificate_is_used_without_a_restart(
    webhook: Webhook, certificates: Certificates, tmp_path: Path
) -> None:
    """New connections get it; a half-renewed pair leaves the old one in force."""
    renewed = make_certificates(_made(tmp_path / "renewed"))
    good = {"json": body("Pod", {})}
    certificates.server.certificate.write_bytes(renewed.server.certificate.read_bytes())
    webhook.renew()
    assert (await post(webhook, certificates.ca, good))[0] == 200
    certificates.server.key.write_bytes(renewed.server.key.read_bytes())
    webhook.renew()
    assert (await post(webhook, renewed.ca, good))[0] == 200
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await post(webhook, certificates.ca, good)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def test_the_controller_serves_it_when_it_has_a_certificate(
    certificates: Certificates,
) -> None:
    """Whoever leads; not ready until it listens."""
    pair = certificates.server
    words = [
        *("--instance", "one", "--http-endpoint", "127.0.0.1:0"),
        *("--webhook-endpoint", "127.0.0.1:0"),
        *("--webhook-cert", str(pair.certificate), "--webhook-key", str(pair.key)),
    ]
    async with FakeApiServer() as server:
        app = App(
            parse(words, {}),
            await server.client(),
            metrics=Metrics(Component.CONTROLLER),
            clock=VirtualClock(),
            rng=random.Random(0),
        )
        assert app.webhook is not None
        async with app._webhook_served():
            status, _ = await post(app.webhook, certificates.ca, {"json": body("Pod", {})})
            assert status == 200
    plain = parse(["--instance", "one"], {})
    assert plain.webhook is None


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--webhook-cert", "a.crt"], "--webhook-cert and --webhook-key"),
        (["--webhook-key", "a.key"], "--webhook-cert and --webhook-key"),
        (
            ["--webhook-cert", "a", "--webhook-key", "b", "--webhook-endpoint", "8443"],
            "webhook-endpoint",
        ),
    ],
)
def test_half_of_the_flags_is_refused(words: list[str], field: str) -> None:
    """Silently serving nothing would look like a webhook that allows everything."""
    with pytest.raises(InputError) as caught:
        parse(words, {})
    assert caught.value.field == field


async def test_files_that_are_no_certificate_are_named(tmp_path: Path) -> None:
    """At start, when somebody looks."""
    options = WebhookOptions(
        host="127.0.0.1", port=0, certificate=tmp_path / "a.crt", key=tmp_path / "a.key"
    )
    metrics = Metrics(Component.CONTROLLER)
    webhook = Webhook(options, Rules(driver=DRIVER), metrics=metrics, clock=VirtualClock())
    with pytest.raises(InputError, match=r"a\.crt"):
        await webhook.start()
    for path in (options.certificate, options.key):
        path.write_text("no")
    with pytest.raises(InputError, match="cannot be used"):
        await webhook.start()
