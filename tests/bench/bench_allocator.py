# SPDX-License-Identifier: Apache-2.0
"""Ours and upstream's allocator over the same clusters: ``python -m tests.bench.bench_allocator``.

Both read the same JSON, which is drawn anew for each run. A round asks every node once, as a
scheduler's Filter does. *cold* builds our index from typed objects and asks all nodes; *warm* asks
again for another claim after one claim was allocated; upstream makes its allocator anew for each pod
and has no warm state but compiled expressions, so its best round counts.
"""

import argparse
import gc
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpudra.api.resource_v1 import ResourceClaim
from gpudra.controller.ctl.objects import ObjectSet, objects_of
from gpudra.driver.core.allocator import ClusterIndex
from tests.bench import allocator_scenes as scenes
from tests.support.oracle import Oracle

Obj = dict[str, Any]
ROUNDS = 3


def typed(scene: scenes.Scene) -> ObjectSet:
    """The scene as typed objects, the claim last."""
    raws = [obj for kind in scene.objects.values() for obj in kind]
    return objects_of([*raws, scene.claim])


def build(objects: ObjectSet) -> ClusterIndex:
    """Our index."""
    return ClusterIndex.of(
        nodes=objects.nodes,
        slices=objects.slices,
        classes=objects.classes,
        claims=objects.claims,
    )


def ours(
    objects: ObjectSet, redraws: Sequence[Sequence[ResourceClaim]], single: ResourceClaim
) -> dict[str, float]:
    """Seconds for a cold round, one after a single change, and one after every node changed.

    Args:
        objects: the scene; its last claim is asked for.
        redraws: several times the claims that hold devices, holding others.
        single: a claim that takes a device of one node.
    """
    claims = [objects.claims[-1]]
    cold, fitting = [], 0
    index = build(objects)
    for _ in range(ROUNDS):
        gc.collect()
        begin = time.process_time()
        index = build(objects)
        answers = index.everywhere(claims)
        cold.append(time.process_time() - begin)
        fitting = len(answers.fitting())
    changed = [_after(index, claims, redrawn) for redrawn in redraws if redrawn]
    warm = []
    for _ in range(ROUNDS):
        warm.append(_after(index, claims, [single]))
        index.remove_claim(single)
        index.everywhere(claims)
    return {
        "cold": min(cold),
        "changed": min(changed, default=0.0),
        "warm": min(warm),
        "fitting": fitting,
    }


def _after(
    index: ClusterIndex, claims: Sequence[ResourceClaim], changes: Sequence[ResourceClaim]
) -> float:
    """Seconds for asking all nodes again after changes.

    Taking note of what claims hold is left out: the scheduler does that on the side too.
    """
    for claim in changes:
        index.put_claim(claim)
    begin = time.process_time()
    index.everywhere(claims)
    return time.process_time() - begin


def theirs(oracle: Oracle, scene: scenes.Scene, rounds: int = ROUNDS) -> dict[str, float]:
    """Seconds of upstream's best round."""
    answer = oracle.ask(scene.question(repeat=rounds))
    if answer.get("panic"):
        raise RuntimeError(answer["panic"])
    return {"round": min(answer["roundNs"]) / 1e9, "fitting": answer["fitting"]}


def scene(
    name: str, maker: scenes.Maker, claim: Obj, state: str, nodes: int, seed: str
) -> tuple[scenes.Scene, list[list[ResourceClaim]], ResourceClaim]:
    """A scene, other states of its nodes, and a claim that takes one device."""
    objects = maker(random.Random(seed), nodes, state)
    redraws = []
    for number in range(ROUNDS):
        again = maker(random.Random(seed), nodes, state)["claims"]
        drawn = scenes.redraw(random.Random(f"{seed}/{number}"), again, objects, state)
        redraws.append(objects_of(drawn).claims)
    single = objects_of([scenes.single(objects)]).claims[0]
    return scenes.Scene(f"{name}, {state}", objects, claim), redraws, single


def measure(nodes: int, seed: str, only: str) -> None:
    """Prints the table."""
    print(
        "| claim, state of the nodes | nodes that fit | upstream | ours, cold | ratio | every node changed | ratio | one node changed | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with Oracle("allocate") as oracle:
        for name, maker, claim, states in scenes.CLAIMS:
            for state in states:
                if only not in f"{name}, {state}":
                    continue
                one, redraws, single = scene(name, maker, claim, state, nodes, seed)
                mine = ours(typed(one), redraws, single)
                other = theirs(oracle, one)
                if mine["fitting"] != other["fitting"]:
                    raise RuntimeError(f"{one.name}: {mine} against {other}")
                print(f"| {' | '.join(_row(one.name, mine, other))} |", flush=True)


def curve(sizes: Sequence[int], upstream_up_to: int) -> None:
    """The hopeless search: n partitions of one unit, half of the units but one, half wanted."""
    print("\n| partitions | upstream | ours, cold |")
    print("|---|---|---|")
    with Oracle("allocate") as oracle:
        for size in sizes:
            units = size // 2 - 1
            claim = scenes.claim("asks", [scenes.request("part", min(size // 2, 32))])
            units = min(units, 31)
            one = scenes.Scene("hopeless", scenes.partitions(size, units), claim)
            single = objects_of([scenes.single(one.objects)]).claims[0]
            mine = ours(typed(one), [], single)
            other = "-"
            if size <= upstream_up_to:
                other = _ms(theirs(oracle, one, 1)["round"])
            print(f"| {size} | {other} | {_ms(mine['cold'])} |", flush=True)


def large(nodes: int, seed: str) -> None:
    """Time and memory of a cluster of ``nodes`` nodes with 8 GPUs each."""
    objects = scenes.whole_gpus(random.Random(seed), nodes, "half")
    asks = scenes.claim("asks", [scenes.request("gpu", 1)])
    found = typed(scenes.Scene("large", objects, asks))
    objects.clear()
    gc.collect()
    before = _resident()
    begin = time.process_time()
    index = build(found)
    answers = index.everywhere([found.claims[-1]])
    first = time.process_time() - begin
    after = _resident()
    held = found.claims[0]
    index.remove_claim(held)
    begin = time.process_time()
    index.put_claim(held)
    again = len(index.everywhere([found.claims[-1]]).fitting())
    change = time.process_time() - begin
    print(
        f"\n{nodes} nodes x 8 GPUs: first full answer {_ms(first)} ({len(answers.fitting())} fit), "
        f"next claim after one change {_ms(change)} ({again} fit); resident memory with typed "
        f"objects {after:.0f} MB, of which the index {after - before:.0f} MB"
    )


def _resident() -> float:
    """Resident memory in MB (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def _row(name: str, mine: dict[str, float], other: dict[str, float]) -> list[str]:
    cells = [name, f"{int(other['fitting'])}", _ms(other["round"])]
    for key in ("cold", "changed", "warm"):
        ratio = other["round"] / mine[key] if mine[key] else 0.0
        cells += [_ms(mine[key]), f"{ratio:.1f} x"] if mine[key] else ["-", "-"]
    return cells


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 0.01 else f"{seconds * 1000:.1f} ms"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--seed", default=None, help="default: a fresh one, printed")
    parser.add_argument("--only", default="", help="scenes whose name contains this")
    parser.add_argument(
        "--large", type=int, default=0, help="only measure so many nodes, and memory"
    )
    parser.add_argument(
        "--upstream-up-to", type=int, default=24, help="largest hopeless search asked of upstream"
    )
    args = parser.parse_args(argv)
    seed = args.seed or str(random.SystemRandom().randrange(2**31))
    print(f"seed {seed}; {args.nodes} nodes; processor time, best of {ROUNDS} rounds\n")
    if args.large:
        large(args.large, seed)
        return 0
    measure(args.nodes, seed, args.only)
    if not args.only:
        curve((8, 16, 24, 32, 64, 128), upstream_up_to=args.upstream_up_to)
        words = [sys.executable, "-m", "tests.bench.bench_allocator", "--large", "5000"]
        subprocess.run([*words, "--seed", seed], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
