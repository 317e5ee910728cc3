# SPDX-License-Identifier: Apache-2.0
"""A pretended API server: `ObjectStore` (state, no I/O) and `FakeApiServer` (HTTP in front of it).

Used by tests, by the demo where no real cluster can be built, and by simulations.
"""

from gpudra.driver.kube.fakeserver.faults import Faults
from gpudra.driver.kube.fakeserver.history import StoreEvent
from gpudra.driver.kube.fakeserver.objects import ObjectStore
from gpudra.driver.kube.fakeserver.server import FakeApiServer, RequestRecord

__all__ = ["FakeApiServer", "Faults", "ObjectStore", "RequestRecord", "StoreEvent"]
