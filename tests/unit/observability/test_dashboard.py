# SPDX-License-Identifier: Apache-2.0
"""Dashboard and alert rules name metrics and labels that exist, and the docs name both."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.support.promql import problems, series
from tools import dashboard

ROOT = Path(__file__).parents[3]
ALERTS = ROOT / "deploy/charts/gpudra/dashboards/alerts.yaml"
RULES = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
ALERT_TESTS = ROOT / "tests/fixtures/alerts-test.yaml"


def test_the_dashboard_is_not_stale() -> None:
    """It is what ``python -m tools.dashboard`` writes."""
    assert dashboard.PAGE.read_text() == dashboard.text()


@pytest.mark.parametrize("query", list(dashboard.expressions()), ids=lambda query: query[0])
def test_panels_use_what_exists(query: tuple[str, str]) -> None:
    """Every metric and label of every query is in the table."""
    assert problems(query[1]) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alerts_use_what_exists(rule: dict[str, object]) -> None:
    """Expressions, and the labels that their texts name; each says how bad it is and what to do."""
    expression = str(rule["expr"])
    assert problems(expression) == []
    assert re.fullmatch(r"Gpudra[A-Z][A-Za-z]+", str(rule["alert"]))
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    texts = rule["annotations"]
    assert set(texts) == {"summary", "description"}
    for label in re.findall(r"\$labels\.(\w+)", " ".join(texts.values())):
        # A text may name only what the expression keeps: what it groups by, or everything.
        grouped = re.findall(r"by \(([^)]*)\)", expression)
        assert not grouped or all(label in group for group in grouped), label


def test_what_does_not_exist_is_found() -> None:
    """The check itself: unknown metrics, labels in matchers, labels in groups, nothing at all."""
    assert problems("sum(gpudra_gpus)") == []
    assert problems("gpudra_nothing") == ["no metric gpudra_nothing"]
    assert problems('gpudra_gpus{node="a"}') == ["gpudra_gpus has no label node"]
    assert problems("sum by (node) (gpudra_gpus)") == [
        "no label node in sum by (node) (gpudra_gpus)"
    ]
    assert problems("gpudra_prepare_duration_seconds") == [
        "no metric gpudra_prepare_duration_seconds"
    ]
    assert problems("vector(0)") == ["no metric at all"]
    assert "gpudra_prepare_duration_seconds_bucket" in series()


def test_panels_do_not_overlap() -> None:
    """Every panel has a place of its own inside 24 columns, and an id of its own."""
    taken: set[tuple[int, int]] = set()
    panels = json.loads(dashboard.PAGE.read_text())["panels"]
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_every_alert_is_tested_by_promtool() -> None:
    """The file of promtool tests names each of them (it is run in the end-to-end tests)."""
    tests = yaml.safe_load(ALERT_TESTS.read_text())["tests"]
    named = {case["alertname"] for test in tests for case in test["alert_rule_test"]}
    assert named == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize("page", ["docs/metrics.md", "docs/operations.md"])
def test_queries_of_the_docs_use_what_exists(page: str) -> None:
    """Whatever looks like a query or a metric in the docs is one."""
    quoted = re.findall(r"`([^`\n]*gpudra_\w+[^`\n]*)`", (ROOT / page).read_text())
    known = {*series(), *(metric.name for metric in series().values())}
    for text in quoted:
        names = re.findall(r"gpudra_\w+", text)
        wrong = [name for name in names if name not in known and not text.endswith("_*")]
        assert not wrong, text
