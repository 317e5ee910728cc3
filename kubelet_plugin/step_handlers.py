# SPDX-License-Identifier: Apache-2.0
"""Every kind of step that the agent can do, with its handler.

The one list of them: the composition root and the tests' processes take it from here, so a kind
that no crash test covers is noticed (tests/unit/plugin/test_crash_forms.py).
"""

from collections.abc import Callable

from gpudra.driver.core.prepare import CDI_FILE, METADATA, MIG_INSTANCE, MIG_MODE
from gpudra.driver.core.sharing import Places
from gpudra.driver.devicelib.protocol import DeviceLib
from gpudra.kubelet_plugin.cdi_store import CdiStore
from gpudra.kubelet_plugin.metadata_files import MetadataStep
from gpudra.kubelet_plugin.mig import MigInstanceStep, MigModeStep, Partitions
from gpudra.kubelet_plugin.records import Records
from gpudra.kubelet_plugin.sharing import Backends
from gpudra.kubelet_plugin.steps import CdiFileStep, StepHandler


def step_handlers(
    lib: DeviceLib,
    partitions: Partitions,
    backends: Backends,
    *,
    store: CdiStore,
    metadata: MetadataStep,
    places: Places,
    records: Callable[[], Records],
) -> dict[str, StepHandler]:
    """Handlers by kind.

    Args:
        lib: the device library.
        partitions: its part for MIG.
        backends: isolation backends.
        store: the CDI folder.
        metadata: writes the files that containers read about their devices.
        places: paths that shares need.
        records: every claim that holds something now.
    """
    return {
        METADATA: metadata,
        CDI_FILE: CdiFileStep(store, lib, places, metadata),
        MIG_MODE: MigModeStep(partitions, records),
        MIG_INSTANCE: MigInstanceStep(partitions),
        **backends.handlers(),
    }
