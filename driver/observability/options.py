# SPDX-License-Identifier: Apache-2.0
"""Options that every process has, and the rule that each may come from the environment.

``--log-level`` and ``GPUDRA_LOG_LEVEL`` are the same option; the command line wins. Used by the
options of the agent and of the cluster side, so that both look alike in a chart.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpudra.api.errors import InputError
from gpudra.driver.observability.logging import LEVELS, LogFormat, configure

PREFIX = "GPUDRA_"
_TRUE = frozenset({"1", "true", "yes"})
_FALSE = frozenset({"0", "false", "no", ""})


class EnvironmentParser(argparse.ArgumentParser):
    """An argument parser whose options read their defaults from the environment.

    Each option's help names its variable. A variable that cannot be understood is a usage error,
    like a wrong word on the command line.
    """

    def parse_environment(
        self, argv: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
    ) -> argparse.Namespace:
        """Parse ``argv`` (by default the process's), options not given there from variables."""
        variables = os.environ if environment is None else environment
        for action in self._actions:
            if not action.option_strings or action.default == argparse.SUPPRESS:
                continue
            name = variable_of(action)
            action.help = f"{action.help or ''} [${name}]"
            if name in variables:
                action.default = self._value(action, name, variables[name])
                action.required = False
        return self.parse_args(argv)

    def _value(self, action: argparse.Action, name: str, text: str) -> object:
        if action.nargs == 0:
            if text.lower() not in _TRUE | _FALSE:
                self.error(f"{name}={text!r}: say true or false")
            return text.lower() in _TRUE
        try:
            value = self._get_value(action, text)
            self._check_value(action, value)
        except argparse.ArgumentError as error:
            self.error(f"{name}={text!r}: {error.message}")
        return value


def variable_of(action: argparse.Action) -> str:
    """The environment variable of an option."""
    return PREFIX + action.dest.upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """What every process can be told.

    Attributes:
        log_level: one of ``debug``, ``info``, ``warning``, ``error``.
        log_format: how lines look.
        http_host: where the status server listens; empty for every address.
        http_port: its port.
    """

    log_level: str
    log_format: LogFormat
    http_host: str
    http_port: int

    def configure_logging(self, component: str, node: str = "") -> None:
        """Sets up logging as asked for."""
        configure(level=self.log_level, log_format=self.log_format, component=component, node=node)


def add_process_arguments(parser: argparse.ArgumentParser, *, http_endpoint: str) -> None:
    """``--log-level``, ``--log-format``, ``--http-endpoint``."""
    parser.add_argument(
        "--log-level", choices=LEVELS, default="info", help="least level that is written"
    )
    parser.add_argument(
        "--log-format",
        type=LogFormat,
        choices=list(LogFormat),
        default=LogFormat.JSON,
        help="json for machines, console for people",
    )
    parser.add_argument(
        "--http-endpoint",
        metavar="HOST:PORT",
        default=http_endpoint,
        help="where /healthz, /readyz and /metrics are served",
    )


def process_options(args: argparse.Namespace) -> ProcessOptions:
    """The options that `add_process_arguments` declared.

    Raises:
        InputError: the address is no HOST:PORT.
    """
    host, port = split_address(args.http_endpoint)
    return ProcessOptions(
        log_level=args.log_level,
        log_format=args.log_format,
        http_host=host,
        http_port=port,
    )


def split_address(text: str, field: str = "http-endpoint") -> tuple[str, int]:
    """``host:port``, ``:port`` (every address, host "") or ``[v6]:port``.

    Raises:
        InputError: it is neither.
    """
    host, colon, port = text.rpartition(":")
    number = int(port) if port.isascii() and port.isdecimal() else -1
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not 0 <= number <= 65_535 or (":" in bare and host == bare):
        raise InputError(f"{text!r} is not HOST:PORT", field=field, hint="write for example :8080")
    return bare, number
