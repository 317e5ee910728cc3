# SPDX-License-Identifier: Apache-2.0
"""Random little clusters for the allocator: every feature of resource.k8s.io/v1, a few devices.

Objects are plain dictionaries, as they stand in files. Selectors come with a Python predicate of
the same meaning, so that the brute-force checker needs no CEL.
"""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.allocderived import Obj, derive, must, own

DRIVERS = ("gpu.example.com", "nic.example.com")
MODELS = ("a", "b")
Predicate = Callable[[str, Obj], bool]


@dataclass
class Case:
    """One little cluster and what is asked of it.

    Attributes:
        objects: by kind: nodes, slices, classes, claims (those with status are state), rules.
        ask: names of the claims to allocate together.
        predicates: meaning of each expression used.
        tags: features that were drawn, for sorting differences.
    """

    objects: dict[str, list[Obj]]
    ask: list[str]
    predicates: dict[str, Predicate] = field(default_factory=dict)
    tags: set[str] = field(default_factory=set)


class Generator:
    """Draws cases from one source of randomness."""

    def __init__(self, rng: random.Random, *, size: int = 5) -> None:
        self.rng = rng
        self.size = size
        self.tags: set[str] = set()
        self.predicates: dict[str, Predicate] = {}

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def case(self) -> Case:
        """One case."""
        self.tags, self.predicates = set(), {}
        nodes = [self._node(name) for name in ("node-a", "node-b")[: self.rng.choice([1, 1, 2])]]
        drivers = DRIVERS[: self.rng.choice([1, 1, 1, 2])]
        slices: list[Obj] = []
        for driver in drivers:
            slices.extend(self._pools(driver, [node["metadata"]["name"] for node in nodes]))
        classes = [self._class(driver) for driver in DRIVERS]
        claims = [self._claim(f"claim-{i}") for i in range(self.rng.choice([1, 1, 1, 2]))]
        return Case(
            {"nodes": nodes, "slices": slices, "classes": classes, "claims": claims, "rules": []},
            [claim["metadata"]["name"] for claim in claims],
            self.predicates,
            self.tags,
        )

    def spoil(self, case: Case) -> None:
        """Now and then makes something wrong, after claims were allocated."""
        for spoiler in (self._double, self._dangle, self._lose, self._flip, self._disagree):
            if self.chance(0.03):
                spoiler(case)
        if self.chance(0.06):
            self._add_rule(case)

    def _some_slice(self, case: Case) -> Obj:
        chosen = [one for one in case.objects["slices"] if one["spec"].get("devices")]
        return self.rng.choice(chosen)["spec"]  # type: ignore[no-any-return]

    def _double(self, case: Case) -> None:
        devices = self._some_slice(case)["devices"]
        devices.append(dict(devices[0]))
        case.tags.add("double")

    def _dangle(self, case: Case) -> None:
        entry = {"counterSet": "nowhere", "counters": {"mem": {"value": "1"}}}
        self._some_slice(case)["devices"][0]["consumesCounters"] = [entry]
        case.tags.add("dangling")

    def _lose(self, case: Case) -> None:
        devices = self._some_slice(case)["devices"]
        if len(devices) > 1:
            devices.pop(self.rng.randrange(len(devices)))
            case.tags.add("lost")

    def _flip(self, case: Case) -> None:
        device = self.rng.choice(self._some_slice(case)["devices"])
        if device.pop("allowMultipleAllocations", None):
            for capacity in device.get("capacity", {}).values():
                capacity.pop("requestPolicy", None)
            case.tags.add("flipped")

    def _disagree(self, case: Case) -> None:
        self._some_slice(case)["pool"]["resourceSliceCount"] += 1
        case.tags.add("count")

    def _add_rule(self, case: Case) -> None:
        spec: Obj = {"taint": {"key": "bad", "value": "", "effect": "NoSchedule"}}
        kind = self.rng.randrange(4)
        if kind:
            one = self._some_slice(case)
            spec["deviceSelector"] = (
                {},
                {"driver": one["driver"]},
                {"pool": one["pool"]["name"], "device": one["devices"][0]["name"]},
            )[kind - 1]
        case.tags.add("rule")
        case.objects["rules"].append(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceTaintRule",
                "metadata": {"name": "rule"},
                "spec": spec,
            }
        )

    def _node(self, name: str) -> Obj:
        labels = {"zone": self.rng.choice(["x", "y"])}
        return {
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        }  # fmt: skip

    # --- slices -------------------------------------------------------------------------------

    def _pools(self, driver: str, nodes: list[str]) -> list[Obj]:
        slices = []
        for node in nodes:
            slices.extend(self._pool(driver, node, {"nodeName": node}))
        if self.chance(0.15):
            slices.extend(self._pool(driver, "shared", {"allNodes": True}))
        if self.chance(0.15):
            slices.extend(self._pool(driver, "zone", {"nodeSelector": _zone("x")}))
        if self.chance(0.12):
            slices.extend(self._pool(driver, "each", {"perDeviceNodeSelection": True}, nodes))
        return slices

    def _pool(
        self, driver: str, pool: str, home: Obj, per_device: list[str] | None = None
    ) -> list[Obj]:
        sets = self._counter_sets() if self.chance(0.45) else []
        grouped = bool(sets) and self.chance(0.1)
        shared = self.chance(0.3)
        count = self.rng.randint(self.size // 2, self.size)
        devices = [
            self._device(f"dev-{i}", sets, shared=shared, grouped=grouped) for i in range(count)
        ]
        if per_device is not None:
            for device in devices:
                device.update(self._home(per_device))
        pieces = [devices[:2], devices[2:]] if self.chance(0.3) and count > 2 else [devices]
        contents: list[Obj] = [{"devices": piece} for piece in pieces]
        if sets:
            contents.append({"sharedCounters": sets})
            self.tags.add("counters")
        total = len(contents)
        if self.chance(0.04):
            total += 1
            self.tags.add("incomplete")
        generation = self.rng.choice([1, 1, 2])
        found = [
            self._slice(f"{driver}-{pool}-{i}", driver, pool, generation, total, home | content)
            for i, content in enumerate(contents)
        ]
        if self.chance(0.05):
            old = {"devices": [{"name": "old-0"}]} | home
            if per_device is not None:
                old["devices"][0]["allNodes"] = True
            found.append(self._slice(f"{driver}-{pool}-old", driver, pool, 0, 1, old))
        return found

    def _home(self, nodes: list[str]) -> Obj:
        kind = self.rng.randrange(3)
        if kind == 0:
            return {"nodeName": self.rng.choice(nodes)}
        return {"allNodes": True} if kind == 1 else {"nodeSelector": _zone("x")}

    @staticmethod
    def _slice(name: str, driver: str, pool: str, generation: int, total: int, content: Obj) -> Obj:
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": {
                "driver": driver,
                "pool": {"name": pool, "generation": generation, "resourceSliceCount": total},
                **content,
            },
        }

    def _counter_sets(self) -> list[Obj]:
        return [
            {
                "name": f"card-{i}",
                "counters": {
                    name: {"value": str(self.rng.randint(2, 6))} for name in ("mem", "cpu")
                },
            }
            for i in range(self.rng.choice([1, 1, 2]))
        ]

    def _device(self, name: str, sets: list[Obj], *, shared: bool, grouped: bool) -> Obj:
        device: Obj = {"name": name}
        attributes = self._attributes()
        if attributes:
            device["attributes"] = attributes
        multiple = shared and self.chance(0.7)
        if multiple:
            device["allowMultipleAllocations"] = True
            self.tags.add("shared")
        if multiple or self.chance(0.2):
            device["capacity"] = self._capacity(multiple=multiple)
        if sets and self.chance(0.85):
            device["consumesCounters"] = self._consumption(sets, grouped=grouped)
        if self.chance(0.12):
            effect = self.rng.choice(["NoSchedule", "NoExecute", "None"])
            device["taints"] = [{"key": "bad", "value": "1", "effect": effect}]
            self.tags.add("taints")
        if self.chance(0.05):
            device["bindingConditions"] = ["ready"]
            device["bindingFailureConditions"] = ["failed"]
        if self.chance(0.05):
            device["bindsToNode"] = True
        return device

    def _attributes(self) -> Obj:
        attributes: Obj = {}
        if self.chance(0.9):
            attributes["model"] = {"string": self.rng.choice(MODELS)}
        if self.chance(0.85):
            attributes["numa"] = {"int": self.rng.randint(0, 2)}
        if self.chance(0.25):
            attributes["numa"] = {"ints": sorted(self.rng.sample(range(3), self.rng.randint(1, 2)))}
            self.tags.add("lists")
        if self.chance(0.5):
            attributes["example.com/root"] = {"string": self.rng.choice(["r0", "r1"])}
        if self.chance(0.2):
            attributes["ok"] = {"bool": self.chance(0.5)}
        if self.chance(0.2):
            attributes["version"] = {"version": self.rng.choice(["1.0.0", "2.0.0"])}
        return attributes

    def _capacity(self, *, multiple: bool) -> Obj:
        capacity: Obj = {}
        for name in ("memory", "cores"):
            if self.chance(0.2):
                continue
            value = self.rng.choice([8, 10, 16])
            capacity[name] = {"value": str(value)}
            if multiple and self.chance(0.7):
                capacity[name]["requestPolicy"] = self._policy(value)
        return capacity

    def _policy(self, value: int) -> Obj:
        kind = self.rng.randrange(4)
        if kind == 0:
            return {"default": "2"}
        if kind == 1:
            return {"default": "4", "validValues": ["2", "4", str(value)]}
        if kind == 2:
            return {"default": "2", "validRange": {"min": "2", "step": "2", "max": "6"}}
        return {"default": "500m", "validRange": {"min": "500m", "step": "250m"}}

    def _consumption(self, sets: list[Obj], *, grouped: bool) -> list[Obj]:
        chosen = self.rng.sample(sets, 2 if len(sets) > 1 and self.chance(0.15) else 1)
        found = []
        for one in chosen:
            names = [name for name in one["counters"] if self.chance(0.7)] or ["mem"]
            entry: Obj = {
                "counterSet": one["name"],
                "counters": {name: {"value": str(self.rng.randint(1, 3))} for name in names},
            }
            if grouped:
                self.tags.add("groups")
                groups = self.rng.sample(["g1", "g2"], self.rng.randint(0, 2))
                if groups:
                    entry["compatibilityGroups"] = groups
            found.append(entry)
        return found

    # --- classes and claims -------------------------------------------------------------------

    def _class(self, driver: str) -> Obj:
        expression = f'device.driver == "{driver}"'
        self.predicates[expression] = lambda own, _device, wanted=driver: own == wanted
        spec: Obj = {"selectors": [{"cel": {"expression": expression}}]}
        if self.chance(0.3):
            spec["config"] = [{"opaque": {"driver": driver, "parameters": {"from": "class"}}}]
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": driver},
            "spec": spec,
        }

    def _claim(self, name: str) -> Obj:
        requests = [self._request(f"req-{i}") for i in range(self.rng.choice([1, 1, 1, 2, 2, 3]))]
        devices: Obj = {"requests": requests}
        names = [request["name"] for request in requests]
        names += [
            f"{request['name']}/{sub['name']}"
            for request in requests
            for sub in request.get("firstAvailable", ())
        ]
        constraints = [self._constraint(names) for _ in range(self.rng.choice([0, 0, 0, 1, 1, 2]))]
        if constraints:
            devices["constraints"] = constraints
            self.tags |= derive(self.rng, requests, constraints)
        if self.chance(0.2):
            chosen = self.rng.sample(names, 1) if self.chance(0.5) else []
            devices["config"] = [
                {"requests": chosen, "opaque": {"driver": DRIVERS[0], "parameters": {"n": 1}}}
            ]
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {"devices": devices},
        }

    def _constraint(self, names: list[str]) -> Obj:
        attribute = self.rng.choice(
            [
                "gpu.example.com/numa",
                "gpu.example.com/numa",
                "example.com/root",
                "gpu.example.com/model",
                "example.com/derived",
            ]
        )
        kind = self.rng.choice(["matchAttribute", "matchAttribute", "distinctAttribute"])
        self.tags.add(kind)
        constraint: Obj = {kind: attribute}
        if self.chance(0.4):
            constraint["requests"] = self.rng.sample(names, self.rng.randint(1, len(names)))
        return constraint

    def _request(self, name: str) -> Obj:
        if self.chance(0.15):
            self.tags.add("firstAvailable")
            subs = [self._exact(allow_admin=False) for _ in range(self.rng.randint(1, 3))]
            return {
                "name": name,
                "firstAvailable": [{"name": f"sub-{i}"} | sub for i, sub in enumerate(subs)],
            }
        return {"name": name, "exactly": self._exact(allow_admin=True)}

    def _exact(self, *, allow_admin: bool) -> Obj:
        request: Obj = {"deviceClassName": DRIVERS[0] if self.chance(0.95) else DRIVERS[1]}
        if self.chance(0.3):
            request["selectors"] = [{"cel": {"expression": self._expression()}}]
        if self.chance(0.12):
            request["allocationMode"] = "All"
            self.tags.add("all")
        else:
            request["allocationMode"] = "ExactCount"
            request["count"] = self.rng.choice([1, 1, 1, 1, 2, 2, 3])
        if allow_admin and self.chance(0.08):
            request["adminAccess"] = True
            self.tags.add("admin")
        if self.chance(0.15):
            request["tolerations"] = [{"key": "bad", "operator": "Exists"}]
        if self.chance(0.25):
            amount = self.rng.choice(["1", "2", "3", "5", "9", "300m", "1700m"])
            name = self.rng.choice(["memory", "cores"])
            if self.chance(0.15):
                name = f"gpu.example.com/{name}"
                self.tags.add("qualified-capacity")
            request["capacity"] = {"requests": {name: amount}}
            self.tags.add("capacity")
        return request

    def _add_clauses(self, domain: str) -> None:
        """The clauses alone, for relaxations that drop the other one."""
        for name in ("model", "version"):
            self.predicates[f'"{name}" in {domain}'] = lambda driver, device, name=name: (
                own(driver, device, name) is not None
            )
        for model in MODELS:
            self.predicates[f'{domain}.model == "{model}"'] = lambda driver, device, model=model: (
                must(driver, device, "model") == {"string": model}
            )
        self.predicates[f'{domain}.version.isGreaterThan(semver("1.5.0"))'] = (
            lambda driver, device: _newer(must(driver, device, "version"))
        )

    def _expression(self) -> str:
        kind = self.rng.randrange(5)
        domain = 'device.attributes["gpu.example.com"]'
        model = self.rng.choice(MODELS)
        self._add_clauses(domain)
        if kind <= 1:
            text = f'"model" in {domain} && {domain}.model == "{model}"'
            self.predicates[text] = lambda driver, device: (
                own(driver, device, "model") == {"string": model}
            )
        elif kind == 2:
            self.tags.add("unguarded")
            text = f'{domain}.model == "{model}"'
            self.predicates[text] = lambda driver, device: (
                must(driver, device, "model") == {"string": model}
            )
        elif kind == 3:
            text = "device.allowMultipleAllocations == true"
            self.predicates[text] = lambda _driver, device: bool(
                device.get("allowMultipleAllocations")
            )
        else:
            text = f'"version" in {domain} && {domain}.version.isGreaterThan(semver("1.5.0"))'
            self.predicates[text] = lambda driver, device: (
                own(driver, device, "version") == {"version": "2.0.0"}
            )
        return text


def _newer(value: Obj) -> bool:
    return value == {"version": "2.0.0"}


def _zone(value: str) -> Obj:
    expression = {"key": "zone", "operator": "In", "values": [value]}
    return {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}


def with_rules_applied(case: Case) -> Case:
    """The case with taint rules written into the devices, as the slice tracker does."""
    if not case.objects["rules"]:
        return case
    slices = copy.deepcopy(case.objects["slices"])
    for rule in case.objects["rules"]:
        selector = rule["spec"].get("deviceSelector")
        if selector is None:
            continue
        for one in slices:
            spec = one["spec"]
            if selector.get("driver", spec["driver"]) != spec["driver"]:
                continue
            if selector.get("pool", spec["pool"]["name"]) != spec["pool"]["name"]:
                continue
            for device in spec.get("devices", ()):
                if selector.get("device", device["name"]) == device["name"]:
                    device.setdefault("taints", []).append(rule["spec"]["taint"])
    objects = {**case.objects, "slices": slices, "rules": []}
    return Case(objects, case.ask, case.predicates, case.tags)
