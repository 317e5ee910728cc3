# SPDX-License-Identifier: Apache-2.0
"""The frame of the ``gpudra`` command: dispatch, laziness, exit codes, errors."""

import argparse
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from gpudra.api.errors import ClaimError, GpudraError
from gpudra.controller.ctl import main as ctl
from gpudra.controller.ctl.main import COMMANDS, Command


class FakeModule:
    """A command whose run does what the test says."""

    def __init__(self, outcome: int | BaseException) -> None:
        self.outcome = outcome
        self.seen: argparse.Namespace | None = None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """One option."""
        parser.add_argument("--count", type=int, default=1)

    def run(self, args: argparse.Namespace) -> int:
        """Remembers the arguments, then returns or raises."""
        self.seen = args
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


Installer = Callable[[int | BaseException], FakeModule]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Installer:
    """Makes ``gpudra fake`` run a given module."""

    def put(outcome: int | BaseException) -> FakeModule:
        module = FakeModule(outcome)
        command = Command("fake", "fake.module", "do nothing", ("fake --count 2",))
        monkeypatch.setattr(ctl, "COMMANDS", (command,))
        monkeypatch.setattr(ctl, "_load", lambda _: module)
        return module

    return put


def in_process(code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter, as a person's shell would."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_exit_code_is_that_of_the_command(install: Installer, code: int) -> None:
    """0, 1 and 3 pass through; arguments reach the command."""
    module = install(code)
    assert ctl.main(["fake", "--count", "7"]) == code
    assert module.seen is not None
    assert module.seen.count == 7


@pytest.mark.parametrize("words", [["nonsense"], ["fake", "--nonsense"], ["fake", "--count", "x"]])
def test_wrong_usage_ends_with_2(
    install: Installer, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown command, option or value is usage, told on stderr."""
    install(0)
    with pytest.raises(SystemExit) as stopped:
        ctl.main(words)
    assert stopped.value.code == 2
    assert "usage: gpudra" in capsys.readouterr().err


def test_no_command_shows_the_help_and_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    """Just ``gpudra`` tells what there is."""
    assert ctl.main([]) == 2
    assert "examples:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "error", [ClaimError("two\nlines", obj="claim default/a", hint="do that"), GpudraError("bad")]
)
def test_a_known_error_is_one_line_without_traceback(
    install: Installer, error: GpudraError, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message goes to stderr, prefixed by the program; stdout stays empty; exit code 1."""
    install(error)
    assert ctl.main(["fake"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"gpudra: {' '.join(str(error).splitlines())}\n"


def test_an_interrupt_is_not_a_traceback(
    install: Installer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends with 130 and one word."""
    install(KeyboardInterrupt())
    assert ctl.main(["fake"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    """``gpudra … | head`` leaves no complaint of Python."""
    code = (
        "import sys; from gpudra.controller.ctl import main as m\n"
        "class M:\n"
        "  def add_arguments(self, p): pass\n"
        "  def run(self, a):\n"
        "    print('x' * 10_000_000); return 0\n"
        "m._load = lambda c: M()\n"
        "sys.exit(m.main(['devices']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait() == ctl.PIPE_CLOSED
    assert errors == b""


def test_help_and_version_import_nothing_heavy() -> None:
    """``gpudra --help`` loads no module of a command, no API client and no YAML."""
    code = (
        "import sys, json; from gpudra.controller.ctl.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print('\\n' + json.dumps(sorted(sys.modules)))\n"
    )
    loaded = json.loads(in_process(code).stdout.splitlines()[-1])
    heavy = (
        "aiohttp",
        "asyncio",
        "dataclasses",
        "grpc",
        "kubernetes",
        "numpy",
        "yaml",
        "structlog",
    )
    assert [name for name in loaded if name.split(".")[0] in heavy] == []
    assert [name for name in loaded if name.startswith("gpudra.")] == [
        "gpudra.api",
        "gpudra.api.errors",
        "gpudra.controller",
        "gpudra.controller.ctl",
        "gpudra.controller.ctl.main",
    ]


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    """``--version`` prints name and number."""
    with pytest.raises(SystemExit) as stopped:
        ctl.main(["--version"])
    assert stopped.value.code == 0
    assert re.fullmatch(r"gpudra \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


def test_called_as_a_plugin_of_kubectl_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ``kubectl-gpudra`` its help shows ``kubectl gpudra``."""
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kubectl-gpudra"])
    ctl.main([])
    assert "usage: kubectl gpudra" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_row_names_a_real_command(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """The module exists, has both functions, a help text, and its examples parse."""
    module = importlib.import_module(command.module)
    assert callable(module.run)
    with pytest.raises(SystemExit) as stopped:
        ctl.main([command.name, "--help"])
    assert stopped.value.code == 0
    assert f"gpudra {command.examples[0]}" in capsys.readouterr().out
    parser = ctl.build_parser("gpudra", command, module)
    for example in command.examples:
        if not example.endswith("--help"):
            assert parser.parse_args(example.split()).command == command.name
