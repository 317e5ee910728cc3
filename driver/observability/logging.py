# SPDX-License-Identifier: Apache-2.0
"""Structured logs: one line per event, one id per operation, the same keys everywhere.

Called by the composition roots (`configure`) and by every module that logs (`get_logger`).

An *operation* is what an operator would want to follow from end to end: one gRPC call of the
kubelet, one round of the slice controller, one reconcile of an object. Its id (8 hex digits, key
``op``) is on every line that is written inside it, also from tasks that it started, and belongs
into messages that leave the process, so that a pod event leads to the log lines.

What the levels mean:

``debug``
    One line for each step. Off in production.
``info``
    Something changed that an operator may want to trace: prepared, unprepared, slices written,
    leader.
``warning``
    Handled, retried or degraded; nobody has to act now. Every retryable error is one, and every
    claim that is refused for what its user wrote.
``error``
    A person has to act: state is damaged, the driver is missing, we have a bug. A problem that
    heals by itself is never an error.
"""

import logging
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, TextIO, cast

import orjson
import structlog
from structlog.contextvars import bound_contextvars, get_contextvars
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from gpudra.api.errors import InputError

Logger = FilteringBoundLogger

# The names of the things that lines speak about. One thing has one name in every line.
KEY_CLAIM = "claim"  # "namespace/name"
KEY_CLAIM_UID = "claim_uid"
KEY_DEVICE = "device"
KEY_ERROR = "error"
KEY_NODE = "node"
KEY_POOL = "pool"
KEY_REQUEST = "request"

KEY_OP = "op"
KEY_OPERATION = "operation"

LEVELS = ("debug", "info", "warning", "error")
# People read a line from the left; programs do not mind the order.
_FIRST_KEYS = ("ts", "level", "event", KEY_OP, KEY_OPERATION)


class LogFormat(StrEnum):
    """How lines look."""

    JSON = "json"
    CONSOLE = "console"


def configure(
    *,
    level: str = "info",
    log_format: LogFormat = LogFormat.JSON,
    component: str = "",
    node: str = "",
    stream: TextIO | None = None,
) -> None:
    """Set up logging of the whole process; a later call replaces an earlier one.

    The standard library's loggers (aiohttp, grpc, kubernetes) end in the same stream and format,
    from ``warning`` on.

    Args:
        level: one of `LEVELS`.
        log_format: JSON for machines, console for people.
        component: on every line, when given.
        node: on every line, when given.
        stream: where lines go; stderr when None.

    Raises:
        InputError: ``level`` is unknown.
    """
    if level not in LEVELS:
        raise InputError(
            f"unknown log level {level!r}",
            field="log-level",
            hint=f"use one of {', '.join(LEVELS)}",
        )
    out = sys.stderr if stream is None else stream
    constants = {key: value for key, value in (("component", component), (KEY_NODE, node)) if value}
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        _Constants(constants),
        _spell_errors,
    ]
    ending = _renderer(log_format, out)
    structlog.configure(
        processors=[*shared, *ending],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=False,  # so that a later configure() reaches existing loggers
    )
    _route_standard_library(shared, ending, out)


def get_logger(name: str) -> Logger:
    """A logger whose lines carry ``logger=name``. Costs nothing until it is used."""
    return cast("Logger", structlog.get_logger(logger_name=name))


@contextmanager
def operation(name: str, *, op_id: str | None = None, **keys: object) -> Iterator[str]:
    """Everything logged inside carries the operation's id, its name and ``keys``.

    A nested operation keeps the id of the outer one: it is a part of the same story.

    Args:
        name: a verb that an operator knows, for example ``prepare``.
        op_id: the id, when it comes from elsewhere; by default the outer one, else a new one.
        keys: added to every line inside, taken back afterwards.

    Yields:
        The id.
    """
    chosen = op_id or current_op_id() or secrets.token_hex(4)
    with bound_contextvars(**{**keys, KEY_OP: chosen, KEY_OPERATION: name}):
        yield chosen


@contextmanager
def bound(**keys: object) -> Iterator[None]:
    """Everything logged inside carries ``keys``: one claim of a batch, one device of a loop."""
    with bound_contextvars(**keys):
        yield


def current_op_id() -> str:
    """Id of the operation that runs here; empty outside of any."""
    return str(get_contextvars().get(KEY_OP, ""))


class _Constants:
    """Adds the keys that do not change while the logger or the process lives."""

    def __init__(self, constants: dict[str, str]) -> None:
        self._constants = constants

    def __call__(self, _logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
        # structlog keeps the word "logger" for itself until here.
        if (name := event_dict.pop("logger_name", None)) is not None:
            event_dict["logger"] = name
        for key, value in self._constants.items():
            event_dict.setdefault(key, value)
        return event_dict


def _spell_errors(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
    """``error=exc`` becomes its text, and its class a key of its own: to be counted by programs."""
    error = event_dict.get(KEY_ERROR)
    if isinstance(error, BaseException):
        event_dict[KEY_ERROR] = str(error) or type(error).__name__
        event_dict["error_type"] = type(error).__name__
    return event_dict


def _in_reading_order(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
    first = {key: event_dict.pop(key) for key in _FIRST_KEYS if key in event_dict}
    return {**first, **event_dict}


def _renderer(log_format: LogFormat, out: TextIO) -> list[Processor]:
    if log_format is LogFormat.CONSOLE:
        return [
            structlog.dev.ConsoleRenderer(
                colors=out.isatty(),
                timestamp_key="ts",
                exception_formatter=structlog.dev.plain_traceback,
            )
        ]
    return [
        structlog.processors.format_exc_info,
        _in_reading_order,
        structlog.processors.JSONRenderer(serializer=_dumps),
    ]


def _dumps(value: object, **_: Any) -> str:
    # orjson refuses integers beyond 64 bits and keys that are not text; a log line is never lost
    # for what somebody put into it.
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        return orjson.dumps({"event": "unprintable log line", "repr": repr(value)}).decode()


def _route_standard_library(shared: list[Processor], ending: list[Processor], out: TextIO) -> None:
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
