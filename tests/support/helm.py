# SPDX-License-Identifier: Apache-2.0
"""helm as a person has it, built from ``deploy/local/tools/helm`` like the cluster's programs."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpudra.controller.ctl.local.build import HELM, Builder
from gpudra.controller.ctl.local.layout import checkout_dir, layout_for
from gpudra.controller.ctl.local.progress import Progress

CHART = checkout_dir() / "deploy" / "charts" / "gpudra"
RELEASE = "gpudra"
NAMESPACE = "gpudra-system"
IMAGE = "example.com/gpudra"


@dataclass(frozen=True, slots=True)
class Helm:
    """The command."""

    binary: Path

    @classmethod
    def built(cls) -> "Helm":
        """Built beside the cluster's programs, unless it is there already."""
        bin_dir = layout_for(None).bin_dir
        Builder(checkout_dir() / "deploy" / "local" / "tools", bin_dir).build(HELM, Progress(1))
        return cls(bin_dir / "helm")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The caller looks at the exit code."""
        return subprocess.run(
            [self.binary, *arguments], capture_output=True, text=True, check=False, timeout=180
        )

    def template(
        self, *options: str, image: str = IMAGE, release: str = RELEASE, namespace: str = NAMESPACE
    ) -> list[dict[str, Any]]:
        """The objects of the chart; options like ``--set log.level=debug``."""
        name = (release, str(CHART), "--namespace", namespace)
        done = self.run("template", *name, "--set", f"image.repository={image}", *options)
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]


def find(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The only object of this kind and name."""
    (found,) = (one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found
