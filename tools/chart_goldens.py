# SPDX-License-Identifier: Apache-2.0
"""What the chart renders for five sets of values: ``python -m tools.chart_goldens`` writes it anew.

The sets and the results lie in ``tests/fixtures/chart``; a test compares. Needs the helm that
``gpudra local up`` builds.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from gpudra.controller.ctl.local.chart import chart_dir
from gpudra.controller.ctl.local.layout import checkout_dir, layout_for

FOLDER = checkout_dir() / "tests" / "fixtures" / "chart"
SETS = ("defaults", "driver-container", "webhook", "mixed-vendors", "agents-only")
HEAD = "# Rendered from {values} by `python -m tools.chart_goldens`.\n"


def golden(name: str) -> Path:
    """The expected objects of a set."""
    return FOLDER / f"{name}.golden.yaml"


def values(name: str) -> Path:
    """The values of a set."""
    return FOLDER / f"{name}.values.yaml"


def render(helm: Path, name: str) -> list[dict[str, Any]]:
    """The objects that helm makes of a set, in helm's order."""
    command = [helm, "template", "gpudra", chart_dir(), "--namespace", "gpudra-system"]
    done = subprocess.run(
        [*command, "--values", values(name)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{name}: {done.stderr.strip()}")
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def main() -> None:
    """Write all five."""
    helm = layout_for(None).binary("helm")
    for name in SETS:
        text = yaml.safe_dump_all(render(helm, name), width=100)
        golden(name).write_text(HEAD.format(values=values(name).name) + text)
        print(golden(name))


if __name__ == "__main__":
    main()
