# SPDX-License-Identifier: Apache-2.0
"""PodDisruptionBudgets as evictions are planned: which pods count, and how many may go.

The API server has the last word at the moment of the eviction; planning with the budgets keeps plans
honest, since a plan of which half is refused frees nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpudra.driver.core.gangs.affinity import holds
from gpudra.driver.core.gangs.podview import label_tests
from gpudra.driver.core.gangs.types import LabelTest, PodView


@dataclass(frozen=True, slots=True)
class Budget:
    """A ``policy/v1`` PodDisruptionBudget.

    Attributes:
        key: ``namespace/name``.
        tests: all of them hold for a pod that counts; None: no pod counts.
        allowed: ``status.disruptionsAllowed``; nothing before its controller has looked.
    """

    key: str
    namespace: str
    tests: tuple[LabelTest, ...] | None
    allowed: int

    def counts(self, pod: PodView) -> bool:
        """Whether evicting the pod is a disruption of this budget."""
        if self.tests is None or pod.namespace != self.namespace:
            return False
        return all(holds(test, pod) for test in self.tests)


def budget(raw: Mapping[str, Any]) -> Budget:
    """Reads a PodDisruptionBudget of the API. An empty selector counts every pod (policy/v1)."""
    meta, spec, status = (raw.get(key) or {} for key in ("metadata", "spec", "status"))
    fresh = status.get("observedGeneration", 0) >= meta.get("generation", 0)
    return Budget(
        f"{meta['namespace']}/{meta['name']}",
        meta["namespace"],
        label_tests(spec.get("selector")),
        int(status.get("disruptionsAllowed") or 0) if fresh else 0,
    )
