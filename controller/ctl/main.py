# SPDX-License-Identifier: Apache-2.0
"""The ``gpudra`` command, also installed as ``kubectl-gpudra``.

Sub-commands are rows of `COMMANDS`; the module of a row is imported when its command is the one
that was typed, so that ``gpudra --help`` costs no more than Python itself. Every such module has
``add_arguments(parser)`` and ``run(args) -> int``.

Exit codes: 0 done, 1 error, 2 wrong usage, 3 "no" (the question was answered, and the answer is
that it cannot be satisfied). What a person or a cluster got wrong arrives as a `GpudraError` and
ends as one line on stderr; a traceback is a bug of ours.
"""

import argparse
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from gpudra.api.errors import GpudraError

OK = 0
ERROR = 1
USAGE = 2
UNSATISFIABLE = 3
# As shells report a process that a signal ended: 128 + SIGINT, 128 + SIGPIPE.
INTERRUPTED = 130
PIPE_CLOSED = 141


class Command(NamedTuple):
    """One sub-command.

    Attributes:
        name: the word that people type.
        module: where it is implemented.
        help: one line for the list of commands.
        examples: shown at the end of its own help, without the leading ``gpudra``.
    """

    name: str
    module: str
    help: str
    examples: tuple[str, ...]


class CommandModule(Protocol):
    """What the module of a command offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare options and positional arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; the exit code. Raises GpudraError for what the user can understand."""


COMMANDS: tuple[Command, ...] = (
    Command(
        "devices",
        "gpudra.controller.ctl.devices",
        "show the GPUs of the cluster and who holds them",
        (
            "devices",
            "devices --node node-1 -o yaml",
            "devices --hardware dgx-h100-8x80 --topology",
            "devices --local",
        ),
    ),
    Command(
        "claims",
        "gpudra.controller.ctl.claims",
        "show ResourceClaims, the devices they got and who uses them",
        ("claims", "claims -n team-a -o json"),
    ),
    Command(
        "top",
        "gpudra.controller.ctl.top",
        "show what claims use of their GPUs, again and again",
        ("top", "top -n team-a --sort compute --once", "top -o json"),
    ),
    Command(
        "explain",
        "gpudra.controller.ctl.explain",
        "say why a claim or pod is pending, device by device",
        ("explain claim/training", "explain pod/training-0 -n team-a"),
    ),
    Command(
        "queues",
        "gpudra.controller.ctl.queues",
        "show the queues of managed mode, what each uses, and who waits",
        ("queues", "queues -o json"),
    ),
    Command(
        "whatif",
        "gpudra.controller.ctl.whatif",
        "say where pods would go in managed mode if they were submitted now",
        ("whatif -f gang.yaml", "whatif -f pod.yaml -o json"),
    ),
    Command(
        "defrag",
        "gpudra.controller.ctl.defrag",
        "show which pods could be moved so that waiting ones fit",
        ("defrag --plan", "defrag --plan --moves 2 -o json"),
    ),
    Command(
        "release",
        "gpudra.controller.ctl.release",
        "let pods go that wait for a managed mode that is not there any more",
        ("release --dry-run", "release -n team-a", "release --all"),
    ),
    Command(
        "allocate",
        "gpudra.controller.ctl.allocate",
        "answer claims from files alone, as the scheduler would",
        ("allocate -f objects.yaml --node node-1 -o json",),
    ),
    Command(
        "validate",
        "gpudra.controller.ctl.validate",
        "say what of a file a node would refuse, before it is sent",
        ("validate -f claim.yaml", "validate -f claim.yaml --allow mps,hami-core"),
    ),
    Command(
        "convert",
        "gpudra.controller.ctl.convert",
        "rewrite files made for HAMi, KAI Scheduler, Volcano or Kueue",
        (
            "convert -f job.yaml",
            "convert -f job.yaml --hardware dgx-h100-8x80 -o json",
            "convert -f job.yaml --managed --from-cluster",
        ),
    ),
    Command(
        "slices",
        "gpudra.controller.ctl.slices",
        "print the ResourceSlices that a node with this hardware would publish",
        ("slices --hardware dgx-h100-8x80 -o yaml",),
    ),
    Command(
        "cordon",
        "gpudra.controller.ctl.cordon",
        "keep new claims off one GPU",
        (
            "cordon gpu-0f01d861-1cbf",
            "cordon GPU-0f01d861-80c1-5881-8bfc-0ebb3e92ac5e --evict --reason broken-fan",
        ),
    ),
    Command(
        "uncordon",
        "gpudra.controller.ctl.uncordon",
        "let claims have a GPU again",
        ("uncordon gpu-0f01d861-1cbf",),
    ),
    Command(
        "doctor",
        "gpudra.controller.ctl.doctor.cli",
        "say what is wrong with the installation and how to mend it",
        ("doctor", "doctor -o json", "doctor --driver gpu.example.com"),
    ),
    Command(
        "gather",
        "gpudra.controller.ctl.gather",
        "pack what support needs to know into one file, without secrets",
        ("gather", "gather --file report.tar.gz --node node-1", "gather --local --no-cluster"),
    ),
    Command(
        "simulate",
        "gpudra.controller.ctl.simulate.cli",
        "run a workload against a simulated cluster of GPUs",
        (
            "simulate --nodes nodes.csv --pods pods.csv",
            "simulate --nodes nodes.csv --pods pods.csv --policy gpudra --policy fgd --repeat 10",
        ),
    ),
    Command(
        "completion",
        "gpudra.controller.ctl.completion",
        "print a script that completes commands, options and values in a shell",
        ("completion bash", "completion zsh", "completion fish"),
    ),
    Command(
        "local",
        "gpudra.controller.ctl.local.cli",
        "a real Kubernetes on this machine: up, status, down",
        ("local up", "local up --nodes 2", "local status -o json", "local down"),
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    # A large cluster is hundreds of thousands of objects without a cycle; looking for some again
    # and again would take half of the time of an answer.
    gc.set_threshold(200_000, 20, 50)
    try:
        code = _run(words, _program_name())
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return code


def _run(words: list[str], program: str) -> int:
    chosen = _chosen(words)
    module = _load(chosen) if chosen else None
    parser = build_parser(program, chosen, module)
    args = parser.parse_args(words)
    if module is None:
        parser.print_help()
        return USAGE
    try:
        return module.run(args)
    except GpudraError as error:
        print(f"{program}: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return ERROR


def build_parser(
    program: str, chosen: Command | None = None, module: CommandModule | None = None
) -> argparse.ArgumentParser:
    """The parser of the whole command line; only the chosen command knows its arguments."""
    parser = argparse.ArgumentParser(
        prog=program,
        description="GPUs on Kubernetes through Dynamic Resource Allocation.",
        epilog=_epilog(
            program, [command.examples[0] for command in COMMANDS], "COMMAND --help for more"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for command in COMMANDS:
        sub = commands.add_parser(
            command.name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            epilog=_epilog(program, command.examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if module is not None and command is chosen:
            module.add_arguments(sub)
    return parser


class _Version(argparse.Action):
    """``--version``: the metadata of the installed package is read only when asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:  # noqa: A002
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"gpudra {version('gpudra')}")
        parser.exit(OK)


def _chosen(words: Sequence[str]) -> Command | None:
    """The command that the first word names. Options before it have no values, so it is plain."""
    for word in words:
        if not word.startswith("-"):
            return next((command for command in COMMANDS if command.name == word), None)
    return None


def _load(command: Command) -> CommandModule:
    return cast("CommandModule", importlib.import_module(command.module))


def _program_name() -> str:
    called = Path(sys.argv[0]).name
    return "kubectl gpudra" if called == "kubectl-gpudra" else "gpudra"


def _epilog(program: str, examples: Sequence[str], note: str = "") -> str:
    lines = ["examples:", *(f"  {program} {example}" for example in examples)]
    if note:
        lines += ["", f"{program} {note}"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
