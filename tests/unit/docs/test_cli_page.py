# SPDX-License-Identifier: Apache-2.0
"""docs/cli.md says of the JSON what the commands really print."""

import argparse
import contextlib
import io
import json
import re
from typing import Any

from gpudra.controller.ctl import devices
from gpudra.controller.ctl.doctor import cli as doctor
from gpudra.controller.ctl.main import COMMANDS
from tests.support.doctorfacts import healthy
from tools import cli_docs


def documented(command: str) -> set[str]:
    """Paths of keys that the page names: ``items[].pool``."""
    found: set[str] = set()
    for text in cli_docs.SHAPES[command][1]:
        first, *others = text.split(", ")
        found.add(first.removesuffix("[]"))
        prefix = first[: first.rindex("].") + 1] if "]." in first else ""
        found |= {f"{prefix}{other}" if other.startswith(".") else other for other in others}
    return found


def printed(data: dict[str, Any]) -> set[str]:
    """Paths of keys in an answer, two levels deep."""
    found = set()
    for key, value in data.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            found |= {f"{key}[].{inner}" for one in value for inner in one}
        else:
            found.add(key)
    return found


def test_devices() -> None:
    """Every key that is printed is on the page, and no other; taints only where there are some."""
    parser = argparse.ArgumentParser()
    devices.add_arguments(parser)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        devices.run(parser.parse_args(["--hardware", "l4-4x", "-o", "json"]))
    assert printed(json.loads(out.getvalue())) | {"items[].taints"} == documented("devices")


def test_doctor() -> None:
    """Healthy, driver and the findings; each check that exists is named."""
    findings = [one.as_data() for one in doctor.diagnose(healthy())]
    data = {"healthy": True, "driver": "x", "findings": findings}
    assert printed(data) == documented("doctor")
    named = set(re.findall(r"`([a-z-]+)`", cli_docs.SHAPES["doctor"][1]["findings[].check"]))
    assert {str(one["check"]) for one in findings} <= named


def test_every_command_has_a_part() -> None:
    """With its help and its examples."""
    page = cli_docs.page()
    for command in COMMANDS:
        assert f"### {command.name}\n" in page
        assert all(f"gpudra {example}\n" in page for example in command.examples)
