# SPDX-License-Identifier: Apache-2.0
"""The world as it is in many clusters: half of the nodes for each team, whole cards for every job."""

import heapq
from collections import deque
from collections.abc import Sequence

from tools.twoteams.measure import Measure
from tools.twoteams.workload import DAY, TEAMS, Work


def run_exclusive(work: Sequence[Work], nodes: int, cards_a_node: int) -> Measure:
    """First come, first served in each half; a job that does not fit blocks those behind it.

    Cards are counted, not placed: every pod takes one, so that any free card serves, and CPU and
    memory are taken for plenty. All of that is in favour of this world.
    """
    measure = Measure("exclusive", nodes * cards_a_node)
    for team in TEAMS:
        _run_half([one for one in work if one.team == team], nodes * cards_a_node // 2, measure)
    return measure


def _run_half(work: Sequence[Work], cards: int, measure: Measure) -> None:
    free = cards
    coming, waiting = deque(work), deque[Work]()
    ends: list[tuple[float, int]] = []
    while coming or ends:
        now = min(coming[0].arrives if coming else DAY, ends[0][0] if ends else DAY)
        if now >= DAY:
            break
        while ends and ends[0][0] <= now:
            free += heapq.heappop(ends)[1]
        while coming and coming[0].arrives <= now:
            waiting.append(coming.popleft())
        patient = deque(one for one in waiting if one.leaves > now)
        measure.unserved += len(waiting) - len(patient)
        waiting = patient
        while waiting and waiting[0].pods <= free:
            one = waiting.popleft()
            free -= one.pods
            heapq.heappush(ends, (now + one.seconds, one.pods))
            measure.ran(one, now, now + one.seconds)
    measure.unserved += len(waiting) + len(coming)
