# SPDX-License-Identifier: Apache-2.0
"""What importing the client layer brings with it."""

import subprocess
import sys

import pytest

MODULES = ("client", "reflector", "workqueue", "leaderelection", "events", "fakeserver")


@pytest.mark.parametrize("module", MODULES)
def test_nothing_heavy_is_imported(module: str) -> None:
    """No typed models of the client library, no pydantic, no grpc: they cost the agent its budget."""
    code = (
        f"import sys, gpudra.driver.kube.{module};"
        "print([m for m in ('kubernetes', 'pydantic', 'grpc', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
