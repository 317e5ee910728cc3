# SPDX-License-Identifier: Apache-2.0
"""The allocation cases made from public bug reports, through ``gpudra allocate``."""

from pathlib import Path

import pytest

from tests.support.cases import Asked, accepted, allocation_cases, counts, run_case

_EXIT = {"allocated": 0, "unsatisfiable": 3}


def _check(asked: Asked) -> None:
    question, answer = asked.question, asked.answer
    assert answer["outcome"] == question["outcome"], answer
    assert asked.code == _EXIT.get(question["outcome"], 1)
    if "accept" in question:
        assert accepted(asked), answer["results"]
    if "counts" in question:
        assert counts(answer) == question["counts"]
        devices = [(r["driver"], r["pool"], r["device"]) for r in answer["results"]]
        assert len(set(devices)) == len(devices)
    if question["outcome"] != "allocated":
        assert answer["results"] == []
        assert answer["message"]


@pytest.mark.parametrize("folder", allocation_cases(), ids=lambda path: path.name)
def test_case(folder: Path, tmp_path: Path) -> None:
    """Every question of the case gets one of the answers that the rules allow."""
    devices: dict[str, set[str]] = {}
    for asked in run_case(folder, tmp_path):
        _check(asked)
        for claim in asked.question["claims"]:
            devices[claim] = {r["device"] for r in asked.answer["results"] if r["claim"] == claim}
        other = asked.question.get("same_device_as")
        if other:
            assert devices[asked.question["claims"][0]] == devices[other]


@pytest.mark.parametrize("folder", allocation_cases(), ids=lambda path: path.name)
def test_order_of_objects_does_not_matter(folder: Path, tmp_path: Path) -> None:
    """The answers are the same when the files list all objects the other way round."""
    plain = [asked.answer for asked in run_case(folder, tmp_path)]
    turned = [asked.answer for asked in run_case(folder, tmp_path, reverse=True)]
    assert [one["outcome"] for one in plain] == [one["outcome"] for one in turned]
    assert [one["results"] for one in plain] == [one["results"] for one in turned]
