# SPDX-License-Identifier: Apache-2.0
"""Log lines: levels, keys, errors."""

import logging

import pytest

from gpudra.api.errors import ClaimError, InputError
from gpudra.driver.observability.logging import LogFormat, configure, get_logger
from tests.support.logs import captured_logs

log = get_logger("test")


def test_a_line_is_one_json_object_with_the_fixed_keys() -> None:
    """A line carries time, level, event, logger, component and node, in reading order."""
    with captured_logs(component="agent", node="node-a") as logs:
        log.info("claim prepared", claim="default/a", claim_uid="u1", device="gpu-1")
        (line,) = logs.lines
        assert list(line)[:3] == ["ts", "level", "event"]
        assert line["ts"].endswith("Z")
        assert {
            key: line[key] for key in ("component", "node", "claim", "claim_uid", "device")
        } == {
            "component": "agent",
            "node": "node-a",
            "claim": "default/a",
            "claim_uid": "u1",
            "device": "gpu-1",
        }


def test_lines_below_the_level_are_left_out() -> None:
    """With level warning, info is not written."""
    with captured_logs(level="warning") as logs:
        log.info("quiet")
        log.warning("loud")
        assert [line["event"] for line in logs.lines] == ["loud"]


def test_an_unknown_level_is_refused_with_the_choices() -> None:
    """The message names the levels that exist."""
    with pytest.raises(InputError, match="debug, info, warning, error"):
        configure(level="verbose")


def test_an_error_value_is_spelled_with_its_class() -> None:
    """``error=exc`` becomes the message and the class name."""
    with captured_logs() as logs:
        log.warning("claim refused", error=ClaimError("no such device", obj="claim default/a"))
        line = logs.lines[0]
        assert line["error"] == "claim default/a: no such device"
        assert line["error_type"] == "ClaimError"


def test_an_exception_keeps_its_traceback() -> None:
    """``log.exception`` writes the traceback into the line."""
    with captured_logs() as logs:
        try:
            int("broken")
        except ValueError:
            log.exception("bug")
        assert "ValueError: invalid literal" in logs.lines[0]["exception"]


def test_the_standard_library_speaks_the_same_format() -> None:
    """Warnings of other libraries arrive as JSON with their logger's name, their info does not."""
    with captured_logs() as logs:
        logging.getLogger("aiohttp").warning("connection %s", "lost")
        logging.getLogger("aiohttp").info("chatter")
        (line,) = logs.lines
        assert (line["event"], line["logger"], line["level"]) == (
            "connection lost",
            "aiohttp",
            "warning",
        )


def test_values_that_json_does_not_know_do_not_lose_the_line() -> None:
    """Sets, paths and huge integers end up as text."""
    with captured_logs() as logs:
        log.info("odd", value={1}, number=2**80)
        assert "odd" in logs.text


def test_the_console_format_is_for_people() -> None:
    """Console lines are not JSON and have no colour codes when not written to a terminal."""
    with captured_logs(log_format=LogFormat.CONSOLE) as logs:
        log.info("claim prepared", claim="default/a")
        assert "claim=default/a" in logs.text
        assert "\x1b" not in logs.text
