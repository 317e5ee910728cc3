# SPDX-License-Identifier: Apache-2.0
"""``docs/cli.md`` from the parsers, and the shapes of what programs read; used by ``tools.gen_docs``."""

from collections.abc import Iterator

from gpudra.controller.ctl.commandtree import Node, Option, command_tree

HEAD = """\
# The gpudra command

Made by `python -m tools.gen_docs` from the commands themselves; do not edit.

`gpudra` is also `kubectl gpudra`: the program `kubectl-gpudra` is installed beside it, and
`deploy/krew/gpudra.yaml` is its manifest for krew. It reads a cluster with the rights of your kubeconfig
and changes nothing, but for `cordon`, `uncordon` and `release`.

- **Exit codes**: 0 done, 1 error, 2 wrong usage, 3 "no" (the question was answered, and the answer is
  that it cannot be satisfied). What went wrong is one line on standard error.
- **Colours** are for terminals; `NO_COLOR=1` turns them off there, too.
- **`--watch`** prints again whenever something changes, until Ctrl-C.
- **Completion**: `source <(gpudra completion bash)` (or `zsh`) in your shell's start-up file,
  `gpudra completion fish | source` in fish's.
- **Speed**: `python -m tests.bench.bench_cli` measures the start, and the answers for 500 nodes.

"""

SHAPES_HEAD = """\
## Output for programs

`-o json` and `-o yaml` have these shapes. Keys are only ever added; a program should ignore those that it
does not know. Kubernetes objects always come as one `List` with `items`, also when there is one or none.
Notes and warnings go to standard error.
"""

SHAPES: dict[str, tuple[str, dict[str, str]]] = {
    "devices": (
        "`items`: one for each form of each card. `cards`: one for each card.",
        {
            "items[].driver, .pool, .device": "name of the device, as in allocation results",
            "items[].published": "false: a claim holds it, and no slice lists it any more",
            "items[].attributes, .capacity, .taints": "as in the ResourceSlice",
            "items[].heldBy[]": "`claim` (namespace/name), `request`, `adminAccess`, `consumers` (pods)",
            "cards[].pool, .gpu, .product": "the card",
            "cards[].state": "`free`, `whole`, `partitioned`, `shared` or `tainted`",
            "cards[].memory, .memoryHeld": "bytes: what the card has, what claims have of it",
            "cards[].computeHeld": "part of the card from 0 to 1; a share counts by its reservation",
            "cards[].free": "form -> bytes of the largest device of it that could be given out now",
            "cards[].heldBy, .taints, .devices": "texts, as the table shows them; names of its forms",
        },
    ),
    "claims": ("A `List` of ResourceClaims.", {}),
    "doctor": (
        "Exit code 1 when `healthy` is false.",
        {
            "healthy": "whether no finding is an error",
            "driver": "name of the DRA driver that was looked at",
            "findings[].check": "stable name: `api-versions`, `crds`, `features`, `permissions`, "
            "`clock`, `device-classes`, `admission`, `agents`, `kubelet-registration`, `controller`, "
            "`nodes`, `driver`, `device-plugin`, `slices`, `cdi`, `health`, `policies`, "
            "`managed-mode`, `reading`",
            "findings[].status": "`ok`, `warning`, `error`, or `unknown` where a right is missing",
            "findings[].message, .fix": "what was found, what to do (empty when all is well)",
            "findings[].objects": "names of what it is about",
        },
    ),
    "explain": ("See [explain.md](explain.md).", {}),
    "allocate": ("See [allocator.md](allocator.md).", {}),
    "slices": ("A `List` of ResourceSlices.", {}),
    "gather": (
        "The archive's `manifest.json`.",
        {
            "layout": "1; changes when files move",
            "createdAt, versions": "when, by which gpudra, from which Kubernetes",
            "files": "paths in the archive",
            "problems": "what could not be had, and why",
        },
    ),
}


def page() -> str:
    """The page as it should be."""
    tree = command_tree()
    parts = [HEAD, "## Commands\n", *_overview(tree)]
    for command in tree.children:
        parts += _command(command)
    parts += [SHAPES_HEAD, *_shapes()]
    return "\n".join(parts).rstrip() + "\n"


def _overview(tree: Node) -> Iterator[str]:
    yield "| command | |"
    yield "|---|---|"
    for command in tree.children:
        name = command.path[0]
        yield f"| [`{name}`](#{name}) | {_cell(command.help)} |"
    yield ""


def _command(command: Node) -> Iterator[str]:
    yield f"### {command.path[0]}\n"
    yield f"{command.help[:1].upper()}{command.help[1:]}.\n"
    for node in command.walk():
        if node.path != command.path:
            yield f"`gpudra {' '.join(node.path)}`: {node.help}\n"
        rows = [_row(option) for option in node.options if "--help" not in option.flags]
        if rows:
            yield "| argument | default | is |"
            yield "|---|---|---|"
            yield from rows
            yield ""
    if command.examples:
        yield "```sh"
        yield from (f"gpudra {example}" for example in command.examples)
        yield "```\n"


def _row(option: Option) -> str:
    values = "\\|".join(option.choices) or option.metavar
    name = ", ".join(option.flags) or values
    value = f" {values}" if option.flags and option.metavar else ""
    default = f"`{_cell(option.default)}`" if option.default else ""
    return f"| `{name}{value}` | {default} | {_cell(option.help)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _shapes() -> Iterator[str]:
    for name, (text, keys) in SHAPES.items():
        yield f"**{name}**: {text}\n"
        if keys:
            yield "| key | is |"
            yield "|---|---|"
            yield from (f"| `{key}` | {_cell(meaning)} |" for key, meaning in keys.items())
            yield ""
