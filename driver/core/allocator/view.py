# SPDX-License-Identifier: Apache-2.0
"""Cluster state by pool, and what one node sees of it.

Kept by ClusterIndex. Every change touches the pools that it names and nothing else; what was
computed from a pool is thrown away with the pool's record, so a process that has run for a week
knows exactly what a fresh one would.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpudra.api.resource_v1 import DeviceTaint, DeviceTaintRule, ResourceSlice
from gpudra.driver.core.allocator.counters import PoolState
from gpudra.driver.core.allocator.facts import FactSpace
from gpudra.driver.core.allocator.holdings import Holdings
from gpudra.driver.core.allocator.pools import Pool, PoolStatus, build_pool
from gpudra.driver.core.allocator.taints import rule_taints, rules_for_pool
from gpudra.driver.core.allocator.types import Node, PoolKey


class PoolRecord:
    """One pool with everything that was worked out from it.

    Attributes:
        pool: as published.
        state: what is in use.
        taints: taints that rules add, by device name; None if no rule touches the pool.
    """

    __slots__ = ("_kinds", "_shapes", "pool", "state", "taints")

    def __init__(
        self,
        pool: Pool,
        state: PoolState,
        taints: Callable[[str], tuple[DeviceTaint, ...]] | None,
    ) -> None:
        self.pool = pool
        self.state = state
        self.taints = taints
        self._kinds: dict[int, tuple[int, ...]] = {}
        self._shapes: dict[int, int] = {}

    def kinds(self, space: FactSpace) -> tuple[int, ...]:
        """Fact numbers of the devices, worked out once per space."""
        found = self._kinds.get(id(space))
        if found is None:
            found = space.number(self.pool.key[0], self.pool.devices, self.taints)
            self._kinds[id(space)] = found
        return found

    def shape(self, space: FactSpace) -> int:
        """A number that pools have in common if a question cannot tell them apart."""
        found = self._shapes.get(id(space))
        if found is None:
            pool = self.pool
            content = (pool.key[0], self.kinds(space), *_structure(pool))
            found = self._shapes[id(space)] = space.shape(content)
        return found

    def forget(self, space: FactSpace) -> None:
        """Drops what was worked out for a space that is no more."""
        self._kinds.pop(id(space), None)
        self._shapes.pop(id(space), None)

    def with_state(self, state: PoolState) -> "PoolRecord":
        """The same pool with other devices in use."""
        fresh = PoolRecord(self.pool, state, self.taints)
        fresh._kinds, fresh._shapes = self._kinds, self._shapes
        return fresh


def _structure(pool: Pool) -> tuple[Any, ...]:
    """Counters by number instead of name, and what only some pools have."""
    if not pool.slots and not pool.skips:
        return ()
    skipped = tuple([home.skip_operations for home in pool.homes]) if pool.skips else ()
    return pool.table, pool.groups, pool.sets, pool.home_of if pool.skips else (), skipped


@dataclass(slots=True)
class NodeView:
    """What one node can reach.

    Attributes:
        node: the node.
        records: pools that may serve, in the order in which they are tried.
        troubles: pools that cannot serve because they are incomplete or invalid, and malformed
            selectors, as sentences; the flag tells invalid from incomplete.
        key: equal as long as no pool of the node changed.
    """

    node: Node
    records: tuple[PoolRecord, ...]
    troubles: tuple[tuple[bool, str], ...]


_NOWHERE: frozenset[PoolKey] = frozenset()
_JOURNAL = 100_000  # changes remembered; whoever asks less often reads all nodes anew


@dataclass(slots=True)
class ClusterState:
    """Slices, holds and rules by pool."""

    nodes: dict[str, Node] = field(default_factory=dict)
    holdings: Holdings = field(default_factory=Holdings)
    rules: dict[str, DeviceTaintRule] = field(default_factory=dict)
    _slices: dict[PoolKey, dict[str, ResourceSlice]] = field(default_factory=dict)
    _home: dict[str, PoolKey] = field(default_factory=dict)
    _records: dict[PoolKey, PoolRecord] = field(default_factory=dict)
    _local: dict[str, set[PoolKey]] = field(default_factory=dict)
    _place: dict[PoolKey, str] = field(default_factory=dict)
    _shared: set[PoolKey] = field(default_factory=set)
    _views: dict[str, NodeView] = field(default_factory=dict)
    _journal: list[str] = field(default_factory=list)
    _forgotten: int = 0

    # --- changes --------------------------------------------------------------------------

    def put_node(self, node: Node) -> None:
        """Adds or replaces a node."""
        self.nodes[node.name] = node
        self._drop_view(node.name)

    def remove_node(self, name: str) -> None:
        """Forgets a node; its slices stay until they are removed too."""
        self.nodes.pop(name, None)
        self._drop_view(name)

    def put_slice(self, one: ResourceSlice) -> None:
        """Adds or replaces a slice."""
        key = (one.spec.driver, one.spec.pool.name)
        before = self._home.get(one.metadata.name)
        if before is not None and before != key:
            self.remove_slice(one.metadata.name)
        self._home[one.metadata.name] = key
        slices = self._slices.get(key)
        if slices is None:
            slices = self._slices[key] = {}
        slices[one.metadata.name] = one
        place = self._place.get(key)
        if place and place == one.spec.node_name:
            # The next slice of a node's pool: where the pool belongs does not change.
            self._records.pop(key, None)
            self._drop_view(place)
        else:
            self._pool_changed(key)

    def remove_slice(self, name: str) -> None:
        """Forgets a slice."""
        key = self._home.pop(name, None)
        if key is None:
            return
        slices = self._slices[key]
        del slices[name]
        if not slices:
            del self._slices[key]
        self._pool_changed(key)

    def put_rule(self, rule: DeviceTaintRule) -> None:
        """Adds or replaces a taint rule."""
        before = self.rules.get(rule.metadata.name)
        self.rules[rule.metadata.name] = rule
        self._rules_changed(one for one in (before, rule) if one is not None)

    def remove_rule(self, name: str) -> None:
        """Forgets a taint rule."""
        before = self.rules.pop(name, None)
        if before is not None:
            self._rules_changed((before,))

    def holds_changed(self, pools: Iterable[PoolKey]) -> None:
        """To be told which pools Holdings named as changed."""
        for key in pools:
            record = self._records.get(key)
            if record is not None:
                state = PoolState(record.pool, self.holdings.of_pool(key))
                self._records[key] = record.with_state(state)
            self._drop_views(key)

    def _rules_changed(self, rules: Iterable[DeviceTaintRule]) -> None:
        changed = list(rules)
        for key in list(self._slices):
            if rules_for_pool(changed, key):
                self._records.pop(key, None)
                self._drop_views(key)

    def _pool_changed(self, key: PoolKey) -> None:
        self._drop_views(key)
        self._records.pop(key, None)
        place = self._place.pop(key, None)
        if place:
            self._local[place].discard(key)
        self._shared.discard(key)
        slices = self._slices.get(key)
        if slices is None:
            return
        names = {one.spec.node_name for one in slices.values()}
        place = names.pop() if len(names) == 1 else ""
        self._place[key] = place
        if place:
            self._local.setdefault(place, set()).add(key)
        else:
            self._shared.add(key)
        self._drop_views(key)

    def _drop_views(self, key: PoolKey) -> None:
        place = self._place.get(key)
        if place:
            self._drop_view(place)
        elif place is not None:
            self._views.clear()
            self._forget_journal()

    def _drop_view(self, name: str) -> None:
        self._views.pop(name, None)
        self._journal.append(name)
        if len(self._journal) > _JOURNAL:
            self._forget_journal()

    def _forget_journal(self) -> None:
        # One more than there were entries: whoever had read them all must read all nodes anew too.
        self._forgotten += len(self._journal) + 1
        self._journal.clear()

    # --- reading --------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """A point in the sequence of changes, for changes_since."""
        return self._forgotten + len(self._journal)

    def changes_since(self, point: int) -> set[str] | None:
        """Names of nodes that changed, appeared or went since then; None if it may be any."""
        if point < self._forgotten:
            return None
        return set(self._journal[point - self._forgotten :])

    def record(self, key: PoolKey) -> PoolRecord:
        """The pool as it stands; worked out on first use after a change."""
        found = self._records.get(key)
        if found is None:
            pool = build_pool(key, self._slices[key].values())
            found = PoolRecord(
                pool, PoolState(pool, self.holdings.of_pool(key)), self._extra_taints(key)
            )
            self._records[key] = found
        return found

    def _extra_taints(self, key: PoolKey) -> Callable[[str], tuple[DeviceTaint, ...]] | None:
        rules = rules_for_pool(self.rules.values(), key) if self.rules else []
        return None if not rules else lambda device: rule_taints(rules, device)

    def records(self) -> list[PoolRecord]:
        """All pools, by driver and name."""
        return [self.record(key) for key in sorted(self._slices)]

    def known_records(self) -> Mapping[PoolKey, PoolRecord]:
        """The records worked out so far."""
        return self._records

    def node(self, name: str) -> Node | None:
        """A node by name; one that only slices speak of counts, without labels."""
        found = self.nodes.get(name)
        return Node(name) if found is None and self._local.get(name) else found

    def node_names(self) -> list[str]:
        """All nodes, those that only slices speak of included."""
        return sorted(set(self.nodes) | {name for name, pools in self._local.items() if pools})

    def view(self, name: str) -> NodeView:
        """What a node can reach; the same object until something of it changes.

        Raises:
            KeyError: nobody knows such a node.
        """
        found = self.find_view(name)
        if found is None:
            raise KeyError(name)
        return found

    def find_view(self, name: str) -> NodeView | None:
        """As view, or None if nobody knows such a node."""
        found = self._views.get(name)
        if found is None:
            node = self.nodes.get(name) or self.node(name)
            if node is None:
                return None
            found = self._views[name] = self._look(node)
        return found

    def _look(self, node: Node) -> NodeView:
        records, troubles = [], []
        local = self._local.get(node.name, _NOWHERE)
        if len(local) == 1 and not self._shared:
            # By far the most frequent node: one driver, one pool.
            (key,) = local
            record = self._records.get(key) or self.record(key)
            if record.pool.ready:
                return NodeView(node, (record,), ())
        for key in local:
            record = self.record(key)
            if record.pool.ready:
                records.append(record)
            else:
                troubles.append(_trouble(record.pool))
        for key in self._shared:
            record = self.record(key)
            label = record.pool.label
            troubles += [(True, f"pool {label}: {one}") for one in record.pool.selector_problems()]
            if record.pool.reaches(node):
                if record.pool.ready:
                    records.append(record)
                else:
                    troubles.append(_trouble(record.pool))
        records.sort(key=lambda one: (one.pool.binds(node), one.pool.key))
        return NodeView(node, tuple(records), tuple(sorted(troubles)))


def _trouble(pool: Pool) -> tuple[bool, str]:
    return pool.status is PoolStatus.INVALID, pool.problem


StateKey = tuple[Any, ...]


def state_key(view: NodeView) -> StateKey:
    """Equal for nodes whose devices are in use in the same way."""
    records = view.records
    if len(records) == 1:
        return records[0].state.key
    return tuple([record.state.key for record in records])
