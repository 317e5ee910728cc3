# SPDX-License-Identifier: Apache-2.0
"""``gpudra whatif -f FILE``: where pods would go if they were submitted to managed mode now, or why not.

Nothing is created. The answer is that of the plan itself, on the cluster as it is at the moment.
"""

import argparse
import sys
import time
from typing import Any

from gpudra.controller.ctl import managedview, printers

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See gpudra.controller.ctl.main."""
    parser.add_argument(
        "-f", "--file", action="append", metavar="FILE", dest="files", required=True,
        help="Pods, Jobs, a PodGroup, claims and templates; '-' is standard input",
    )  # fmt: skip
    managedview.add_arguments(parser)
    printers.add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Answers; 0 when they would be placed, 3 when they would wait.

    Raises:
        InputError: a file cannot be used, or asks nothing.
        ApiError: the server refused or did not answer.
    """
    from gpudra.controller.ctl.objects import load_objects
    from gpudra.controller.managed.answers import what_if_row
    from gpudra.controller.managed.question import read_question

    documents = [source.raw for source in load_objects(args.files).sources]
    found = managedview.read(args)
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    now = time.time()
    question = read_question(
        documents,
        lambda namespace, name: found.templates.get((namespace, name)),
        now=now,
        queue_of=lambda namespace: found.default_queues.get(namespace, ""),
    )
    answer = what_if_row(found.state.what_if(question.pods, question.claims, question.group, now))
    if args.output == printers.TABLE:
        print(text_of(answer), end="")
    else:
        printers.print_data(answer, args.output)
    return 0 if answer["fits"] else 3


def text_of(answer: Row) -> str:
    """The answer as lines."""
    lines = []
    if answer["fits"]:
        amounts = ", ".join(f"{text} {name}" for name, text in sorted(answer["amounts"].items()))
        lines.append(
            f"would be placed now in queue {answer['queue']}, charged {amounts or 'nothing'}"
        )
        lines += [f"  pod {pod['name']} on node {pod['node']}" for pod in answer["pods"]]
        for claim in answer["claims"]:
            for one in claim["devices"]:
                consumed = "".join(f" {k}={v}" for k, v in one.get("consumed", {}).items())
                lines.append(f"  claim {claim['name']}: {one['pool']}/{one['device']}{consumed}")
    else:
        place = f" at place {answer['position']}" if answer["position"] else ""
        lines.append(f"would wait in queue {answer['queue']}{place}: {answer['reason']}")
        lines.append(f"  because: {answer['message']}")
    for one in answer["victims"]:
        freed = ", ".join(
            f"{n} {name}" for name, n in sorted(one["frees"].items()) if "/" not in name
        )
        lines.append(
            f"  would evict {one['namespace']}/{one['name']} ({one['reason']}: {one['message']}), "
            f"which frees {freed or 'nothing'}"
        )
    return "\n".join(lines) + "\n"
