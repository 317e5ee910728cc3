# SPDX-License-Identifier: Apache-2.0
"""Options from the command line and from the environment."""

import pytest

from gpudra.api.errors import InputError
from gpudra.driver.observability.logging import LogFormat
from gpudra.driver.observability.options import (
    EnvironmentParser,
    add_process_arguments,
    process_options,
    split_address,
)


def parser() -> EnvironmentParser:
    """The options of a process, one required and one flag."""
    made = EnvironmentParser(prog="agent")
    add_process_arguments(made, http_endpoint="127.0.0.1:8080")
    made.add_argument("--node-name", required=True, help="name of the node")
    made.add_argument("--keep", action="store_true", help="keep everything")
    made.add_argument("--count", type=int, default=1, help="how many")
    return made


def test_variables_stand_in_for_options() -> None:
    """Values, flags and required options may all come from the environment, with their types."""
    args = parser().parse_environment(
        [],
        {
            "GPUDRA_NODE_NAME": "n1",
            "GPUDRA_KEEP": "true",
            "GPUDRA_COUNT": "3",
            "GPUDRA_LOG_FORMAT": "console",
            "OTHER": "x",
        },
    )
    assert (args.node_name, args.keep, args.count) == ("n1", True, 3)
    assert process_options(args).log_format is LogFormat.CONSOLE


def test_the_command_line_wins() -> None:
    """A variable is only a default."""
    args = parser().parse_environment(
        ["--node-name", "b", "--log-level", "debug"],
        {"GPUDRA_NODE_NAME": "a", "GPUDRA_LOG_LEVEL": "error"},
    )
    assert (args.node_name, args.log_level) == ("b", "debug")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("GPUDRA_LOG_LEVEL", "loud", "invalid choice"),
        ("GPUDRA_COUNT", "many", "invalid int value"),
        ("GPUDRA_KEEP", "perhaps", "say true or false"),
    ],
)
def test_a_variable_that_makes_no_sense_is_a_usage_error(
    name: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the variable, its value and what is wrong."""
    with pytest.raises(SystemExit) as stopped:
        parser().parse_environment(["--node-name", "a"], {name: value})
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert f"{name}={value!r}" in message
    assert said in message


def test_the_help_names_the_variables(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever reads ``--help`` learns the variable of each option."""
    with pytest.raises(SystemExit):
        parser().parse_environment(["--help"], {})
    assert "[$GPUDRA_HTTP_ENDPOINT]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        (":8080", ("", 8080)),
        ("[::1]:0", ("::1", 0)),
        ("host:65535", ("host", 65535)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    """Host and port, every address, and bracketed IPv6."""
    assert split_address(text) == address


@pytest.mark.parametrize("text", ["", "8080", "host:", "host:x", "host:70000", "::1:80", "host:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    """The message shows the text and an example."""
    with pytest.raises(InputError, match=r"is not HOST:PORT.*:8080"):
        split_address(text)
