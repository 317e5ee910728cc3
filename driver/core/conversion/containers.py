# SPDX-License-Identifier: Apache-2.0
"""The request in one container's resources, and the one that KAI writes into annotations."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpudra.api.errors import InputError
from gpudra.driver.core.conversion import amounts, words
from gpudra.driver.core.conversion.selection import Selection, field_of
from gpudra.driver.core.conversion.types import WHOLE_CARD, Ask, Form, System

Raw = Mapping[str, Any]
_UNITS = {
    "count": (amounts.MAX_COUNT, "cards"),
    "memory": (amounts.MAX_MEMORY, "MiB"),
    "percent": (amounts.MAX_PERCENT, "per cent"),
    "cores": (amounts.MAX_PERCENT, "per cent"),
}


@dataclass(frozen=True, slots=True)
class Foreign:
    """The words of other systems in one container.

    Attributes:
        field: path of the container.
        amounts: resource -> amount, as written.
    """

    field: str
    amounts: Mapping[str, Any]

    def at(self, key: str) -> str:
        """Path of one of them."""
        return f"{self.field}.resources.limits[{key}]"

    def has(self, table: Mapping[str, str]) -> bool:
        """Whether a word of a table asks for something."""
        return any(key in self.amounts and not _zero(self.amounts[key]) for key in table.values())

    @property
    def asks(self) -> bool:
        """Whether anything is asked for: nothing of a resource is nothing, and rank is no device."""
        return any(not _zero(value) for key, value in self.amounts.items() if key != words.PRIORITY)


def foreign_of(container: Raw, field: str) -> Foreign:
    """The words of other systems in limits and requests, which have to say the same.

    Raises:
        InputError: they differ.
    """
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    found = {key: value for key, value in limits.items() if words.FOREIGN.fullmatch(key)}
    for key, value in requests.items():
        if words.FOREIGN.fullmatch(key) and str(found.setdefault(key, value)) != str(value):
            raise InputError(
                f"{str(value)!r} is requested and the limit is {str(found[key])!r}",
                field=f"{field}.resources.requests[{key}]",
                hint="devices need equal requests and limits",
            )
    return Foreign(field, found)


def _zero(value: object) -> bool:
    return str(value) == "0"


def read_container(foreign: Foreign, chosen: Selection, env: Raw, notes: list[str]) -> Ask:
    """The request of a container that asks.

    Args:
        foreign: its words.
        chosen: what the pod says about cards.
        env: literal variables of the container.
        notes: gets what the reader should know.

    Raises:
        InputError: names field and value.
    """
    readings = list(_readings(foreign, chosen, env, notes))
    if len(readings) > 1:
        raise InputError(
            f"asks in {len(readings)} ways at once: {', '.join(sorted(foreign.amounts))}",
            field=f"{foreign.field}.resources.limits",
            hint="keep the words of one system, for one kind of card",
        )
    return chosen.on(readings[0])


def _readings(foreign: Foreign, chosen: Selection, env: Raw, notes: list[str]) -> Iterator[Ask]:
    """One reading for each family of words."""
    for table in (words.HAMI_RESOURCES, words.VOLCANO_RESOURCES):
        if foreign.has(table):
            yield _read_shares(foreign, table, chosen, env, notes)
    for key, value in foreign.amounts.items():
        known = {*words.HAMI_RESOURCES.values(), *words.VOLCANO_RESOURCES.values(), words.PRIORITY}
        if key not in known and not _zero(value):
            yield _read_counted(foreign, key, value)
    priority = foreign.amounts.get(words.PRIORITY)
    if priority is not None and str(priority) != "1":
        raise InputError(
            f"{str(priority)!r} ranks the users of a card, which gpudra's sharing does not",
            field=foreign.at(words.PRIORITY),
            hint="remove it; with MPS or MIG nobody has to wait for another's kernels",
        )


def _read_counted(foreign: Foreign, key: str, value: object) -> Ask:
    """Cards that are counted: MIG profiles, and cards of other vendors."""
    field = foreign.at(key)
    vendor, profile, kind = words.COUNTED.get(key, ""), "", ""
    if key.startswith(words.MIG):
        profile = key.removeprefix(words.MIG)
        if not words.PROFILE.fullmatch(profile):
            raise InputError(f"{profile!r} is no MIG profile", field=field)
    elif words.ASCEND.fullmatch(key):
        vendor, kind = "huawei", key.partition("/")[2].lower().replace("-", "")
    elif not vendor:
        raise InputError(
            f"{str(value)!r} is a part or a property that gpudra does not have for such cards",
            field=field,
            hint="ask for whole cards by their count",
        )
    count = amounts.quantity(value, field, amounts.MAX_COUNT, "cards")
    if profile:
        return Ask(
            count=count,
            form=Form.MIG,
            profile=profile.replace(".me", "+me").replace(".gfx", "+gfx"),
        )
    return Ask(count=count, vendor=vendor, types=(kind,) if kind else ())


def _read_shares(
    foreign: Foreign, table: Mapping[str, str], chosen: Selection, env: Raw, notes: list[str]
) -> Ask:
    """HAMi's rules, which Volcano has taken over: alone a count means whole cards."""
    read = {
        role: amounts.quantity(foreign.amounts.get(key, 0), foreign.at(key), *_UNITS[role])
        for role, key in table.items()
    }
    count = _count(foreign, table, read["count"])
    memory, percent, cores = read["memory"], read["percent"], read["cores"]
    if memory and percent:
        notes.append(
            f"{foreign.at(table['percent'])} is ignored beside {table['memory']}, as before"
        )
    part = percent * WHOLE_CARD // 100 if percent < 100 and not memory else 0
    if chosen.mode == "mig":
        return _by_size(foreign, table, chosen, count, memory, cores, notes)
    if chosen.exclusive or cores == 100 or not (memory or part or cores):
        if memory or part:
            notes.append(f"{foreign.field}: a card for itself has no limit of memory")
        return Ask(count=count)
    if not cores and str(foreign.amounts.get(table["cores"])) == "0":
        notes.append(
            f"{foreign.at(table['cores'])}: nothing is reserved, and a card whose per cent are all"
            " promised is not avoided"
        )
    isolation = "none" if env.get(words.DISABLE_CONTROL) == "true" else chosen.mode
    return Ask(
        count=count,
        form=Form.SHARE,
        memory=memory,
        fraction=part,
        compute=cores,
        isolation=isolation,
    )


def _count(foreign: Foreign, table: Mapping[str, str], count: int) -> int:
    if count:
        return count
    key = table["count"]
    if key in foreign.amounts or table is words.VOLCANO_RESOURCES:
        raise InputError(
            f"{str(foreign.amounts.get(key, ''))!r} cards, and a part of each",
            field=foreign.at(key),
            hint="say how many cards, or ask for nothing",
        )
    return 1


def _by_size(
    foreign: Foreign,
    table: Mapping[str, str],
    chosen: Selection,
    count: int,
    memory: int,
    cores: int,
    notes: list[str],
) -> Ask:
    """A MIG device by the memory that it has to have."""
    if not memory:
        raise InputError(
            f"{chosen.mode!r} needs {table['memory']} in {foreign.field}",
            field=field_of(chosen.mode_field),
            hint="say how many MiB the MIG device has to have",
        )
    if cores:
        notes.append(f"{foreign.at(table['cores'])}: the profile decides how much computes")
    return Ask(count=count, form=Form.MIG, memory=memory)


def read_annotations(annotations: Mapping[str, str], chosen: Selection) -> Ask | None:
    """KAI's request for a part of a card; None if there is none.

    Raises:
        InputError: names annotation and value.
    """
    given = [key for key in (words.FRACTION, words.MEMORY) if key in annotations]
    if not given:
        extra = next((key for key in words.KAI_EXTRAS if key in annotations), None)
        if extra:
            raise InputError(
                f"{annotations[extra]!r} belongs to {words.FRACTION} or {words.MEMORY}, and neither is there",
                field=field_of(extra),
            )
        return None
    if len(given) > 1:
        raise InputError(
            f"{annotations[words.MEMORY]!r} asks a second time, after {words.FRACTION}",
            field=field_of(words.MEMORY),
            hint="keep one of the two annotations",
        )
    _check_limits(annotations)
    part, memory = 0, 0
    if words.FRACTION in annotations:
        part = amounts.fraction(annotations[words.FRACTION], field_of(words.FRACTION))
    else:
        memory = amounts.annotation(
            annotations[words.MEMORY], field_of(words.MEMORY), amounts.MAX_MEMORY, "MiB"
        )
    compute = _number(annotations, words.SM_PERCENT, 0, amounts.MAX_PERCENT, "per cent")
    count = _number(annotations, words.DEVICES, 1, amounts.MAX_COUNT, "cards")
    isolation = _isolation(annotations, chosen)
    if part == WHOLE_CARD:
        part = 0
        if not compute:
            return chosen.on(Ask(count=count))
    return chosen.on(
        Ask(
            count=count,
            form=Form.SHARE,
            memory=memory,
            fraction=part,
            compute=compute,
            isolation=isolation,
        )
    )


def _number(annotations: Mapping[str, str], key: str, default: int, most: int, unit: str) -> int:
    value = annotations.get(key)
    return default if value is None else amounts.annotation(value, field_of(key), most, unit)


def _isolation(annotations: Mapping[str, str], chosen: Selection) -> str:
    value = annotations.get(words.MPS, "false")
    if value not in ("true", "false"):
        raise InputError(f"{value!r} is neither true nor false", field=field_of(words.MPS))
    if chosen.mode or chosen.exclusive:
        raise InputError(
            f"{chosen.mode or 'mutex'!r} is said beside {System.KAI}'s request",
            field=field_of(chosen.mode_field or words.CARD_POLICY),
            hint="keep the words of one system",
        )
    return "mps" if value == "true" else ""


def _check_limits(annotations: Mapping[str, str]) -> None:
    """A limit above the request would let a share grow, which no backend of ours does."""
    for key, of in ((words.FRACTION_LIMIT, words.FRACTION), (words.MEMORY_LIMIT, words.MEMORY)):
        value = annotations.get(key)
        if value is not None and value != annotations.get(of):
            raise InputError(
                f"{value!r} is not {of}: what is reserved is also the limit",
                field=field_of(key),
                hint=f"remove it, or write it as {of}",
            )
