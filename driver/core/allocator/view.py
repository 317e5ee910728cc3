# SPDX-License-Identifier: Apache-2.0
"""Cluster state by pool, and what one node sees of it.

Kept by ClusterIndex. Every change touches the pools that it names and nothing else; what was
computed from a pool is thrown away with the pool's record, so a process that has run for a week
knows exactly what a fresh one would.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpudra.api.resource_v1 import DeviceTaintRule, ResourceClaim, ResourceSlice
from gpudra.driver.core.allocator.holdings import NO_HOLDS, Holdings
from gpudra.driver.core.allocator.pools import Pool, PoolStatus
from gpudra.driver.core.allocator.records import ExtraTaints, PoolRecord
from gpudra.driver.core.allocator.taints import rule_taints, rules_for_pool
from gpudra.driver.core.allocator.types import Node, PoolKey


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


_JOURNAL = 100_000  # changes remembered; whoever asks less often reads all nodes anew

Local = PoolRecord | dict[PoolKey, PoolRecord]
"""The pools of one node alone: one, as on most nodes, or several."""


@dataclass(slots=True)
class ClusterState:
    """Slices, holds and rules by pool."""

    nodes: dict[str, Node] = field(default_factory=dict)
    holdings: Holdings = field(default_factory=Holdings)
    rules: dict[str, DeviceTaintRule] = field(default_factory=dict)
    _homes: dict[str, PoolKey] | None = None
    _records: dict[PoolKey, PoolRecord] = field(default_factory=dict)
    _local: dict[str, Local] = field(default_factory=dict)
    _shared: set[PoolKey] = field(default_factory=set)
    _views: dict[str, NodeView] = field(default_factory=dict)
    _journal: list[str] = field(default_factory=list)
    _forgotten: int = 0

    # --- changes --------------------------------------------------------------------------

    def load(
        self,
        nodes: Iterable[Node],
        slices: Sequence[ResourceSlice],
        claims: Iterable[ResourceClaim],
        rules: Iterable[DeviceTaintRule],
    ) -> None:
        """A whole cluster at once, into a state that holds nothing yet."""
        self.nodes.update([(node.name, node) for node in nodes])
        self.holdings.load(claims)
        self.rules.update([(rule.metadata.name, rule) for rule in rules])
        records, holds = self._records, self.holdings.by_pool
        for one in slices:
            own = one.columns
            key = own.key
            record = records.get(key)
            if record is None:
                held = holds.get(key, NO_HOLDS)
                records[key] = PoolRecord(key, [one], held, own.place, None)
            else:
                record.slices.append(one)
        names = {one.columns.name for one in slices}
        if len(names) < len(slices):  # some stand twice, the later ones count
            records.clear()
            for one in slices:
                self.put_slice(one)
        else:
            self._enter_loaded()
        self._forget_journal()

    def _enter_loaded(self) -> None:
        local, ruled = self._local, bool(self.rules)
        for record in list(self._records.values()):
            place = record.place
            if ruled or not place or len(record.slices) > 1 or place in local:
                self._put_record(record.key, record.slices)
            else:
                local[place] = record

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
        name = one.metadata.name
        before = self._home().get(name)
        if before is not None and before != key:
            self.remove_slice(name)
        self._home()[name] = key
        others = self._others(key, name) if before == key else self._slices(key)
        self._drop_record(key)
        self._put_record(key, [*others, one])
        self._drop_views(key)

    def remove_slice(self, name: str) -> None:
        """Forgets a slice."""
        key = self._home().pop(name, None)
        if key is None:
            return
        others = self._others(key, name)
        self._drop_views(key)
        self._drop_record(key)
        if others:
            self._put_record(key, others)
            self._drop_views(key)

    def put_rule(self, rule: DeviceTaintRule) -> None:
        """Adds or replaces a taint rule."""
        before = self.rules.get(rule.metadata.name)
        self.rules[rule.metadata.name] = rule
        self._rules_changed([one for one in (before, rule) if one is not None])

    def remove_rule(self, name: str) -> None:
        """Forgets a taint rule."""
        before = self.rules.pop(name, None)
        if before is not None:
            self._rules_changed([before])

    def holds_changed(self, pools: Iterable[PoolKey]) -> None:
        """To be told which pools Holdings named as changed."""
        for key in pools:
            record = self._records.get(key)
            if record is not None:
                self._enter(record.with_holds(self.holdings.holds(key)))
                self._drop_views(key)

    def _home(self) -> dict[str, PoolKey]:
        """The pool of each slice, by name of the slice; made when slices begin to change."""
        if self._homes is None:
            self._homes = {
                one.metadata.name: key
                for key, record in self._records.items()
                for one in record.slices
            }
        return self._homes

    def _slices(self, key: PoolKey) -> list[ResourceSlice]:
        record = self._records.get(key)
        return [] if record is None else record.slices

    def _others(self, key: PoolKey, name: str) -> list[ResourceSlice]:
        return [one for one in self._slices(key) if one.metadata.name != name]

    def _put_record(self, key: PoolKey, slices: list[ResourceSlice]) -> None:
        place = slices[0].spec.node_name
        if len(slices) > 1 and any(one.spec.node_name != place for one in slices):
            place = ""
        taints = self._extra_taints(key) if self.rules else None
        self._enter(PoolRecord(key, slices, self.holdings.holds(key), place, taints))

    def _enter(self, record: PoolRecord) -> None:
        """Puts a record into its places; one of the same pool is there for the same node or not at all."""
        key, place = record.key, record.place
        self._records[key] = record
        if not place:
            self._shared.add(key)
            return
        present = self._local.get(place)
        if present is None:
            self._local[place] = record
        elif isinstance(present, dict):
            present[key] = record
        elif present.key == key:
            self._local[place] = record
        else:
            self._local[place] = {present.key: present, key: record}

    def _drop_record(self, key: PoolKey) -> None:
        record = self._records.pop(key, None)
        if record is None:
            return
        self._shared.discard(key)
        self._drop_views_of(record)
        present = self._local.get(record.place)
        if isinstance(present, dict):
            present.pop(key, None)
            if len(present) == 1:
                (self._local[record.place],) = present.values()
        elif present is not None and present.key == key:
            del self._local[record.place]

    def _rules_changed(self, rules: Sequence[DeviceTaintRule]) -> None:
        for key, record in list(self._records.items()):
            if rules_for_pool(rules, key):
                self._put_record(key, record.slices)
                self._drop_views(key)

    def _drop_views(self, key: PoolKey) -> None:
        record = self._records.get(key)
        if record is not None:
            self._drop_views_of(record)

    def _drop_views_of(self, record: PoolRecord) -> None:
        if record.place:
            self._drop_view(record.place)
        else:
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

    def _extra_taints(self, key: PoolKey) -> ExtraTaints | None:
        rules = rules_for_pool(self.rules.values(), key)
        return None if not rules else lambda device: rule_taints(rules, device)

    def records(self) -> list[PoolRecord]:
        """All pools, by driver and name."""
        return [self._records[key] for key in sorted(self._records)]

    def find_record(self, key: PoolKey) -> PoolRecord | None:
        """A pool as it stands, or None if nobody publishes it."""
        return self._records.get(key)

    def only_local(self) -> dict[str, Local] | None:
        """The pools of each node, if no pool serves more than one node."""
        return None if self._shared else self._local

    def node(self, name: str) -> Node | None:
        """A node by name; one that only slices speak of counts, without labels."""
        found = self.nodes.get(name)
        return Node(name) if found is None and name in self._local else found

    def node_names(self) -> list[str]:
        """All nodes, those that only slices speak of included."""
        if self._local.keys() <= self.nodes.keys():
            return sorted(self.nodes)
        return sorted(self.nodes.keys() | self._local.keys())

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
        local = self._local.get(node.name)
        if local is None:
            own: Iterable[PoolRecord] = ()
        else:
            own = (local,) if isinstance(local, PoolRecord) else local.values()
        for record in own:
            if record.pool.ready:
                records.append(record)
            else:
                troubles.append(_trouble(record.pool))
        for key in self._shared:
            record = self._records[key]
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
