# SPDX-License-Identifier: Apache-2.0
"""``gpudra completion SHELL``: a script with which the shell completes commands, options and values.

The scripts are made from the parsers and need no gpudra to run while one types: everything that they
offer is written in them. Where neither an option nor a value is known, the shell offers files.
"""

import argparse
import shlex
from collections.abc import Iterable, Iterator

from gpudra.controller.ctl.commandtree import Node, Option, command_tree

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See gpudra.controller.ctl.main."""
    parser.add_argument("shell", choices=SHELLS, help="for which shell")


def run(args: argparse.Namespace) -> int:
    """See gpudra.controller.ctl.main."""
    print(script(args.shell), end="")
    return 0


def script(shell: str) -> str:
    """The script for a shell of `SHELLS`."""
    makers = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    return "\n".join(makers[shell](command_tree())) + "\n"


def _words(node: Node) -> Iterator[str]:
    """What may come next after a command, positional values included."""
    yield from (child.path[-1] for child in node.children)
    for option in node.options:
        yield from option.flags or option.choices


def _valued(node: Node) -> Iterator[Option]:
    return (option for option in node.options if option.flags and option.metavar)


# --- bash and zsh --------------------------------------------------------------------------------


def _bash(tree: Node) -> Iterator[str]:
    yield "# bash completion of gpudra: source <(gpudra completion bash)"
    yield from _function(tree)
    yield "complete -o default -F _gpudra gpudra kubectl-gpudra"


def _zsh(tree: Node) -> Iterator[str]:
    yield "#compdef gpudra kubectl-gpudra"
    yield "# zsh completion of gpudra: source <(gpudra completion zsh)"
    yield "autoload -U +X bashcompinit && bashcompinit"
    yield from _function(tree)
    yield "complete -o default -F _gpudra gpudra kubectl-gpudra"


def _function(tree: Node) -> Iterator[str]:
    yield "_gpudra() {"
    yield '  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} path="" word i'
    yield "  for ((i = 1; i < COMP_CWORD; i++)); do"
    yield "    word=${COMP_WORDS[i]}"
    yield '    case "$path/$word" in'
    yield f"      {_patterns(tree)}) path=$path/$word ;;"
    yield "    esac"
    yield "  done"
    yield "  COMPREPLY=()"
    yield '  case "$path $prev" in'
    for node in tree.walk():
        for option in _valued(node):
            patterns = "|".join(f"'{_path(node)} {flag}'" for flag in option.flags)
            values = " ".join(option.choices)
            reply = f'COMPREPLY=($(compgen -W {shlex.quote(values)} -- "$cur"))' if values else ":"
            yield f"    {patterns}) {reply}; return ;;"
    yield "  esac"
    yield '  case "$path" in'
    for node in tree.walk():
        words = shlex.quote(" ".join(_words(node)))
        yield f"    '{_path(node)}') COMPREPLY=($(compgen -W {words} -- \"$cur\")) ;;"
    yield "  esac"
    yield "}"


def _patterns(tree: Node) -> str:
    return "|".join(_path(node) for node in tree.walk() if node.path)


def _path(node: Node) -> str:
    return "".join(f"/{word}" for word in node.path)


# --- fish ----------------------------------------------------------------------------------------


def _fish(tree: Node) -> Iterator[str]:
    yield "# fish completion of gpudra: gpudra completion fish | source"
    for program in ("gpudra", "kubectl-gpudra"):
        for node in tree.walk():
            condition = _condition(node)
            for child in node.children:
                name, text = child.path[-1], _quoted(child.help)
                yield f"complete -c {program} -f -n {condition} -a {name} -d {text}"
            for option in node.options:
                yield f"complete -c {program} -n {condition} {' '.join(_flags(option))}"


def _condition(node: Node) -> str:
    if not node.path:
        return "__fish_use_subcommand"
    seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in node.path)
    later = " ".join(child.path[-1] for child in node.children)
    return _quoted(f"{seen}; and not __fish_seen_subcommand_from {later}" if later else seen)


def _flags(option: Option) -> Iterable[str]:
    for flag in option.flags:
        yield f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
    if option.choices:
        yield f"-f -a {_quoted(' '.join(option.choices))}"
    if option.flags and option.metavar:
        yield "-r"
    if option.help:
        yield f"-d {_quoted(option.help)}"


def _quoted(text: str) -> str:
    """As fish quotes: backslash and apostrophe are escaped inside apostrophes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
