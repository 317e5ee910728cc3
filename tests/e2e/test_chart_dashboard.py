# SPDX-License-Identifier: Apache-2.0
"""Metrics, dashboard and alert rules with the real Prometheus and promtool."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gpudra.controller.ctl.local.chart import CONTROLLER_PORT
from gpudra.controller.ctl.local.layout import checkout_dir
from gpudra.driver.observability.metrics import TABLE
from tests.support.cluster import RESOURCE
from tests.support.helm import Helm, find
from tests.support.installation import Installation
from tests.support.prometheus import Prometheus, fetched, promtool, running
from tests.support.promql import EVERYWHERE, series
from tools import dashboard

ONE_GPU = checkout_dir() / "deploy" / "examples" / "one-gpu" / "example.yaml"
ALERTS = checkout_dir() / "deploy" / "charts" / "gpudra" / "dashboards" / "alerts.yaml"
ALERT_TESTS = checkout_dir() / "tests" / "fixtures" / "alerts-test.yaml"
# Figures of what does not happen in a healthy cluster, or not within seconds: rates need two scrapes
# that differ, and nobody waits here.
MAY_BE_EMPTY = {
    *(
        "Age of the oldest by reason",
        "Time until a claim has its devices",
        "Cards that are not well",
    ),
    *("Troubles with lists and watches", "Prepare latency", "Where the time goes"),
    *("Prepares by outcome", "Compute in use, by form", "Memory: allocated and used, by form"),
}


@pytest.fixture(scope="module")
def prometheus(
    installed: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A real Prometheus that scrapes agent and controller, with the chart's rules."""
    state = installed.cluster.state
    targets = {
        "agent": [f"127.0.0.1:{node.agent_port}" for node in state.nodes],
        "controller": [f"127.0.0.1:{state.ports[CONTROLLER_PORT]}"],
    }
    with running(tmp_path_factory.mktemp("prometheus"), targets, ALERTS) as server:
        yield server


def test_prometheus_scrapes_both_and_knows_what_the_table_says(
    installed: Installation, prometheus: Prometheus
) -> None:
    """Both targets are up; every metric that is scraped is in the table, with its type and labels."""
    installed.cluster.apply_file(ONE_GPU)
    installed.cluster.wait_pod("default", "one-gpu")
    prometheus.until(lambda: len(prometheus.query("up == 1")) == 2, "both targets to be up")
    claims = installed.cluster.client.request("GET", f"{RESOURCE}/resourceclaims")["items"]
    held = sum(len(one["status"]["allocation"]["devices"]["results"]) for one in claims)
    prometheus.until(
        lambda: (
            prometheus.query(f"sum(gpudra_allocated_devices) == {held}")
            and prometheus.query('gpudra_prepare_duration_seconds_count{outcome="ok"} > 0')
        ),
        f"the figures of pods that have {held} GPUs",
    )
    types = prometheus.get("/api/v1/metadata")
    for metric in TABLE:
        told = {one["type"] for one in types.get(metric.name, ())}
        assert told <= {str(metric.kind)}, metric.name
    for name, metric in series().items():
        labels = {label for one in prometheus.query(name) for label in one["metric"]}
        assert labels <= {"__name__", "job", *EVERYWHERE, *metric.labels}, name


def test_the_dashboard_and_the_rules_are_understood(prometheus: Prometheus) -> None:
    """Every panel is answered, those of idle figures aside with data; every rule is healthy."""
    queries = [(title, q.replace("$model", ".*")) for title, q in dashboard.expressions()]

    def empty() -> set[str]:
        return {title for title, query in queries if not prometheus.query(query)}

    # A rate needs two scrapes of a counter that has moved.
    prometheus.until(lambda: empty() <= MAY_BE_EMPTY, f"data beside {MAY_BE_EMPTY}")

    def rules() -> list[dict[str, Any]]:
        return [
            one for group in prometheus.get("/api/v1/rules")["groups"] for one in group["rules"]
        ]

    prometheus.until(
        lambda: {one["health"] for one in rules()} == {"ok"}, "all rules to be evaluated"
    )
    assert {one["state"] for one in rules() if one["name"] != "GpudraIsolationIncident"} <= {
        "inactive",
        "pending",
    }
    assert [one["name"] for one in rules()] == [
        rule["alert"] for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    ]


def test_promtool_passes_rules_their_tests_and_what_is_scraped(installed: Installation) -> None:
    """``check rules``, ``test rules``, and ``check metrics`` on the text of agent and controller."""
    for words in (("check", "rules", ALERTS), ("test", "rules", ALERT_TESTS)):
        done = promtool(*words)
        assert done.returncode == 0, done.stdout + done.stderr
    state = installed.cluster.state
    for port in (state.nodes[0].agent_port, state.ports[CONTROLLER_PORT]):
        done = promtool("check", "metrics", stdin=fetched(f"http://127.0.0.1:{port}/metrics"))
        assert done.returncode == 0, done.stdout + done.stderr
    installed.cluster.kubectl("delete", "-f", str(ONE_GPU))


def test_the_chart_carries_dashboard_and_rules() -> None:
    """As a ConfigMap for Grafana's side-car and a PrometheusRule, the files word for word."""
    values = ("--set", "dashboard.enabled=true", "--set", "prometheusRule.enabled=true")
    objects = Helm.built().template(*values, "--set", "prometheusRule.labels.team=gpu")
    shown = find(objects, "ConfigMap", "gpudra-dashboard")
    assert json.loads(shown["data"]["gpudra.json"]) == dashboard.dashboard()
    assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"
    rule = find(objects, "PrometheusRule", "gpudra")
    assert rule["spec"] == yaml.safe_load(ALERTS.read_text())
    assert rule["metadata"]["labels"]["team"] == "gpu"
