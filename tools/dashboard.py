# SPDX-License-Identifier: Apache-2.0
"""Writes the Grafana dashboard of the chart from a table of panels: ``python -m tools.dashboard``.

Panels are rows of `PANELS`; layout and the noise of Grafana's JSON are made here. A test holds every
query against the table of metrics, and a real Prometheus answers each of them in the end-to-end tests.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "deploy/charts/gpudra/dashboards/gpudra.json"
RATE = "5m"
_WIDTH, _STAT_WIDTH, _HEIGHT, _STAT_HEIGHT = 12, 4, 8, 4
_LINE = 24


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        title: above it.
        help: the (i) in its corner.
        queries: (expression, legend).
        unit: Grafana's name of it.
        kind: ``timeseries`` or ``stat``.
        stacked: whether the lines add up.
    """

    title: str
    help: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    stacked: bool = False


def _stat(title: str, text: str, query: str, unit: str = "short") -> Panel:
    return Panel(title, text, ((query, ""),), unit, "stat")


def _quantiles(metric: str, by: str = "") -> tuple[tuple[str, str], ...]:
    group, legend = (f", {by}", f"{{{{{by}}}}} ") if by else ("", "")
    return tuple(
        (
            f"histogram_quantile({quantile}, sum by (le{group}) (rate({metric}_bucket[{RATE}])))",
            f"{legend}p{quantile * 100:g}",
        )
        for quantile in (0.5, 0.99)
    )


MODEL = '{model=~"$model"}'
PANELS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Cluster",
        (
            _stat("Cards", "All cards that agents publish.", "sum(gpudra_gpus)"),
            _stat("Cards free", "Nothing of them is given out.", 'sum(gpudra_gpus{state="free"})'),
            _stat(
                "Memory held",
                "Part of all GPU memory that claims have.",
                'sum(gpudra_gpu_memory_bytes{state="held"}) / sum(gpudra_gpu_memory_bytes)',
                "percentunit",
            ),
            _stat(
                "Memory stranded",
                "Part of all GPU memory that is free and that no published device can give out.",
                'sum(gpudra_gpu_memory_bytes{state="stranded"}) / sum(gpudra_gpu_memory_bytes)',
                "percentunit",
            ),
            _stat("Claims waiting", "Claims without devices.", "sum(gpudra_pending_claims)"),
            _stat(
                "Oldest waits",
                "Age of the oldest claim without devices.",
                "max(time() - gpudra_pending_claims_oldest_timestamp_seconds) or vector(0)",
                "s",
            ),
        ),
    ),
    (
        "Allocated and used",
        (
            Panel(
                "Memory by state",
                "Adds up to the memory of all cards.",
                ((f"sum by (state) (gpudra_gpu_memory_bytes{MODEL})", "{{state}}"),),
                "bytes",
                stacked=True,
            ),
            Panel(
                "Cards by state",
                "What cards are used as.",
                ((f"sum by (state) (gpudra_gpus{MODEL})", "{{state}}"),),
                stacked=True,
            ),
            Panel(
                "Allocated memory by class",
                "What claims of each DeviceClass have.",
                ((f"sum by (class) (gpudra_allocated_memory_bytes{MODEL})", "{{class}}"),),
                "bytes",
                stacked=True,
            ),
            Panel(
                "Allocated compute by class, in cards",
                "A share counts by its compute, a MIG device by its multiprocessors.",
                ((f"sum by (class) (gpudra_allocated_compute_gpus{MODEL})", "{{class}}"),),
                stacked=True,
            ),
            Panel(
                "Allocated devices by model and form",
                "Whole cards, MIG devices and shares.",
                (
                    (
                        f"sum by (model, form) (gpudra_allocated_devices{MODEL})",
                        "{{model}} {{form}}",
                    ),
                ),
            ),
            Panel(
                "Memory: allocated and used, by form",
                "Used is measured on the nodes.",
                (
                    ("sum by (form) (gpudra_allocated_memory_bytes)", "{{form}} allocated"),
                    ("sum by (form) (gpudra_claim_memory_used_bytes)", "{{form}} used"),
                ),
                "bytes",
            ),
            Panel(
                "Compute in use, by form",
                "How busy the devices of claims are.",
                (("avg by (form) (gpudra_claim_compute_percent)", "{{form}}"),),
                "percent",
            ),
        ),
    ),
    (
        "Fragmentation",
        (
            Panel(
                "Largest request for whole cards",
                "Most free cards of a model on one node.",
                ((f"max by (model) (gpudra_largest_free_gpus{MODEL})", "{{model}}"),),
            ),
            Panel(
                "Largest device that is left",
                "Memory of the largest device that could be given out now.",
                (
                    (
                        f"max by (model, form) (gpudra_largest_free_memory_bytes{MODEL})",
                        "{{model}} {{form}}",
                    ),
                ),
                "bytes",
            ),
            Panel(
                "Memory stranded by model",
                "Free, and out of reach of every published device.",
                (
                    (
                        'sum by (model) (gpudra_gpu_memory_bytes{state="stranded", model=~"$model"})',
                        "{{model}}",
                    ),
                ),
                "bytes",
            ),
        ),
    ),
    (
        "Waiting",
        (
            Panel(
                "Claims waiting by reason",
                "waiting: matching devices are free; see gpudra explain.",
                (("sum by (reason) (gpudra_pending_claims)", "{{reason}}"),),
                stacked=True,
            ),
            Panel(
                "Age of the oldest by reason",
                "Since the claim was made.",
                (
                    (
                        "max by (reason) (time() - gpudra_pending_claims_oldest_timestamp_seconds)",
                        "{{reason}}",
                    ),
                ),
                "s",
            ),
            Panel(
                "Time until a claim has its devices",
                "From its creation; waiting for its pod is in it.",
                _quantiles("gpudra_claim_allocation_duration_seconds"),
                "s",
            ),
        ),
    ),
    (
        "Nodes",
        (
            Panel(
                "Prepare latency",
                "One claim, measured in the agents.",
                _quantiles("gpudra_prepare_duration_seconds"),
                "s",
            ),
            Panel(
                "Where the time goes",
                "Phases of preparing, the slowest hundredth.",
                _quantiles("gpudra_claim_phase_duration_seconds", "phase")[1:],
                "s",
            ),
            Panel(
                "Prepares by outcome",
                "refused: by what its user wrote. failed: somebody has to look.",
                (
                    (
                        f"sum by (outcome) (rate(gpudra_prepare_duration_seconds_count[{RATE}]))",
                        "{{outcome}}",
                    ),
                ),
                "ops",
            ),
            Panel(
                "Cards that are not well",
                "By cause.",
                (("sum by (cause) (gpudra_gpus_unhealthy)", "{{cause}}"),),
            ),
            Panel(
                "Agents and pools",
                "Agents that the kubelet has not accepted, and pools that are not whole.",
                (
                    ("count(gpudra_kubelet_registered == 0) or vector(0)", "not registered"),
                    ('sum(gpudra_pools{state="incomplete"})', "incomplete pools"),
                ),
            ),
        ),
    ),
    (
        "Components",
        (
            Panel(
                "Requests to the API server",
                "By code; 0 is no answer.",
                ((f"sum by (code) (rate(gpudra_api_requests_total[{RATE}]))", "{{code}}"),),
                "reqps",
            ),
            Panel(
                "Troubles with lists and watches",
                "Each is tried again.",
                (
                    (
                        f"sum by (resource, reason) (rate(gpudra_reflector_errors_total[{RATE}]))",
                        "{{resource}} {{reason}}",
                    ),
                ),
                "ops",
            ),
            Panel("Leaders", "Should be one.", (("sum(gpudra_leader)", "leaders"),)),
            Panel(
                "Versions",
                "Processes by version.",
                (("count by (version) (gpudra_build_info)", "{{version}}"),),
            ),
        ),
    ),
)


def expressions() -> Iterator[tuple[str, str]]:
    """Title and query of each target."""
    for _, panels in PANELS:
        for panel in panels:
            for query, _ in panel.queries:
                yield panel.title, query


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "title": "gpudra",
        "uid": "gpudra",
        "tags": ["gpudra", "gpu", "kubernetes"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_datasource(), _model()]},
        "panels": list(_panels()),
    }


def text() -> str:
    """The file as it should be."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
    }


def _model() -> dict[str, Any]:
    return {
        "name": "model",
        "label": "Model",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": "label_values(gpudra_gpus, model)",
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, top = 1, 0
    for title, panels in PANELS:
        place = {"h": 1, "w": _LINE, "x": 0, "y": top}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place}
        number, top, left = number + 1, top + 1, 0
        for panel in panels:
            stat = panel.kind == "stat"
            width = _STAT_WIDTH if stat else _WIDTH
            height = _STAT_HEIGHT if stat else _HEIGHT
            if left + width > _LINE:
                left, top = 0, top + height
            yield _panel(panel, number, {"h": height, "w": width, "x": left, "y": top})
            number, left = number + 1, left + width
        top += height


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 20} if panel.stacked else {}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": custom},
            "overrides": [],
        },
        "targets": [
            {"refId": chr(65 + place_), "datasource": source, "expr": query, "legendFormat": legend}
            for place_, (query, legend) in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
