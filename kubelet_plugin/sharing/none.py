# SPDX-License-Identifier: Apache-2.0
"""No isolation, since claim or policy ask for none. There is nothing to do and nothing to undo."""

from collections.abc import Mapping

from gpudra.api.codec import Json
from gpudra.driver.core.sharing import Backend, IsolationReport, Sharing, sharing_report
from gpudra.kubelet_plugin.sharing.protocol import DaemonReport


class NoIsolation:
    """SharingBackend that keeps nobody apart."""

    name = Backend.NONE

    def unavailable(self) -> str:
        """It can always be had."""
        return ""

    def prepare(self, one: Sharing) -> Mapping[str, Json]:  # noqa: ARG002 - the protocol's
        """Does nothing."""
        return {}

    def undo(self, one: Sharing) -> None:
        """Does nothing."""

    def present(self, one: Sharing) -> bool:  # noqa: ARG002 - the protocol's
        """Nothing is always there."""
        return True

    def verify(self, one: Sharing) -> tuple[str, ...]:  # noqa: ARG002 - the protocol's
        """Nothing can be wrong with nothing."""
        return ()

    def describe(self, one: Sharing) -> IsolationReport:
        """See gpudra.driver.core.sharing.reports."""
        return sharing_report(one)

    def check(self) -> tuple[DaemonReport, ...]:
        """Nothing runs."""
        return ()

    def sweep(self, live: frozenset[str]) -> tuple[str, ...]:  # noqa: ARG002 - the protocol's
        """Nothing is left behind."""
        return ()
