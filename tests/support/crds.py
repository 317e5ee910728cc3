# SPDX-License-Identifier: Apache-2.0
"""Definitions of others' kinds that the chart uses, from the Go modules that carry them."""

import json
import subprocess
from pathlib import Path

from gpudra.controller.ctl.local.layout import checkout_dir

MODULE = checkout_dir() / "deploy" / "local" / "tools" / "crds"
FILES = {
    "github.com/prometheus-operator/prometheus-operator": (
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ),
    "github.com/cert-manager/cert-manager": (
        "deploy/crds/cert-manager.io_certificates.yaml",
        "deploy/crds/cert-manager.io_issuers.yaml",
    ),
}


def foreign_definitions() -> list[Path]:
    """PodMonitor, PrometheusRule, Certificate and Issuer, fetched like any Go module."""
    return [_folder(module) / name for module, names in FILES.items() for name in names]


def _folder(module: str) -> Path:
    done = subprocess.run(
        ["go", "mod", "download", "-json", module],
        cwd=MODULE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(json.loads(done.stdout)["Dir"])
