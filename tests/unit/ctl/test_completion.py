# SPDX-License-Identifier: Apache-2.0
"""Completions, asked of a real bash; and the scripts of the other shells as far as text tells."""

import re
import subprocess
from pathlib import Path

import pytest

from gpudra.controller.ctl import completion
from gpudra.controller.ctl.commandtree import Node, command_tree
from gpudra.controller.ctl.main import COMMANDS, main


@pytest.fixture(scope="module")
def tree() -> Node:
    """All commands."""
    return command_tree()


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script for bash in a file."""
    path = tmp_path_factory.mktemp("completion") / "gpudra.bash"
    path.write_text(completion.script("bash"))
    return path


def completed(script: Path, *words: str) -> set[str]:
    """What bash offers for the last word."""
    code = (
        f'source {script}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _gpudra; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-uc", code, "bash", "gpudra", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("dev",), {"devices"}),
        (("doc",), {"doctor"}),
        (("devices", "--fr"), {"--free"}),
        (("devices", "-o", ""), {"table", "wide", "json", "yaml"}),
        (("devices", "-o", "y"), {"yaml"}),
        (("devices", "--free", "--output", "j"), {"json"}),
        (("devices", "--node", ""), set()),
        (("local", ""), {"up", "status", "down", "-h", "--help"}),
        (("local", "up", "--agent-a"), {"--agent-as"}),
        (("completion", "f"), {"fish"}),
        (("nonsense", "--fr"), set()),
    ],
)
def test_bash_offers_what_fits(bash: Path, words: tuple[str, ...], offered: set[str]) -> None:
    """Commands, their options, values of options, sub-commands; nothing where nothing is known."""
    assert completed(bash, *words) == offered


def test_bash_offers_every_command_and_option(bash: Path, tree: Node) -> None:
    """Each command of the table, and of a command all that its parser knows."""
    names = {command.name for command in COMMANDS}
    assert names <= completed(bash, "")
    for node in tree.walk():
        offered = completed(bash, *node.path, "")
        wanted = {flag for option in node.options for flag in option.flags}
        assert wanted <= offered, node.path


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_every_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is printed, says how to load it, and names every command."""
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert f"gpudra completion {shell}" in text
    for command in COMMANDS:
        assert re.search(rf"\b{command.name}\b", text)
    assert text.count("'") % 2 == text.count("\\'") % 2


def test_an_unknown_shell_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, the shells that exist in the message."""
    with pytest.raises(SystemExit) as stopped:
        main(["completion", "csh"])
    assert stopped.value.code == 2
    assert "bash" in capsys.readouterr().err


def test_options_of_the_tree_are_those_of_the_parsers(tree: Node) -> None:
    """Help is complete: every option of every command says what it is for."""
    silent = [
        (" ".join(node.path), option.flags or option.metavar)
        for node in tree.walk()
        for option in node.options
        if not option.help
    ]
    assert silent == []
