# SPDX-License-Identifier: Apache-2.0
"""What of a claim, a template or a class a node would refuse: configuration, and amounts of shares.

The models are those of the agent. Used by `gpudra validate` for files and by the admission webhook
for what is sent to the API server; both name the field.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpudra.api.errors import InputError
from gpudra.api.quantity import Quantity
from gpudra.api.yamlfile import Step

MIB = 2**20
_SHARE_CLASS = "share."
CONFIGS = ("GpuConfig", "MigConfig", "ShareConfig")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is added to the models.

    Attributes:
        driver: whose configuration is looked at.
        allowed: isolation that claims may ask for; None: any.
        uuids: of the cards that exist; None: not known.
    """

    driver: str
    allowed: frozenset[str] | None = None
    uuids: frozenset[str] | None = None


class Source(Protocol):
    """An object, from a file or from the API server."""

    @property
    def data(self) -> Any:
        """Dicts, lists and scalars."""
        ...

    def error(self, what: str, path: Sequence[Step], hint: str = "") -> InputError:
        """An error about one of its fields."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Something in a document, and the rules for it."""

    document: Source
    path: tuple[Step, ...]
    rules: Rules

    @property
    def raw(self) -> Any:
        """What stands there; None for nothing."""
        return _at(self.document.data, self.path)

    def at(self, *steps: Step) -> "Place":
        """Something inside."""
        return Place(self.document, (*self.path, *steps), self.rules)

    def items(self) -> "Iterator[Place]":
        """The objects of a list."""
        found = self.raw
        for index, item in enumerate(found if isinstance(found, list) else ()):
            if isinstance(item, Mapping):
                yield self.at(index)

    def error(self, what: str, hint: str = "") -> InputError:
        """An error about it."""
        return self.document.error(what, self.path, hint)


Checker = Callable[[Place], Iterator[InputError]]


def _check_config(place: Place) -> Iterator[InputError]:
    """One configuration, alone or inside a claim."""
    # pydantic takes a while to load, and most objects have no configuration.
    from gpudra.api.config.v1alpha1 import decode_user  # noqa: PLC0415

    allowed, uuids = place.rules.allowed, place.rules.uuids
    try:
        config = decode_user(place.raw)
    except InputError as error:
        steps = () if error.field == "parameters" else error.field.split(".")
        yield place.at(*steps).error(error.what, error.hint)
        return
    isolation = config.sharing.isolation
    if isolation is not None and allowed is not None and isolation not in allowed:
        yield place.at("sharing", "isolation").error(
            f"isolation {isolation} is not allowed",
            f"use some of {', '.join(sorted(allowed))}" if allowed else "",
        )
    limits = getattr(config.sharing, "mps", None)
    for uuid in limits.pinned_memory_limits if limits else ():
        if uuids is not None and uuid not in uuids:
            where = place.at("sharing", "mps", "pinnedMemoryLimits", uuid)
            yield where.error("there is no such GPU")


def _check_claim(place: Place) -> Iterator[InputError]:
    yield from _check_devices(place.at("spec", "devices"))


def _check_template(place: Place) -> Iterator[InputError]:
    yield from _check_devices(place.at("spec", "spec", "devices"))


def _check_class(place: Place) -> Iterator[InputError]:
    yield from _check_configs(place.at("spec", "config"), None)


def _check_devices(place: Place) -> Iterator[InputError]:
    names: set[str] = set()
    for request in place.at("requests").items():
        name = request.raw.get("name")
        names.add(str(name))
        yield from _check_request(request.at("exactly"))
        for sub in request.at("firstAvailable").items():
            names.add(f"{name}/{sub.raw.get('name')}")
            yield from _check_request(sub)
    yield from _check_configs(place.at("config"), names)


def _check_request(place: Place) -> Iterator[InputError]:
    """What a request takes of a share: no zero, no odd units, per cent as per cent."""
    if not str(place.at("deviceClassName").raw).startswith(_SHARE_CLASS):
        return
    amounts = place.at("capacity", "requests")
    for name, text in amounts.raw.items() if isinstance(amounts.raw, Mapping) else ():
        problem_of = _AMOUNTS.get(str(name).removeprefix(f"{place.rules.driver}/"))
        problem = problem_of(text) if problem_of else ""
        if problem:
            yield amounts.at(name).error(problem)


def _check_configs(place: Place, requests: set[str] | None) -> Iterator[InputError]:
    for config in place.items():
        if config.at("opaque", "driver").raw != place.rules.driver:
            continue
        names = config.at("requests")
        for index, name in enumerate(names.raw if isinstance(names.raw, list) else ()):
            if requests is not None and str(name) not in requests:
                yield names.at(index).error(f"there is no request {name!r}")
        yield from _check_config(config.at("opaque", "parameters"))


def _memory_problem(text: Any) -> str:
    amount = _quantity(text)
    if amount is None:
        return f"{text!r} is not an amount, write it as 512Mi or 10Gi"
    if amount.nanos <= 0:
        return f"{text} of memory is no share, ask for 1Mi or more"
    if not amount.is_integer() or amount.as_integer() % MIB:
        return f"{text} is no whole number of MiB, write it in Mi or Gi"
    return ""


def _compute_problem(text: Any) -> str:
    amount = _quantity(text)
    if amount is None or not amount.is_integer() or not 0 <= amount.as_integer() <= 100:
        return f"{text!r} is not in whole per cent of a GPU, from 0 (no limit) to 100"
    return ""


def _quantity(text: Any) -> Quantity | None:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        return None
    try:
        return Quantity.parse(text)
    except InputError:
        return None


def _at(raw: Any, path: Sequence[Step]) -> Any:
    for step in path:
        if isinstance(raw, Mapping):
            raw = raw.get(step)
        elif isinstance(raw, list) and isinstance(step, int) and step < len(raw):
            raw = raw[step]
        else:
            return None
    return raw


_AMOUNTS: Mapping[str, Callable[[Any], str]] = {
    "memory": _memory_problem,
    "compute": _compute_problem,
}
CHECKERS: Mapping[str, Checker] = {
    **dict.fromkeys(CONFIGS, _check_config),
    "ResourceClaim": _check_claim,
    "ResourceClaimTemplate": _check_template,
    "DeviceClass": _check_class,
}
