# SPDX-License-Identifier: Apache-2.0
"""Every metric is used."""

import re
from pathlib import Path

import pytest

from gpudra.driver.observability import metrics as m
from gpudra.driver.observability.metrics import TABLE, Metric

ROOT = Path(__file__).parents[3]
CODE = ("driver", "kubelet_plugin", "controller")


@pytest.mark.parametrize("metric", TABLE, ids=lambda metric: metric.name)
def test_every_metric_is_recorded_somewhere(metric: Metric) -> None:
    """A metric that nobody writes shows zero for ever, which is a lie."""
    constant = next(name for name, value in vars(m).items() if value is metric)
    sources = (path for folder in CODE for path in (ROOT / folder).rglob("*.py"))
    text = "\n".join(_without_table(path.read_text()) for path in sources)
    assert re.search(rf"(\bm\.|\(\s*|: ){constant}\b", text)


def _without_table(text: str) -> str:
    head, mark, tail = text.partition("TABLE: tuple[Metric, ...] = (")
    return head + tail.partition("\n)\n")[2] if mark else text
