# SPDX-License-Identifier: Apache-2.0
"""Flags of ``gpudra-kubelet-plugin``, each also as an environment variable.

``--node-name`` is ``GPUDRA_NODE_NAME`` and so on; a flag beats its variable. Names, help texts and
defaults come from one model, so that ``--help`` and the checks cannot differ.
"""

import argparse
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gpudra.api.errors import InputError
from gpudra.api.names import check_dns_subdomain, check_driver_name
from gpudra.driver.core.forms import FORM_WORDS, DeviceKind, form_words, parse_forms
from gpudra.driver.core.prepare import PREPARABLE
from gpudra.kubelet_plugin.sharing import MpsLaunch, SharingSettings

PREFIX = "GPUDRA_"


class DeviceLibName(StrEnum):
    """Where the node's cards are read from."""

    NVML = "nvml"
    SIMULATED = "simulated"
    DECLARED = "declared"
    AMD = "amd"


class LogLevel(StrEnum):
    """Least level that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How log lines look."""

    JSON = "json"
    CONSOLE = "console"


class Options(BaseModel):
    """Everything that can be set. Paths are those that kubelet and container runtime see."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node_name: Annotated[str, Field(description="name of this node; also the name of its pool")]
    driver_name: Annotated[str, Field(description="name of this DRA driver")] = "gpu.gpudra.io"
    device_lib: Annotated[
        DeviceLibName,
        Field(description="where the cards are read from: nvml, amd, declared or simulated"),
    ] = DeviceLibName.NVML
    hardware: Annotated[
        str,
        Field(
            description="with simulated: name of a profile, or a Hardware file; "
            "with declared: a DeviceInventory file"
        ),
    ] = ""
    nvml_library: Annotated[
        Path | None,
        Field(description="with nvml: path of libnvidia-ml.so.1; default: below the driver root"),
    ] = None
    driver_root: Annotated[
        str, Field(description="with nvml: where the driver's files lie on the host")
    ] = "/"
    host_root: Annotated[
        Path, Field(description="where this process sees the host's / (for /sys, /dev and /proc)")
    ] = Path("/")
    forms: Annotated[
        str,
        Field(
            description=f"forms in which cards may be offered, some of {','.join(FORM_WORDS)}; "
            "the node's NodePolicy chooses among them"
        ),
    ] = form_words(PREPARABLE)
    runtime_dir: Annotated[
        Path,
        Field(
            description="folder for what shares need until the next boot, the same path for agent, "
            "host and container runtime"
        ),
    ] = Path("/run/gpudra")
    hami_core_library: Annotated[
        str,
        Field(
            description="libvgpu.so of HAMi-core, the same path for agent and host; "
            "empty: the node has no isolation hami-core"
        ),
    ] = ""
    mps_control: Annotated[
        str,
        Field(
            description="nvidia-cuda-mps-control below the driver root; "
            "empty: the node has no isolation mps"
        ),
    ] = ""
    kubeconfig: Annotated[
        Path | None,
        Field(description="how to reach the API server; without it the pod's service account"),
    ] = None
    kubelet_root: Annotated[
        Path, Field(description="the kubelet's --root-dir; plugins/ and plugins_registry/ in it")
    ] = Path("/var/lib/kubelet")
    cdi_dir: Annotated[
        Path, Field(description="folder from which the container runtime reads CDI files")
    ] = Path("/var/run/cdi")
    state_dir: Annotated[
        Path | None,
        Field(
            description="folder of the checkpoint; default: <kubelet-root>/plugins/<driver-name>"
        ),
    ] = None
    http_endpoint: Annotated[
        str, Field(description="HOST:PORT of /healthz, /readyz and /metrics; empty = none")
    ] = "127.0.0.1:8080"
    instance_uid: Annotated[
        str,
        Field(description="uid of this pod; lets two instances run during a rolling update"),
    ] = ""
    orphan_grace: Annotated[
        float,
        Field(
            ge=0,
            description="seconds that a claim gone from the API keeps its devices, so that the "
            "kubelet can end its containers first",
        ),
    ] = 120.0
    usage_period: Annotated[
        float,
        Field(
            ge=0,
            description="seconds between looks at what claims use of their devices; 0 = none",
        ),
    ] = 10.0
    node_status: Annotated[
        bool,
        Field(
            description="true: keep labels, the condition GPUsReady and the start-up taint of the "
            "node; false: leave the node to another agent"
        ),
    ] = True
    feature_labels: Annotated[
        bool,
        Field(description="true: label the node under the names of GPU feature discovery, too"),
    ] = False
    log_level: Annotated[LogLevel, Field(description="debug, info, warning or error")] = (
        LogLevel.INFO
    )
    log_format: Annotated[LogFormat, Field(description="json or console")] = LogFormat.JSON

    @field_validator("node_name")
    @classmethod
    def _node(cls, value: str) -> str:
        return _checked(check_dns_subdomain, value, "node-name")

    @field_validator("driver_name")
    @classmethod
    def _driver(cls, value: str) -> str:
        return _checked(check_driver_name, value, "driver-name")

    @field_validator("forms")
    @classmethod
    def _forms(cls, value: str) -> str:
        return form_words(_checked_forms(value))

    @field_validator("http_endpoint")
    @classmethod
    def _endpoint(cls, value: str) -> str:
        if value:
            host, colon, port = value.rpartition(":")
            if not (colon and host and port.isdigit() and int(port) < 65536):
                raise ValueError(f"{value!r} is not HOST:PORT")
        return value

    @field_validator("kubelet_root", "cdi_dir", "state_dir", "runtime_dir")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        # Kubelet and runtime resolve paths from their own working folder.
        return value.absolute() if value is not None else None

    @field_validator("hami_core_library")
    @classmethod
    def _library(cls, value: str) -> str:
        # The container runtime mounts it; it has no working folder that people would know.
        if value and not Path(value).is_absolute():
            raise ValueError(f"{value!r} is not absolute")
        return value

    @model_validator(mode="after")
    def _hardware(self) -> Self:
        needs_file = (DeviceLibName.SIMULATED, DeviceLibName.DECLARED)
        if self.device_lib is DeviceLibName.SIMULATED and not self.hardware:
            raise ValueError("--device-lib simulated needs --hardware PROFILE or FILE")
        if self.device_lib is DeviceLibName.DECLARED and not self.hardware:
            raise ValueError("--device-lib declared needs --hardware FILE")
        if self.device_lib not in needs_file and self.hardware:
            raise ValueError("--hardware goes with --device-lib simulated or declared only")
        return self

    @property
    def kinds(self) -> frozenset[DeviceKind]:
        """The forms in which cards may be offered."""
        return parse_forms(self.forms)

    @property
    def sharing(self) -> SharingSettings:
        """How shares are kept apart here."""
        launch = MpsLaunch(program=self.mps_control, root=self.driver_root)
        return SharingSettings(
            runtime_dir=self.runtime_dir,
            hami_library=self.hami_core_library,
            mps=launch if self.mps_control else None,
        )

    @property
    def state_folder(self) -> Path:
        """Where the checkpoint lies."""
        return self.state_dir or self.kubelet_root / "plugins" / self.driver_name

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Host and port of the status server."""
        if not self.http_endpoint:
            return None
        host, _, port = self.http_endpoint.rpartition(":")
        return host.strip("[]"), int(port)


def _checked_forms(value: str) -> frozenset[DeviceKind]:
    try:
        return parse_forms(value)
    except InputError as error:
        raise ValueError(f"{error.what}; {error.hint}") from error


def _checked(check: Any, value: str, field: str) -> str:
    try:
        return str(check(value, field))
    except InputError as error:
        raise ValueError(error.what) from error


def variable(field: str) -> str:
    """The environment variable of a field."""
    return PREFIX + field.upper()


def flag(field: str) -> str:
    """The flag of a field."""
    return "--" + field.replace("_", "-")


def parser() -> argparse.ArgumentParser:
    """The command line, made from the model."""
    found = argparse.ArgumentParser(
        prog="gpudra-kubelet-plugin",
        description="Node agent of gpudra: publishes this node's GPUs and prepares claims for the "
        "kubelet. Every flag is also an environment variable: --node-name is GPUDRA_NODE_NAME.",
        epilog="example: gpudra-kubelet-plugin --node-name n1 --device-lib simulated "
        "--hardware dgx-h100-8x80 --kubeconfig ~/.kube/config",
        argument_default=argparse.SUPPRESS,
    )
    found.add_argument("--version", action="store_true", help="print the version and end")
    for name, field in Options.model_fields.items():
        default = "" if field.is_required() else _shown(field.default)
        found.add_argument(
            flag(name),
            metavar=name.upper(),
            help=f"{field.description} (env {variable(name)}{default})",
        )
    return found


def _shown(default: object) -> str:
    return f", default {default}" if default not in (None, "") else ""


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Reads flags and variables.

    Raises:
        InputError: a value that cannot be used; all of them are named.
        SystemExit: argparse did not understand the flags (2), or ``--help`` was asked for.
    """
    given = {
        name: environment[variable(name)]
        for name in Options.model_fields
        if environment.get(variable(name))
    }
    given |= {
        name: value
        for name, value in vars(parser().parse_args(arguments)).items()
        if name != "version"
    }
    try:
        return Options.model_validate(given)
    except ValidationError as error:
        raise _input_error(error) from error


def _input_error(error: ValidationError) -> InputError:
    texts = []
    for item in error.errors(include_url=False):
        field = str(item["loc"][0]) if item["loc"] else ""
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "missing":
            message = f"is required; set {flag(field)} or {variable(field)}"
        texts.append(f"{flag(field)}: {message}" if field else message)
    return InputError("; ".join(texts))
