# SPDX-License-Identifier: Apache-2.0
"""The table of metrics and the registry made from it."""

import re

import pytest

from gpudra.driver.observability import metrics as m
from gpudra.driver.observability.metrics import TABLE, Component, Kind, Metrics


def test_the_table_is_sorted_and_has_no_double() -> None:
    """Rows are ordered by name, so that a new one has one place."""
    names = [metric.name for metric in TABLE]
    assert names == sorted(names)
    assert len(set(names)) == len(names)


def test_every_constant_is_in_the_table() -> None:
    """A metric that is declared is served."""
    declared = {value.name for value in vars(m).values() if isinstance(value, m.Metric)}
    assert declared == {metric.name for metric in TABLE}


# https://prometheus.io/docs/practices/naming: base units, no type in the name, no reserved label.
UNITS_THAT_ARE_NOT_BASE = {
    *("milliseconds", "ms", "minutes", "hours", "kilobytes", "megabytes", "mib", "gib", "bits"),
}


@pytest.mark.parametrize("metric", TABLE, ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric: m.Metric) -> None:
    """Prefix, unit and suffix are those of Prometheus; labels name single objects in usage alone."""
    assert re.fullmatch(r"gpudra_[a-z_]+", metric.name)
    assert (metric.kind is Kind.COUNTER) == metric.name.endswith("_total")
    timestamp = metric.name.endswith("_timestamp_seconds")
    assert (metric.kind is Kind.HISTOGRAM) == (metric.name.endswith("_seconds") and not timestamp)
    assert not set(metric.name.split("_")) & {*UNITS_THAT_ARE_NOT_BASE, *map(str, Kind)}
    assert not metric.name.endswith(("_count", "_sum", "_bucket"))
    assert all(re.fullmatch(r"[a-z][a-z_]*", label) for label in metric.labels)
    assert not set(metric.labels) & {"le", "quantile", "job", "instance"}
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert metric.help.endswith(".")
    single = {"claim", "pod", "device", "uid", "node", "namespace"} & set(metric.labels)
    assert not single or (metric.per_claim and metric.kind is Kind.GAUGE)


def test_a_process_serves_its_own_rows_only() -> None:
    """The agent has no leader metric, and writing it is a mistake that is told."""
    agent = Metrics(Component.AGENT, version="1.2.3", process=False)
    text = agent.render()[0].decode()
    assert 'gpudra_build_info{version="1.2.3"} 1.0' in text
    assert "gpudra_leader" not in text
    with pytest.raises(ValueError, match="gpudra_leader does not belong"):
        agent.set(m.LEADER, 1)


def test_counters_gauges_and_histograms_show_what_was_recorded() -> None:
    """One of each kind, as scraped; counters have no creation series."""
    metrics = Metrics(Component.AGENT, process=False)
    metrics.inc(m.SLICE_WRITES, 2, verb="create", outcome="ok")
    metrics.set(m.PREPARED_CLAIMS, 3)
    metrics.observe(m.PREPARE_SECONDS, 0.004, form="gpu", outcome="ok")
    with metrics.track(m.IN_FLIGHT, operation="prepare"):
        during = metrics.render()[0].decode()
    text, content_type = metrics.render()
    after = text.decode()
    assert 'gpudra_resourceslice_writes_total{outcome="ok",verb="create"} 2.0' in after
    assert "gpudra_prepared_claims 3.0" in after
    assert 'gpudra_prepare_duration_seconds_bucket{form="gpu",le="0.005",outcome="ok"} 1.0' in after
    assert 'gpudra_claims_in_flight{operation="prepare"} 1.0' in during
    assert 'gpudra_claims_in_flight{operation="prepare"} 0.0' in after
    assert "_created" not in after
    assert content_type.startswith("text/plain; version=0.0.4")


def test_a_cleared_gauge_forgets_its_labels() -> None:
    """Label sets that are not written again disappear."""
    metrics = Metrics(Component.AGENT, process=False)
    metrics.set(m.DEVICES, 8, kind="gpu", state="published")
    metrics.clear(m.DEVICES)
    metrics.set(m.DEVICES, 7, kind="gpu", state="left_out")
    text = metrics.render()[0].decode()
    assert 'state="published"' not in text
    assert 'gpudra_devices{kind="gpu",state="left_out"} 7.0' in text


def test_two_registries_do_not_know_each_other() -> None:
    """No global state: tests and processes count for themselves."""
    first, second = (Metrics(Component.AGENT, process=False) for _ in range(2))
    first.set(m.PREPARED_CLAIMS, 5)
    assert "gpudra_prepared_claims 0.0" in second.render()[0].decode()


def test_process_figures_are_served() -> None:
    """Memory of the process is part of the scrape."""
    text = Metrics(Component.CONTROLLER).render()[0].decode()
    assert "process_resident_memory_bytes" in text
