# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of the docs that come from code: ``python -m tools.gen_docs [--check]``.

``docs/config.md`` lists the flags, ``docs/metrics.md`` the metrics, ``docs/api.md`` our kinds, ``docs/cli.md`` the commands, the
chart's README its values; its Chart.yaml carries the version of pyproject.toml. ``--check`` writes nothing
and fails when a page is stale; a test does the same.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from gpudra.controller import options as controller
from gpudra.driver.observability.metrics import TABLE, Component, Metric
from gpudra.kubelet_plugin import options as agent
from tools import cli_docs
from tools.chart_docs import CHART, value_rows
from tools.crd_docs import api_page

DOCS = Path(__file__).parents[1] / "docs"
CONFIG = DOCS / "config.md"
METRICS = DOCS / "metrics.md"
CLI = DOCS / "cli.md"
API = DOCS / "api.md"
CHART_PAGE = CHART / "README.md"
CHART_FILE = CHART / "Chart.yaml"
VALUES = CHART / "values.yaml"
PROJECT = DOCS.parent / "pyproject.toml"


def agent_rows() -> Iterator[str]:
    """The flags of the node agent."""
    for name, field in agent.Options.model_fields.items():
        default = "required" if field.is_required() else _default(field.default)
        yield f"| `{agent.flag(name)}` | {default} | {field.description} |"


def controller_rows() -> Iterator[str]:
    """The flags of the cluster side."""
    for action in controller.parser()._actions:  # noqa: SLF001 - argparse tells it nowhere else
        if action.default != argparse.SUPPRESS:
            yield f"| `{action.option_strings[-1]}` | {_default(action.default)} | {action.help} |"


def metric_rows() -> Iterator[str]:
    """The metrics of both processes."""
    return map(_metric_row, TABLE)


def pages() -> dict[Path, str]:
    """The pages as they should be, by file."""
    config = CONFIG.read_text()
    config = _with_table(config, "gpudra-kubelet-plugin", agent_rows())
    config = _with_table(config, "gpudra-controller", controller_rows())
    metrics = _with_table(METRICS.read_text(), "All metrics", metric_rows())
    chart = _with_table(CHART_PAGE.read_text(), "Values", value_rows(VALUES.read_text()))
    made = {API: api_page(), CHART_FILE: _chart_file()}
    made[CLI] = cli_docs.page()
    return {CONFIG: config, METRICS: metrics, CHART_PAGE: chart, **made}


def _chart_file() -> str:
    """Chart.yaml with the version of pyproject.toml, the one place where it is written."""
    number = tomllib.loads(PROJECT.read_text())["project"]["version"]
    text = re.sub(r"(?m)^version: .*$", f"version: {number}", CHART_FILE.read_text())
    return re.sub(r"(?m)^appVersion: .*$", f'appVersion: "{number}"', text)


def main() -> int:
    """Writes or checks; 1 when a page is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when stale")
    check = parser.parse_args().check
    stale = [
        path for path, text in pages().items() if not path.exists() or path.read_text() != text
    ]
    for path in stale:
        print(f"{path}: {'stale, run python -m tools.gen_docs' if check else 'written'}")
    if not check:
        for path, text in pages().items():
            path.write_text(text)
    return 1 if check and stale else 0


def _with_table(page: str, heading: str, rows: Iterator[str]) -> str:
    """The page with the rows of the first table below the heading replaced."""
    head, mark, tail = page.partition(f"\n## {heading}\n")
    assert mark, f"the page has no heading {heading!r}"
    lines = "".join(f"{row}\n" for row in rows)
    return (
        head + mark + re.sub(r"(\n\|[-|]+\|\n)(?:\|.*\n)*", rf"\1{_escaped(lines)}", tail, count=1)
    )


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\")


def _metric_row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    served = "both" if metric.components == frozenset(Component) else min(metric.components)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {served} | {metric.help} |"


def _default(value: object) -> str:
    return f"`{value}`" if value not in (None, "") else "-"


if __name__ == "__main__":
    sys.exit(main())
