# SPDX-License-Identifier: Apache-2.0
"""Lists the packages: everything with an ``__init__.py`` below the four top folders."""

from pathlib import Path

from setuptools import setup

ROOTS = ("api", "driver", "kubelet_plugin", "controller")

packages = sorted(
    ".".join(("gpudra", *init.parent.parts))
    for root in ROOTS
    for init in Path(root).rglob("__init__.py")
)
setup(packages=packages)
