# SPDX-License-Identifier: Apache-2.0
"""Simulated hardware: a node's GPUs from a YAML file.

Used with ``--device-lib simulated --hardware PROFILE|FILE`` by the node agent, by tests, benches
and the local cluster, and by everybody without GPUs. Names to use from outside:
``open_simulated``, ``SimulatedLib``, ``load_hardware``, ``build_inventory``, ``profile_names``.
"""

from gpudra.driver.devicelib.simulated.catalog import load_hardware, profile_names
from gpudra.driver.devicelib.simulated.lib import SimulatedLib, open_simulated
from gpudra.driver.devicelib.simulated.model import build_inventory

__all__ = ["SimulatedLib", "build_inventory", "load_hardware", "open_simulated", "profile_names"]
