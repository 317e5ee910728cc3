# SPDX-License-Identifier: Apache-2.0
"""The whole command line as data, read off the parsers: for completions and for docs/cli.md.

Imports the module of every command, so nothing but those two calls it.
"""

import argparse
import importlib
from collections.abc import Iterator
from dataclasses import dataclass

from gpudra.controller.ctl import main


@dataclass(frozen=True, slots=True)
class Option:
    """One option or positional argument.

    Attributes:
        flags: ``-o``, ``--output``; empty for a positional argument.
        metavar: what its value is called; empty for a switch.
        choices: the values that it takes; empty: any.
        help: its text.
        default: as the help would show it.
    """

    flags: tuple[str, ...]
    metavar: str
    choices: tuple[str, ...]
    help: str
    default: str


@dataclass(frozen=True, slots=True)
class Node:
    """A command.

    Attributes:
        path: its words after the program's name.
        help: one line.
        options: its own.
        children: its sub-commands.
        examples: without the program's name.
    """

    path: tuple[str, ...]
    help: str
    options: tuple[Option, ...]
    children: tuple["Node", ...]
    examples: tuple[str, ...] = ()

    def walk(self) -> Iterator["Node"]:
        """This one and everything below it."""
        yield self
        for child in self.children:
            yield from child.walk()


def command_tree() -> Node:
    """All commands."""
    children = tuple(_command(command) for command in main.COMMANDS)
    top = _options(main.build_parser("gpudra"))
    return Node(path=(), help="", options=top, children=children)


def _command(command: main.Command) -> Node:
    module = importlib.import_module(command.module)
    parser = argparse.ArgumentParser(prog=f"gpudra {command.name}")
    module.add_arguments(parser)
    return _node((command.name,), command.help, parser, command.examples)


def _node(
    path: tuple[str, ...],
    text: str,
    parser: argparse.ArgumentParser,
    examples: tuple[str, ...] = (),
) -> Node:
    children = []
    for action in parser._actions:  # noqa: SLF001 - argparse tells it nowhere else
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            texts = {one.dest: one.help or "" for one in action._choices_actions}  # noqa: SLF001
            for name, child in action.choices.items():
                children.append(_node((*path, name), texts.get(name, ""), child))
    return Node(path, text, _options(parser), tuple(children), examples)


def _options(parser: argparse.ArgumentParser) -> tuple[Option, ...]:
    return tuple(
        _option(action)
        for action in parser._actions  # noqa: SLF001
        if not isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
        and action.help != argparse.SUPPRESS
    )


def _option(action: argparse.Action) -> Option:
    takes_value = action.nargs != 0
    name = action.metavar or action.dest.upper()
    metavar = " ".join(name) if isinstance(name, tuple) else str(name)
    shown = action.default not in (None, False, argparse.SUPPRESS, [], ())
    return Option(
        flags=tuple(action.option_strings),
        metavar=metavar if takes_value else "",
        choices=tuple(map(str, action.choices or ())),
        help=" ".join(_expanded(action).split()),
        default=str(action.default) if shown and takes_value else "",
    )


def _expanded(action: argparse.Action) -> str:
    text = action.help or ""
    return text.replace("%(default)s", str(action.default)).replace("%%", "%")
