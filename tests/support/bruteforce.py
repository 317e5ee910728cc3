# SPDX-License-Identifier: Apache-2.0
"""The rules of device allocation, written down as plainly as possible, for checking answers.

Shares no code with the allocator: works on the JSON of the objects, recomputes everything for every
candidate set, and tries all of them. Fit for a handful of devices only.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tests.support.allocderived import DERIVED, SelectorFailsError, alternatives, covers
from tests.support.allocgen import Case, Obj

Key = tuple[str, str, str]
Given = tuple[str, str, Key, bool]  # claim, request, device, admin
_SUFFIX = {
    "m": Fraction(1, 1000),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
}


def amount(text: str) -> Fraction:
    """A quantity."""
    for suffix, scale in _SUFFIX.items():
        if text.endswith(suffix):
            return Fraction(text.removesuffix(suffix)) * scale
    return Fraction(text)


@dataclass(frozen=True)
class Candidate:
    """A device that the node reaches."""

    key: Key
    raw: Obj
    pool: tuple[str, str]


class World:
    """One node of a case, with everything that claims hold already."""

    def __init__(self, case: Case, node: str) -> None:
        self.case = case
        self.node = next(n for n in case.objects["nodes"] if n["metadata"]["name"] == node)
        self.bad_pools: dict[tuple[str, str], str] = {}
        self.devices: list[Candidate] = []
        self.pool_devices: dict[tuple[str, str], list[Obj]] = {}
        self.counters: dict[tuple[str, str], dict[tuple[str, str], Fraction]] = {}
        for pool in sorted({_pool_of(one) for one in case.objects["slices"]}):
            self._read_pool(pool)
        self.exclusive: set[Key] = set()
        self.shares: dict[Key, dict[str, Fraction]] = {}
        for claim in case.objects["claims"]:
            allocation = claim.get("status", {}).get("allocation")
            for result in (allocation or {}).get("devices", {}).get("results", ()):
                self._hold(result)

    def _hold(self, result: Obj) -> None:
        if result.get("adminAccess"):
            return
        key = (result["driver"], result["pool"], result["device"])
        if not result.get("shareID"):
            self.exclusive.add(key)
            return
        held = self.shares.setdefault(key, {})
        for name, text in result.get("consumedCapacity", {}).items():
            held[name] = held.get(name, Fraction(0)) + amount(text)

    def _read_pool(self, pool: tuple[str, str]) -> None:
        slices = [one for one in self.case.objects["slices"] if _pool_of(one) == pool]
        newest = max(one["spec"]["pool"]["generation"] for one in slices)
        current = [one for one in slices if one["spec"]["pool"]["generation"] == newest]
        current.sort(key=lambda one: one["metadata"]["name"])
        reached = []
        for one in current:
            spec = one["spec"]
            for device in spec.get("devices", ()):
                home = device if spec.get("perDeviceNodeSelection") else spec
                if self._reaches(home):
                    reached.append(Candidate((*pool, device["name"]), device, pool))
        touches = bool(reached) or any(self._reaches(one["spec"]) for one in current)
        if not touches:
            return
        counts = {one["spec"]["pool"]["resourceSliceCount"] for one in current}
        if len(counts) == 1 and counts != {len(current)}:
            self.bad_pools[pool] = "incomplete"
            return
        if len(counts) > 1 or _contradicts_itself(current):
            self.bad_pools[pool] = "invalid"
            return
        self.pool_devices[pool] = [d for one in current for d in one["spec"].get("devices", ())]
        self.counters[pool] = {
            (one["name"], name): amount(value["value"])
            for part in current
            for one in part["spec"].get("sharedCounters", ())
            for name, value in one["counters"].items()
        }
        self.devices.extend(reached)

    def _reaches(self, home: Obj) -> bool:
        name = self.node["metadata"]["name"]
        if home.get("nodeName"):
            return bool(home["nodeName"] == name)
        if home.get("allNodes"):
            return True
        selector = home.get("nodeSelector")
        if not selector:
            return False
        (term,) = selector["nodeSelectorTerms"]
        labels = self.node["metadata"]["labels"]
        return all(labels.get(e["key"]) in e["values"] for e in term["matchExpressions"])

    # --- one request and one device -------------------------------------------------------------

    def selected(self, request: Obj, candidate: Candidate) -> bool:
        """Whether class, selectors and the device's own capacity agree.

        Raises:
            SelectorFailsError: an expression has no answer.
        """
        driver = candidate.key[0]
        classes = {one["metadata"]["name"]: one for one in self.case.objects["classes"]}
        selectors = [
            *classes[request["deviceClassName"]]["spec"].get("selectors", ()),
            *request.get("selectors", ()),
        ]
        for selector in selectors:
            predicate = self.case.predicates[selector["cel"]["expression"]]
            if not predicate(driver, candidate.raw):
                return False
        return self.consumption(request, candidate.raw, driver) is not None

    def derivation_fails(self, claim: str, full: str, request: Obj, candidate: Candidate) -> bool:
        """Whether a derived attribute that a constraint compares has no answer."""
        for constraint in self.claim(claim)["spec"]["devices"].get("constraints", ()):
            attribute = constraint.get("matchAttribute") or constraint["distinctAttribute"]
            try:
                if covers(constraint, full):
                    _elements(request, candidate.key[0], candidate.raw, attribute)
            except SelectorFailsError:
                return True
        return False

    def tolerated(self, request: Obj, candidate: Candidate) -> bool:
        """Whether no taint keeps the request off; the generator knows one kind of toleration."""
        blocking = [taint for taint in candidate.raw.get("taints", ()) if taint["effect"] != "None"]
        return not blocking or bool(request.get("tolerations"))

    def consumption(self, request: Obj, device: Obj, driver: str) -> dict[str, Fraction] | None:
        """What a share takes of each capacity; None if it never fits."""
        asked = {
            name.removeprefix(f"{driver}/"): text
            for name, text in request.get("capacity", {}).get("requests", {}).items()
        }
        capacity = device.get("capacity", {})
        if any(name not in capacity for name in asked):
            return None
        taken = {}
        for name, one in capacity.items():
            part = _share(asked.get(name), one)
            if part is None or part > amount(one["value"]):
                return None
            taken[name] = part
        return taken

    # --- a whole answer ---------------------------------------------------------------------------

    def valid(self, given: Sequence[Given]) -> bool:
        """Whether these devices may be given out together, leaving counts aside."""
        return (
            self._in_use_once(given) and self._counters_hold(given) and self._capacity_holds(given)
            and self._groups_agree(given) and self._constraints_hold(given)
        )  # fmt: skip

    def request(self, claim: str, full: str) -> Obj:
        """The request or alternative of a full name."""
        base, _, sub = full.partition("/")
        for one in self.claim(claim)["spec"]["devices"]["requests"]:
            if one["name"] == base:
                if not sub:
                    return one["exactly"]  # type: ignore[no-any-return]
                return next(s for s in one["firstAvailable"] if s["name"] == sub)
        raise KeyError(full)

    def claim(self, name: str) -> Obj:
        """A claim by name."""
        return next(c for c in self.case.objects["claims"] if c["metadata"]["name"] == name)

    def raw(self, key: Key) -> Obj:
        """A device of a pool that the node touches, on whatever node."""
        return next(d for d in self.pool_devices[key[:2]] if d["name"] == key[2])

    def _in_use_once(self, given: Sequence[Given]) -> bool:
        exclusive: set[Key] = set()
        within: set[tuple[str, Key]] = set()
        per_request: set[tuple[str, str, Key]] = set()
        for claim, full, key, admin in given:
            if (claim, full, key) in per_request:
                return False
            per_request.add((claim, full, key))
            multiple = self.raw(key).get("allowMultipleAllocations", False)
            if not multiple:
                if (claim, key) in within:
                    return False
                within.add((claim, key))
            if admin:
                continue
            if key in self.exclusive or (not multiple and key in self.shares):
                return False
            if not multiple:
                if key in exclusive:
                    return False
                exclusive.add(key)
        return True

    def _holders(self, given: Sequence[Given]) -> set[Key]:
        new = {key for _, _, key, admin in given if not admin}
        return new | self.exclusive | set(self.shares)

    def _counters_hold(self, given: Sequence[Given]) -> bool:
        fresh = {key for _, _, key, admin in given if not admin} - set(self.shares)
        for pool in {key[:2] for key in fresh}:
            left = dict(self.counters[pool])
            names = {device["name"] for device in self.pool_devices[pool]}
            touched = set()
            for key in self._holders(given):
                if key[:2] != pool:
                    continue
                if key[2] not in names:
                    if any(
                        self.raw(one).get("consumesCounters") for one in fresh if one[:2] == pool
                    ):
                        return False
                    continue
                for slot, value in _takes(self.raw(key)):
                    left[slot] -= value
                    if key in fresh:
                        touched.add(slot)
            if any(left[slot] < 0 for slot in touched):
                return False
        return True

    def _capacity_holds(self, given: Sequence[Given]) -> bool:
        used: dict[Key, dict[str, Fraction]] = {}
        for claim, full, key, admin in given:
            device = self.raw(key)
            if admin or not device.get("allowMultipleAllocations"):
                continue
            taken = self.consumption(self.request(claim, full), device, key[0])
            if taken is None:
                return False
            total = used.setdefault(key, dict(self.shares.get(key, {})))
            for name, value in taken.items():
                total[name] = total.get(name, Fraction(0)) + value
                if total[name] > amount(device["capacity"][name]["value"]):
                    return False
        return True

    def _groups_agree(self, given: Sequence[Given]) -> bool:
        fresh = {key for _, _, key, admin in given if not admin}
        by_set: dict[tuple[str, str, str], list[frozenset[str]]] = {}
        fresh_sets = set()
        for key in self._holders(given):
            names = {d["name"] for d in self.pool_devices.get(key[:2], ())}
            if key[2] not in names:
                continue
            for one in self.raw(key).get("consumesCounters", ()):
                slot = (*key[:2], one["counterSet"])
                by_set.setdefault(slot, []).append(frozenset(one.get("compatibilityGroups", ())))
                if key in fresh:
                    fresh_sets.add(slot)
        for slot in fresh_sets:
            groups = by_set[slot]
            if len(groups) > 1 and any(groups) and not frozenset.intersection(*groups):
                return False
        return True

    def _constraints_hold(self, given: Sequence[Given]) -> bool:
        for name in self.case.ask:
            devices = self.claim(name)["spec"]["devices"]
            for constraint in devices.get("constraints", ()):
                found = [
                    (self.request(name, full), key)
                    for claim, full, key, _ in given
                    if claim == name and covers(constraint, full)
                ]
                if not self._constraint_holds(constraint, found):
                    return False
        return True

    def _constraint_holds(self, constraint: Obj, given: Sequence[tuple[Obj, Key]]) -> bool:
        attribute = constraint.get("matchAttribute") or constraint["distinctAttribute"]
        try:
            values = [
                _elements(request, key[0], self.raw(key), attribute) for request, key in given
            ]
        except SelectorFailsError:
            return False
        if any(not value for value in values):
            return False
        if "matchAttribute" in constraint:
            return not values or bool(frozenset.intersection(*values))
        return all(not (a & b) for a, b in itertools.combinations(values, 2))


def _pool_of(one: Obj) -> tuple[str, str]:
    return one["spec"]["driver"], one["spec"]["pool"]["name"]


def _contradicts_itself(current: Sequence[Obj]) -> bool:
    """Double device names, or counters that are not there."""
    devices = [device for one in current for device in one["spec"].get("devices", ())]
    if len({device["name"] for device in devices}) < len(devices):
        return True
    known = {
        (one["name"], name)
        for part in current
        for one in part["spec"].get("sharedCounters", ())
        for name in one["counters"]
    }
    return any(slot not in known for device in devices for slot, _ in _takes(device))


def _takes(device: Obj) -> Iterator[tuple[tuple[str, str], Fraction]]:
    for one in device.get("consumesCounters", ()):
        for name, value in one["counters"].items():
            yield (one["counterSet"], name), amount(value["value"])


def _share(asked: str | None, capacity: Obj) -> Fraction | None:
    policy = capacity.get("requestPolicy")
    if policy is None:
        return amount(asked if asked is not None else capacity["value"])
    if asked is None:
        return amount(policy.get("default", capacity["value"]))
    wanted = amount(asked)
    if "validValues" in policy:
        return min((v for v in map(amount, policy["validValues"]) if v >= wanted), default=None)
    if "validRange" in policy:
        low, step = amount(policy["validRange"]["min"]), amount(policy["validRange"]["step"])
        steps = 0
        while low + steps * step < wanted:
            steps += 1
        taken = low + steps * step
        top = policy["validRange"].get("max")
        return None if top is not None and taken > amount(top) else taken
    return wanted


def _elements(request: Obj, driver: str, device: Obj, attribute: str) -> frozenset[Any]:
    """What a constraint sees of a device; a request's own definition hides what is published.

    Raises:
        SelectorFailsError: this has no answer.
    """
    derived = {one["name"]: one["expression"] for one in request.get("derivedAttributes", ())}
    attributes: Mapping[str, Obj] = device.get("attributes", {})
    value = attributes.get(attribute)
    domain, _, name = attribute.rpartition("/")
    if value is None and domain == driver:
        value = attributes.get(name)
    if attribute in derived:
        value = DERIVED[derived[attribute]](driver, device)
    if value is None:
        return frozenset()
    ((form, content),) = value.items()
    items = content if isinstance(content, list) else [content]
    return frozenset((form.removesuffix("s"), type(item).__name__, item) for item in items)


class Verdict:
    """What brute force says about one node.

    Attributes:
        satisfiable: whether any valid answer exists.
        selector_fails: an expression has no answer for some device of the node.
        refuses_node: the node is refused with an error rather than a plain no.
    """

    def __init__(
        self, satisfiable: bool, selector_fails: bool, *, refuses_node: bool = False
    ) -> None:
        self.satisfiable = satisfiable
        self.selector_fails = selector_fails
        self.refuses_node = refuses_node


def brute_force(case: Case, node: str, limit: int = 200_000) -> Verdict | None:
    """Tries every assignment; None if there are more than ``limit`` to try."""
    world = World(case, node)
    invalid = "invalid" in world.bad_pools.values()
    if world.bad_pools and _asks_all(case):
        # Nobody can say what "all" is, so the node is refused.
        return Verdict(False, False, refuses_node=True)
    slots, fails = _slots(case, world)
    tries = 0

    def search(index: int, given: list[Given]) -> bool:
        nonlocal tries
        tries += 1
        if tries > limit:
            raise _TooManyError
        if index == len(slots):
            return True
        for claim, full, devices, admin in slots[index]:
            more = given + [(claim, full, one.key, admin) for one in devices]
            if world.valid(more) and search(index + 1, more):
                return True
        return False

    try:
        satisfiable = search(0, [])
        return Verdict(satisfiable, fails, refuses_node=invalid and not satisfiable)
    except _TooManyError:
        return None


Option = tuple[str, str, tuple[Candidate, ...], bool]


def _slots(case: Case, world: World) -> tuple[list[list[Option]], bool]:
    """Per request all sets of devices that alone would do, and whether a selector fails to run."""
    slots, fails = [], False
    for name in case.ask:
        for request in world.claim(name)["spec"]["devices"]["requests"]:
            options = []
            for full, one in alternatives(request):
                found, failed = _choices(world, name, full, one)
                fails = fails or failed
                options.extend(found)
            slots.append(options)
    return slots, fails


def _asks_all(case: Case) -> bool:
    claims = [one for one in case.objects["claims"] if one["metadata"]["name"] in case.ask]
    return any(
        one.get("allocationMode") == "All"
        for claim in claims
        for request in claim["spec"]["devices"]["requests"]
        for _, one in alternatives(request)
    )


class _TooManyError(Exception):
    pass


def _choices(
    world: World, claim: str, full: str, request: Obj
) -> tuple[list[tuple[str, str, tuple[Candidate, ...], bool]], bool]:
    admin = bool(request.get("adminAccess"))
    selected, fails = [], False
    for candidate in world.devices:
        try:
            if world.selected(request, candidate):
                selected.append(candidate)
        except SelectorFailsError:
            in_use = candidate.key in world.exclusive and not admin
            fails = fails or not in_use or request.get("allocationMode") == "All"
    usable = [one for one in selected if world.tolerated(request, one)]
    fails = fails or any(
        world.derivation_fails(claim, full, request, one)
        for one in usable
        if admin or one.key not in world.exclusive
    )
    if request.get("allocationMode") == "All":
        if world.bad_pools or not selected or len(usable) < len(selected):
            return [], fails
        return [(claim, full, tuple(selected), admin)], fails
    sets: Callable[..., Any] = itertools.combinations
    return [(claim, full, one, admin) for one in sets(usable, request.get("count", 1))], fails
