# SPDX-License-Identifier: Apache-2.0
"""``make demo`` on the real cluster."""

import subprocess
import sys

from tests.support.cluster import Cluster
from tools.demo.world import NAMESPACE, ROOT


def test_the_demo_runs_on_the_real_cluster(cluster: Cluster) -> None:
    """It ends with ``demo: real-cluster``, has shown a Running pod and the two switches, and stays up."""
    told = subprocess.run(
        [sys.executable, "-m", "tools.demo"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout[-3000:] + told.stderr[-3000:]
    lines = told.stdout.splitlines()
    assert lines[-1] == "demo: real-cluster"
    assert any(line.startswith("one-gpu") and " Running " in line for line in lines)
    assert "Allocation Timestamp" in told.stdout
    constrained = next(line for line in lines if line.startswith("matchAttribute pcieSwitch"))
    first, second = constrained.replace(",", "").split()[-2:]
    assert first == second
    running = cluster.kubectl("get", "pods", "-n", NAMESPACE, "-o", "name").split()
    assert running == ["pod/one-gpu", "pod/same-pcie-switch"]
    cluster.delete_namespace(NAMESPACE)
