# SPDX-License-Identifier: Apache-2.0
"""The cluster under a plan: nodes, what runs on them, and their devices.

`Ground` follows events; a `Cell` is one node at one moment; a `Sketch` is the ground with
placements that are only thought of. A sketch is thrown away, never undone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpudra.api.resource_v1 import (
    AllocationResult,
    Device,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from gpudra.driver.core.allocator import ClusterIndex
from gpudra.driver.core.allocator.consumable_capacity import normalized
from gpudra.driver.core.allocator.counters import PoolState
from gpudra.driver.core.allocator.holdings import Hold
from gpudra.driver.core.allocator.records import PoolRecord
from gpudra.driver.core.allocator.requests import Plan
from gpudra.driver.core.allocator.types import PoolKey
from gpudra.driver.core.allocator.view import NodeView
from gpudra.driver.core.gangs.cards import Layouts
from gpudra.driver.core.gangs.noderoom import NO_ROOM_USED, NodeFacts, Room
from gpudra.driver.core.gangs.types import PodView

_QUESTIONS = 128
_JOURNAL = 50_000
_PLANS = 8192
_NOBODY: Mapping[str, PodView] = {}


@dataclass(eq=False, slots=True)
class Cell:
    """One node at one moment. Never changed: another moment is another cell."""

    facts: NodeFacts
    view: NodeView | None
    room: Room


class Ground:
    """Nodes, seats of pods, devices; incremental.

    Attributes:
        index: the allocator's state.
        layouts: of its pools.
        facts: of each node.
        seats: pod and node by uid.
        carriers: seats of pods that keep others away (required pod anti-affinity).
        lasting: grows when pods that belong to their node come or go.
        structure: grows when nodes, slices, classes or rules change; pods and claims do not count.
    """

    def __init__(self, driver: str) -> None:
        self.index = ClusterIndex(questions=_QUESTIONS)
        self.layouts = Layouts(driver)
        self.facts: dict[str, NodeFacts] = {}
        self.seats: dict[str, tuple[PodView, str]] = {}
        self._rooms: dict[str, Room] = {}
        self._plans: dict[tuple[str, ...], Plan] = {}
        self._on_node: dict[str, dict[str, PodView]] = {}
        self._cells: dict[str, Cell] = {}
        self._journal: list[str] = []
        self._forgotten = 0
        self._seen = 0
        self._names: list[str] | None = None
        self.structure = 0
        self.lasting = 0
        self.carriers: dict[str, tuple[PodView, str]] = {}

    # --- changes --------------------------------------------------------------------------

    def put_node(self, facts: NodeFacts) -> None:
        """Adds or replaces a node; one that is as before costs nothing."""
        name = facts.name
        if self.facts.get(name) == facts:
            return
        if name not in self.facts:
            self._names = None
        self.facts[name] = facts
        self.index.put_node(facts.node)
        self.structure += 1
        self._touch(name)

    def remove_node(self, name: str) -> None:
        """Forgets a node."""
        if self.facts.pop(name, None) is None:
            return
        self._names = None
        self.index.remove_node(name)
        self.structure += 1
        self._touch(name)

    def put_slice(self, one: ResourceSlice) -> None:
        """Adds or replaces a slice."""
        self.index.put_slice(one)
        self.structure += 1

    def remove_slice(self, name: str) -> None:
        """Forgets a slice."""
        self.index.remove_slice(name)
        self.structure += 1

    def put_class(self, device_class: DeviceClass) -> None:
        """Adds or replaces a DeviceClass."""
        self.index.put_class(device_class)
        self._plans.clear()
        self.structure += 1

    def remove_class(self, name: str) -> None:
        """Forgets a DeviceClass."""
        self.index.remove_class(name)
        self._plans.clear()
        self.structure += 1

    def put_rule(self, rule: DeviceTaintRule) -> None:
        """Adds or replaces a DeviceTaintRule."""
        self.index.put_rule(rule)
        self.structure += 1

    def remove_rule(self, name: str) -> None:
        """Forgets a DeviceTaintRule."""
        self.index.remove_rule(name)
        self.structure += 1

    def seat(self, pod: PodView, node: str) -> None:
        """A pod takes room on a node, instead of where it did before."""
        before = self.seats.get(pod.uid)
        if before is not None:
            if before == (pod, node):
                return
            self.unseat(pod.uid)
        self.seats[pod.uid] = pod, node
        self._on_node.setdefault(node, {})[pod.uid] = pod
        self.lasting += pod.lasting
        if pod.rules.apart:
            self.carriers[pod.uid] = pod, node
        self._rooms[node] = self._rooms.get(node, NO_ROOM_USED).plus(pod)
        self._touch(node)

    def unseat(self, uid: str) -> None:
        """A pod takes no room any more."""
        pod, node = self.seats.pop(uid, (None, ""))
        if pod is None:
            return
        self.lasting += pod.lasting
        self.carriers.pop(uid, None)
        own = self._on_node[node]
        del own[uid]
        if not own:
            del self._on_node[node]
        room = self._rooms[node].plus(pod, -1)
        if room == NO_ROOM_USED:
            del self._rooms[node]
        else:
            self._rooms[node] = room
        self._touch(node)

    def _touch(self, name: str) -> None:
        self._cells.pop(name, None)
        self._journal.append(name)
        if len(self._journal) > _JOURNAL:
            self._forget()

    def _forget(self) -> None:
        self._forgotten += len(self._journal) + 1
        self._journal.clear()

    def refresh(self) -> None:
        """Takes note of what changed in the devices; to be called before a plan reads cells."""
        state = self.index.state
        changed = state.changes_since(self._seen)
        self._seen = state.now
        if changed is None:
            self._cells.clear()
            self._forget()
            return
        for name in sorted(changed):
            self._touch(name)

    # --- reading --------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """All nodes, in order."""
        if self._names is None:
            self._names = sorted(self.facts)
        return self._names

    @property
    def now(self) -> int:
        """A point in the sequence of changes."""
        return self._forgotten + len(self._journal)

    def changes_since(self, point: int) -> set[str] | None:
        """Nodes that changed since then; None: it may be any."""
        if point < self._forgotten:
            return None
        return set(self._journal[point - self._forgotten :])

    def cell(self, name: str) -> Cell | None:
        """A node as it is; None for a node that nobody knows."""
        found = self._cells.get(name)
        if found is None:
            facts = self.facts.get(name)
            if facts is None:
                return None
            view = self.index.state.find_view(name)
            found = Cell(facts, view, self._rooms.get(name, NO_ROOM_USED))
            self._cells[name] = found
        return found

    def record(self, key: PoolKey) -> PoolRecord | None:
        """A pool as it is; None if nobody publishes it."""
        return self.index.state.find_record(key)

    def on_node(self, name: str) -> Mapping[str, PodView]:
        """The pods that take room on a node, by uid."""
        return self._on_node.get(name, _NOBODY)

    def plan(self, claims: Sequence[ResourceClaim]) -> Plan:
        """Claims made ready to be asked together; a claim's spec never changes.

        Raises:
            Refusal: they cannot be served anywhere as they are.
        """
        key = tuple([one.metadata.uid or one.key for one in claims])
        found = self._plans.get(key)
        if found is None:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            found = self._plans[key] = self.index.plan(claims)
        return found

    def holds(self, key: PoolKey) -> Mapping[str, tuple[Hold, ...]]:
        """Who holds what of a pool."""
        return self.index.state.holdings.of_pool(key)


class Sketch:
    """The ground as it would be. Forks are independent of each other.

    Attributes:
        journal: nodes that differ from the ground, in the order of the changes; may repeat.
        cells, records, held: what differs: nodes, pools, and who holds devices of a pool.
        wide: a pool that serves several nodes differs.
        seated: number of pods that were added, by node.
    """

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.journal: list[str] = []
        self.cells: dict[str, Cell] = {}
        self.records: dict[PoolKey, PoolRecord] = {}
        self.held: dict[PoolKey, Mapping[str, tuple[Hold, ...]]] = {}
        self.wide = False
        self.seated: dict[str, int] = {}

    def fork(self) -> "Sketch":
        """A copy to go on from."""
        other = Sketch(self.ground)
        self._copy_to(other)
        return other

    def _copy_to(self, other: "Sketch") -> None:
        other.journal = list(self.journal)
        other.cells, other.records = dict(self.cells), dict(self.records)
        other.held, other.wide = dict(self.held), self.wide
        other.seated = dict(self.seated)

    def cell(self, name: str) -> Cell | None:
        """A node as it would be."""
        found = self.cells.get(name)
        if found is None:
            found = self.ground.cell(name)
            if self.wide and found is not None:
                found = self.cells[name] = self._seen(found)
        return found

    def _seen(self, cell: Cell) -> Cell:
        """The cell with the pools as they would be."""
        if cell.view is None:
            return cell
        records = tuple([self.records.get(record.key, record) for record in cell.view.records])
        if all(a is b for a, b in zip(records, cell.view.records, strict=True)):
            return cell
        return Cell(cell.facts, NodeView(cell.view.node, records, cell.view.troubles), cell.room)

    def add_pod(self, pod: PodView, node: str) -> None:
        """A pod takes room."""
        self.seated[node] = self.seated.get(node, 0) + 1
        self._change_room(pod, node, 1)

    def remove_pod(self, pod: PodView, node: str) -> None:
        """A pod of the ground or the sketch gives its room back."""
        self._change_room(pod, node, -1)

    def _change_room(self, pod: PodView, node: str, sign: int) -> None:
        cell = self.cell(node)
        if cell is None:
            return
        self.cells[node] = Cell(cell.facts, cell.view, cell.room.plus(pod, sign))
        self.journal.append(node)

    def add_claim(self, claim: ResourceClaim, allocation: AllocationResult) -> None:
        """A claim holds what it was allocated."""
        for key, device, hold in holds_of(with_allocation(claim, allocation)):
            holds = dict(self._of_pool(key))
            holds[device] = (*holds.get(device, ()), hold)
            self._set_holds(key, holds)

    def remove_claim(self, claim: ResourceClaim) -> None:
        """An allocated claim gives back what it holds."""
        for key, device, _ in holds_of(claim):
            holds = dict(self._of_pool(key))
            left = tuple(one for one in holds.get(device, ()) if one.claim != claim.key)
            if left:
                holds[device] = left
            else:
                holds.pop(device, None)
            self._set_holds(key, holds)

    def has_room_for(self, claim: ResourceClaim) -> bool:
        """Whether an allocated claim could hold again what it was allocated."""
        taken: dict[PoolKey, dict[str, tuple[Hold, ...]]] = {}
        for key, device, hold in holds_of(claim):
            record = self.records.get(key) or self.ground.record(key)
            if record is None or device not in record.pool.index_of:
                return False
            holds = taken.setdefault(key, dict(self._of_pool(key)))
            beside = holds.get(device, ())
            published = record.pool.devices[record.pool.index_of[device]]
            if beside and not _go_together(published, (*beside, hold)):
                return False
            holds[device] = (*beside, hold)
            if any(left < 0 for left in PoolState(record.pool, holds).free):
                return False
        return True

    def bar(self, key: PoolKey, devices: Iterable[str]) -> None:
        """Keeps everybody off some devices, as a claim would."""
        holds = dict(self._of_pool(key))
        for device in devices:
            if not any(not one.shared for one in holds.get(device, ())):
                holds[device] = (*holds.get(device, ()), Hold("", False, {}))
        self._set_holds(key, holds)

    def _of_pool(self, key: PoolKey) -> Mapping[str, tuple[Hold, ...]]:
        found = self.held.get(key)
        return self.ground.holds(key) if found is None else found

    def _set_holds(self, key: PoolKey, holds: Mapping[str, tuple[Hold, ...]]) -> None:
        record = self.records.get(key) or self.ground.record(key)
        if record is None:
            return  # a pool that nobody publishes any more offers nothing either
        self.held[key] = holds
        self.records[key] = record.with_state(PoolState(record.pool, holds))
        home = record.pool.node_name
        if home:
            self._renew(home)
        else:
            self.wide = True
            self.cells = {name: self._seen(cell) for name, cell in self.cells.items()}
            self.journal.extend(self.ground.names)

    def _renew(self, name: str) -> None:
        cell = self.cell(name)
        if cell is not None:
            self.cells[name] = self._seen(cell)
            self.journal.append(name)

    def touched(self) -> Iterator[str]:
        """Nodes that differ, each once, in order of their first change."""
        return iter(dict.fromkeys(self.journal))


def holds_of(claim: ResourceClaim) -> Iterator[tuple[PoolKey, str, Hold]]:
    """What a claim holds: pool, device, and how (as `Holdings` reads it)."""
    allocation = claim.status.allocation
    for one in allocation.devices.results if allocation else ():
        if one.admin_access:
            continue
        shared = one.share_id is not None
        amounts = normalized(one.consumed_capacity, one.driver) if shared else {}
        yield (one.driver, one.pool), one.device, Hold(claim.key, shared, amounts)


def with_allocation(claim: ResourceClaim, allocation: AllocationResult | None) -> ResourceClaim:
    """The claim as it is once this is written."""
    return replace(claim, status=replace(claim.status, allocation=allocation))


def _go_together(device: Device, holds: Iterable[Hold]) -> bool:
    """Whether these may hold one device at the same time: shares that its capacity allows."""
    total: dict[str, int] = {}
    for hold in holds:
        if not hold.shared:
            return False
        for (_, name), amount in hold.amounts.items():
            total[name] = total.get(name, 0) + amount
    known = {name.rpartition("/")[2]: one.value.nanos for name, one in device.capacity.items()}
    return all(amount <= known.get(name, 0) for name, amount in total.items())
