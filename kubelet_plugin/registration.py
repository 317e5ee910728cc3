# SPDX-License-Identifier: Apache-2.0
"""``pluginregistration.Registration``: makes the plugin known to the kubelet.

The kubelet finds the registration socket, calls GetInfo, connects to the endpoint it is told and
reports with NotifyRegistrationStatus. It asks again after its own restart.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpudra.driver.observability.logging import get_logger
from gpudra.kubelet_plugin.proto import pluginregistration_pb2 as pb

PLUGIN_TYPE = "DRAPlugin"
# Without the package prefix, as kubelet >= 1.34 looks for it.
SUPPORTED_VERSIONS = ("v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Registered:
    """How registration stands. ``error`` is the kubelet's, or says that it has not come yet."""

    ok: bool
    error: str


NOT_YET = Registered(ok=False, error="the kubelet has not registered the plugin yet")


class RegistrationService:
    """The servicer.

    Args:
        driver: this driver's name.
        endpoint: path of the service socket, as the kubelet sees it.
        on_change: told whenever the kubelet reports.
    """

    def __init__(
        self, driver: str, endpoint: str, *, on_change: Callable[[Registered], None]
    ) -> None:
        self._driver = driver
        self._endpoint = endpoint
        self._on_change = on_change
        self.status = NOT_YET

    async def get_info(self, _request: pb.InfoRequest) -> pb.PluginInfo:
        """GetInfo."""
        return pb.PluginInfo(
            type=PLUGIN_TYPE,
            name=self._driver,
            endpoint=self._endpoint,
            supported_versions=SUPPORTED_VERSIONS,
        )

    async def notify(self, request: pb.RegistrationStatus) -> pb.RegistrationStatusResponse:
        """NotifyRegistrationStatus."""
        if request.plugin_registered:
            self.status = Registered(ok=True, error="")
            log.info("the kubelet registered the plugin", endpoint=self._endpoint)
        else:
            reason = request.error or "the kubelet gave no reason"
            self.status = Registered(ok=False, error=f"the kubelet refused the plugin: {reason}")
            log.error("the kubelet refused to register the plugin", error=reason)
        self._on_change(self.status)
        return pb.RegistrationStatusResponse()

    def problem(self) -> str | None:
        """For ``/readyz``."""
        return None if self.status.ok else self.status.error
