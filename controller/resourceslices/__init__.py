# SPDX-License-Identifier: Apache-2.0
"""Keeps one pool of ResourceSlices in the API as it should be.

``ResourceSliceController`` is run by the node agent for its own node and by the cluster side for
pools of a fabric; ``probe_features`` tells what the API server keeps of a slice.
"""

from gpudra.controller.resourceslices.controller import ResourceSliceController, SliceClient
from gpudra.controller.resourceslices.probe import probe_features
from gpudra.controller.resourceslices.reports import ReportKind, SliceReport

__all__ = [
    "ReportKind",
    "ResourceSliceController",
    "SliceClient",
    "SliceReport",
    "probe_features",
]
