# SPDX-License-Identifier: Apache-2.0
"""Runs the allocation cases of tests/fixtures/cases through the command that people use.

A case asks questions in order; each allocates the claims it names together on one node, and may
commit the result for the next question.
"""

import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpudra.api.quantity import Quantity
from gpudra.controller.ctl.main import main

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "cases"
_LAST_ALLOCATION_CASE = 27


def allocation_cases() -> list[Path]:
    """The folders whose number is 27 or lower."""
    found = [path for path in sorted(FOLDER.iterdir()) if path.name[:2].isdigit()]
    return [path for path in found if int(path.name[:2]) <= _LAST_ALLOCATION_CASE]


@dataclass(frozen=True)
class Asked:
    """One question and its answer.

    Attributes:
        question: as in expected.json.
        answer: the JSON that the command printed.
        code: its exit code.
    """

    question: dict[str, Any]
    answer: dict[str, Any]
    code: int


def run_case(folder: Path, scratch: Path, *, reverse: bool = False) -> Iterator[Asked]:
    """Asks the questions of a case in order."""
    objects = folder / "objects.yaml"
    if reverse:
        objects = _reversed(objects, scratch / "reversed.yaml")
    expected = json.loads((folder / "expected.json").read_text())
    for number, question in enumerate(expected["verify"]):
        out = scratch / f"committed-{number}.yaml"
        words = ["allocate", "-f", str(objects), "--node", question["node"], "-o", "json"]
        for claim in question["claims"]:
            words += ["--claim", claim]
        for rule in question.get("rules", ()):
            words += ["--taint-rule", rule]
        if question.get("commit"):
            words += ["--commit", str(out)]
        if "max_seconds" in question:
            # The command answers "timeout" when it needs longer, so the outcome tells.
            words += ["--timeout", str(question["max_seconds"])]
        code, printed = run_command(words)
        yield Asked(question, json.loads(printed), code)
        if question.get("commit"):
            objects = out


def run_command(words: list[str]) -> tuple[int, str]:
    """Runs ``gpudra``; exit code and standard output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = main(words)
    return code, out.getvalue()


def _reversed(objects: Path, out: Path) -> Path:
    documents = list(yaml.safe_load_all(objects.read_text()))
    out.write_text(yaml.safe_dump_all(reversed(documents)))
    return out


def accepted(asked: Asked) -> bool:
    """Whether the answer is one of the valid ones, order left aside."""
    question = asked.question
    given = sorted(_key(result) for result in asked.answer["results"])
    for answer in question["accept"]:
        wanted = [_wanted(entry, question["node"]) for entry in answer]
        if sorted(key for key, _ in wanted) == given and all(
            _consumes(asked.answer["results"], key, consumed)
            for key, consumed in wanted
            if consumed
        ):
            return True
    return False


Key = tuple[str, str, str, str, str, bool]


def _key(result: dict[str, Any]) -> Key:
    return (
        result["claim"], result["request"], result["driver"], result["pool"], result["device"],
        result["adminAccess"],
    )  # fmt: skip


def _wanted(entry: dict[str, Any], node: str) -> tuple[Key, dict[str, str]]:
    key = (
        entry["claim"], entry["request"], entry.get("driver", "gpu.example.com"),
        entry.get("pool", node), entry["device"], entry.get("admin", False),
    )  # fmt: skip
    return key, entry.get("consumed", {})


def _consumes(results: list[dict[str, Any]], key: Key, consumed: dict[str, str]) -> bool:
    return any(
        _key(result) == key
        and {name: Quantity.parse(text) for name, text in result["consumedCapacity"].items()}
        == {name: Quantity.parse(text) for name, text in consumed.items()}
        for result in results
    )


def counts(answer: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Devices per claim and request."""
    found: dict[str, dict[str, int]] = {}
    for result in answer["results"]:
        own = found.setdefault(result["claim"], {})
        own[result["request"]] = own.get(result["request"], 0) + 1
    return found
