# SPDX-License-Identifier: Apache-2.0
"""Which metrics and labels an expression of PromQL names, as far as ours go."""

import re

from gpudra.driver.observability.metrics import TABLE, Kind, Metric

_SUFFIXES = ("_bucket", "_count", "_sum")
_NAME = re.compile(r"\b(gpudra_\w+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPED = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
# Added by Prometheus to every series, and by histograms to their buckets.
EVERYWHERE = frozenset({"instance", "job", "le"})


def series() -> dict[str, Metric]:
    """Every series that is scraped, by its name."""
    found = {}
    for metric in TABLE:
        if metric.kind is Kind.HISTOGRAM:
            found.update({f"{metric.name}{suffix}": metric for suffix in _SUFFIXES})
        else:
            found[metric.name] = metric
    return found


def problems(expression: str) -> list[str]:
    """What an expression names that does not exist."""
    known, found, labels = series(), [], set(EVERYWHERE)
    for name, matchers in _NAME.findall(expression):
        metric = known.get(name)
        if metric is None:
            found.append(f"no metric {name}")
            continue
        labels.update(metric.labels)
        found += [
            f"{name} has no label {label}"
            for label in _LABEL.findall(matchers)
            if label not in metric.labels
        ]
    if not _NAME.search(expression):
        found.append("no metric at all")
    for group in _GROUPED.findall(expression):
        wanted = {word.strip() for word in group.split(",") if word.strip()}
        found += [f"no label {label} in {expression}" for label in sorted(wanted - labels)]
    return found
