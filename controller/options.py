# SPDX-License-Identifier: Apache-2.0
"""Flags and environment variables of ``gpudra-controller``."""

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from gpudra.api.errors import InputError
from gpudra.api.names import check_dns_label, check_driver_name
from gpudra.api.objects import MAX_SECONDS, duration
from gpudra.controller.webhook import WebhookOptions
from gpudra.driver.core.managed import PlanOptions
from gpudra.driver.observability.options import (
    EnvironmentParser,
    ProcessOptions,
    add_process_arguments,
    process_options,
    split_address,
)

DEFAULT_DRIVER = "gpu.gpudra.io"
DEFAULT_NAMESPACE = "gpudra-system"
# More pods than a node has devices are no move any more, but an upheaval.
MAX_MOVES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the cluster side runs.

    Attributes:
        driver: name of the DRA driver whose pools are looked after.
        namespace: where the lease lives.
        instance: who this process is; unique in the cluster.
        managed: whether managed mode runs where its kinds are served.
        plan: how managed mode plans.
        half_life: of past use, in seconds; 0: it does not count.
        kubeconfig: file; None inside a cluster.
        conversion: whether pods written for other systems are looked after.
        webhook: how the admission webhook is served; None: it is not.
        version: of gpudra.
        process: logs and status server.
    """

    driver: str
    namespace: str
    instance: str
    managed: bool
    kubeconfig: str | None
    plan: PlanOptions
    half_life: float
    conversion: bool = False
    webhook: WebhookOptions | None = None
    version: str
    process: ProcessOptions


def parser() -> EnvironmentParser:
    """The command line; every option is also a variable."""
    found = EnvironmentParser(
        prog="gpudra-controller",
        description="The cluster side of gpudra: holds what nodes publish against each other.",
    )
    found.add_argument("--version", action="version", version=f"gpudra {version('gpudra')}")
    found.add_argument("--driver-name", default=DEFAULT_DRIVER, help="name of the DRA driver")
    found.add_argument("--namespace", default=DEFAULT_NAMESPACE, help="namespace of the lease")
    found.add_argument(
        "--instance", default="", help="name of this instance (default: host name and a number)"
    )
    found.add_argument(
        "--managed",
        choices=("auto", "off"),
        default="auto",
        help="admit pods to queues and give out the devices of managed nodes: auto: where the "
        "kinds Queue and PodGroup are served (default)",
    )
    _add_managed(found)
    found.add_argument("--kubeconfig", help="kubeconfig file, outside of a cluster")
    found.add_argument(
        "--conversion",
        choices=("on", "off"),
        default="off",
        help="make the claim templates of pods that the conversion policy has taken over",
    )
    found.add_argument(
        "--webhook-endpoint",
        default="0.0.0.0:8443",
        help="HOST:PORT of the admission webhook, path /validate (default 0.0.0.0:8443)",
    )
    found.add_argument(
        "--webhook-cert",
        default="",
        help="PEM file with the webhook's certificate, read again when it changes; empty: no webhook",
    )
    found.add_argument("--webhook-key", default="", help="PEM file with the certificate's key")
    add_process_arguments(found, http_endpoint="127.0.0.1:8081")
    return found


def parse(
    argv: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
) -> Options:
    """Options from the command line, then from ``GPUDRA_…`` variables, then defaults.

    Raises:
        InputError: a value cannot be used.
        SystemExit: ``--help``, ``--version`` or wrong usage.
    """
    args = parser().parse_environment(argv, os.environ if environment is None else environment)
    return Options(
        driver=check_driver_name(args.driver_name, "driver-name"),
        namespace=check_dns_label(args.namespace, "namespace"),
        instance=args.instance or f"{socket.gethostname()}-{secrets.token_hex(4)}",
        managed=args.managed == "auto",
        plan=PlanOptions(
            evictions=args.evictions == "on",
            moves=_number(args.defrag_moves, "--defrag-moves", most=MAX_MOVES),
        ),
        half_life=_duration(args.fairness_half_life, "--fairness-half-life"),
        kubeconfig=args.kubeconfig,
        conversion=args.conversion == "on",
        webhook=_webhook(args.webhook_endpoint, args.webhook_cert, args.webhook_key),
        version=version("gpudra"),
        process=process_options(args),
    )


def _webhook(endpoint: str, certificate: str, key: str) -> WebhookOptions | None:
    """How the webhook is served; None without a certificate.

    Raises:
        InputError: half of what is needed, or no address.
    """
    if not (certificate or key):
        return None
    if not (certificate and key):
        raise InputError("goes with the other one", field="--webhook-cert and --webhook-key")
    host, port = split_address(endpoint, "webhook-endpoint")
    return WebhookOptions(host=host, port=port, certificate=Path(certificate), key=Path(key))


def _add_managed(found: EnvironmentParser) -> None:
    """Options of managed mode."""
    found.add_argument(
        "--evictions",
        choices=("on", "off"),
        default="on",
        help="managed mode: let running pods go where a queue takes back what it lent, or for a more "
        "important job of the same queue (default on)",
    )
    found.add_argument(
        "--defrag-moves",
        default="0",
        metavar="N",
        help="managed mode: pods that may be moved for one waiting job where nothing else makes room "
        "(default 0: none)",
    )
    found.add_argument(
        "--fairness-half-life",
        default="0s",
        metavar="DURATION",
        help="managed mode: what a queue used before counts in the order of queues, half as much after "
        "so long, such as 24h (default 0s: it does not count)",
    )


def _number(text: str, field: str, *, most: int) -> int:
    """A whole number from 0.

    Raises:
        InputError: it is none, or too large.
    """
    if not text.isdecimal() or not text.isascii() or int(text) > most:
        raise InputError(f"{text!r} is no number from 0 to {most}", field=field)
    return int(text)


def _duration(text: str, field: str) -> float:
    """Seconds of a duration, ``24h`` or a plain number.

    Raises:
        InputError: it is none, or longer than a year.
    """
    try:
        found = int(text) if text.isdecimal() and text.isascii() else duration(text)
    except ValueError as error:
        raise InputError(str(error), field=field) from error
    if found > MAX_SECONDS:
        raise InputError(f"{text!r} is longer than {MAX_SECONDS} seconds", field=field)
    return float(found)
