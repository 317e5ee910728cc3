# SPDX-License-Identifier: Apache-2.0
"""Flags and variables of the agent."""

from pathlib import Path

import pytest

from gpudra.api.errors import InputError
from gpudra.kubelet_plugin.__main__ import main
from gpudra.kubelet_plugin.options import Options, flag, parse, parser, variable

GOOD = ["--node-name", "n1", "--device-lib", "simulated", "--hardware", "l4-4x"]


def test_defaults_are_those_of_a_node() -> None:
    """Paths of kubelet and runtime; state beside the plugin's socket."""
    found = parse(GOOD, {})
    assert found.driver_name == "gpu.gpudra.io"
    assert found.state_folder == Path("/var/lib/kubelet/plugins/gpu.gpudra.io")
    assert found.cdi_dir == Path("/var/run/cdi")
    assert found.http_address == ("127.0.0.1", 8080)


def test_a_flag_beats_its_variable_and_an_empty_variable_counts_as_unset() -> None:
    """So charts can set variables and people can try flags."""
    environment = {
        "GPUDRA_NODE_NAME": "from-env",
        "GPUDRA_CDI_DIR": "",
        "GPUDRA_LOG_LEVEL": "debug",
    }
    found = parse(GOOD, environment)
    assert (found.node_name, found.log_level) == ("n1", "debug")
    assert found.cdi_dir == Path("/var/run/cdi")
    assert parse(GOOD[2:], environment).node_name == "from-env"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--node-name: is required; set --node-name or GPUDRA_NODE_NAME"),
        ([*GOOD, "--node-name", "Bad_Name"], "--node-name: 'Bad_Name' is not a DNS subdomain"),
        ([*GOOD, "--driver-name", "x" * 64], "--driver-name:"),
        ([*GOOD, "--http-endpoint", "8080"], "--http-endpoint: '8080' is not HOST:PORT"),
        ([*GOOD, "--orphan-grace", "-1"], "--orphan-grace:"),
        (["--node-name", "n", "--device-lib", "simulated"], "needs --hardware"),
        (
            ["--node-name", "n", "--hardware", "x"],
            "goes with --device-lib simulated or declared only",
        ),
        (["--node-name", "n", "--device-lib", "magic"], "--device-lib:"),
    ],
)
def test_wrong_values_are_named_by_flag(arguments: list[str], message: str) -> None:
    """Each message says which flag."""
    with pytest.raises(InputError) as caught:
        parse(arguments, {})
    assert message in str(caught.value)


def test_every_option_is_in_the_help_with_its_variable() -> None:
    """Nothing is settable in secret."""
    text = " ".join(parser().format_help().split())
    for name in Options.model_fields:
        assert flag(name) in text
        assert variable(name) in text


def test_version_and_usage_errors_end_as_commands_do(capsys: pytest.CaptureFixture[str]) -> None:
    """0 and the version; 2 and one line."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("gpudra-kubelet-plugin ")
    assert main(["--device-lib", "magic"]) == 2
    assert "--device-lib" in capsys.readouterr().err
