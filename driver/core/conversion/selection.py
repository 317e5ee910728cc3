# SPDX-License-Identifier: Apache-2.0
"""What a pod's annotations say about its cards: which ones, how near to each other, in which mode."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpudra.api.errors import InputError
from gpudra.driver.core.conversion import words
from gpudra.driver.core.conversion.names import normal
from gpudra.driver.core.conversion.types import NVIDIA, Ask, Form

_TYPE = re.compile(r"[A-Za-z0-9 _./+()-]*[A-Za-z0-9][A-Za-z0-9 _./+()-]*", re.ASCII)
_UUID = re.compile(r"gpu-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_BOOL = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The annotations of a pod, read.

    Attributes:
        mode: hami-core, mig, mps, or nothing.
        mode_field: which annotation says so.
        exclusive: nobody else may be on the card.
        wishes: what cards should have in common, by the words of `Ask.near`.
        bound: all cards of one NUMA node.
        types, not_types, uuids, not_uuids: as in `Ask`.
    """

    mode: str = ""
    mode_field: str = ""
    exclusive: bool = False
    wishes: tuple[str, ...] = ()
    bound: bool = False
    types: tuple[str, ...] = ()
    not_types: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    not_uuids: tuple[str, ...] = ()

    def on(self, ask: Ask) -> Ask:
        """The request with what was said about cards; the words are about NVIDIA's."""
        if ask.vendor != NVIDIA:
            return ask
        several = ask.count > 1
        wishes = tuple(
            wish
            for wish in self.wishes
            # MIG devices have no links, and what is demanded need not be wished for.
            if not (wish == "nvlink" and ask.form is Form.MIG)
            and not (wish == "numa" and self.bound)
        )
        return replace(
            ask,
            numa=self.bound and several,
            near=wishes if several else (),
            types=self.types,
            not_types=self.not_types,
            uuids=self.uuids,
            not_uuids=self.not_uuids,
        )


def field_of(key: str) -> str:
    """Path of an annotation."""
    return f"metadata.annotations[{key}]"


def read_selection(annotations: Mapping[str, str]) -> Selection:
    """Reads the annotations of a pod that asks for cards.

    Raises:
        InputError: a value or a word that is not known; names annotation and value.
    """
    for key, value in annotations.items():
        if words.FAMILIES.fullmatch(key) and not _known(key):
            raise InputError(
                f"{value!r} asks for something that gpudra does not have",
                field=field_of(key),
                hint="remove the annotation if the pod can do without it",
            )
    policy = _policies(annotations)
    mode_field, mode = _mode(annotations)
    return Selection(
        mode=mode,
        mode_field=mode_field,
        exclusive="mutex" in policy,
        wishes=tuple(
            wish
            for word, wish in (("topology-aware", "nvlink"), ("numa", "numa"))
            if word in policy
        ),
        bound=_word(annotations, words.NUMA_BIND, tuple(_BOOL)) == "true",
        types=_types(annotations, words.USE_TYPE),
        not_types=_types(annotations, words.NOT_TYPE),
        uuids=_uuids(annotations, words.USE_UUID),
        not_uuids=_uuids(annotations, words.NOT_UUID),
    )


def _known(key: str) -> bool:
    return key in words.TRANSLATED or bool(words.STATE.fullmatch(key))


def _mode(annotations: Mapping[str, str]) -> tuple[str, str]:
    given = [key for key in (words.HAMI_MODE, words.VOLCANO_MODE) if key in annotations]
    if len(given) > 1:
        raise InputError(
            f"{annotations[given[1]]!r} says how to share a second time, after {given[0]}",
            field=field_of(given[1]),
            hint="keep one of the two annotations",
        )
    for key in given:
        return key, _word(annotations, key, words.MODES)
    return "", ""


def _policies(annotations: Mapping[str, str]) -> tuple[str, ...]:
    _word(annotations, words.NODE_POLICY, words.NODE_POLICIES)
    text = annotations.get(words.CARD_POLICY)
    if text is None:
        return ()
    found = tuple(word.strip() for word in text.split(","))
    for word in found:
        if word not in words.CARD_POLICIES:
            raise _unknown(words.CARD_POLICY, text, word, words.CARD_POLICIES)
    return found


def _word(annotations: Mapping[str, str], key: str, known: tuple[str, ...]) -> str:
    value = annotations.get(key)
    if value is not None and value not in known:
        raise _unknown(key, value, value, known)
    return value or ""


def _unknown(key: str, value: str, word: str, known: tuple[str, ...]) -> InputError:
    within = f" in {value!r}" if word != value else ""
    return InputError(
        f"{word!r}{within} is not known", field=field_of(key), hint=f"known are {', '.join(known)}"
    )


def _types(annotations: Mapping[str, str], key: str) -> tuple[str, ...]:
    """Names of cards with nothing but letters and digits left, which is how they are compared."""
    found = []
    for item in _items(annotations, key):
        if not _TYPE.fullmatch(item):
            raise InputError(f"{item!r} is no name of a card", field=field_of(key))
        found.append(re.sub(r"[^a-z0-9]", "", item.lower()))
    return normal(found)


def _uuids(annotations: Mapping[str, str], key: str) -> tuple[str, ...]:
    found = []
    for item in _items(annotations, key):
        if not _UUID.fullmatch(item.lower()):
            raise InputError(
                f"{item!r} is no uuid of a card",
                field=field_of(key),
                hint="write GPU- and 32 hex digits in five groups, as nvidia-smi -L shows it",
            )
        found.append(item.lower().removeprefix("gpu-").replace("-", ""))
    return normal(found)


def _items(annotations: Mapping[str, str], key: str) -> list[str]:
    """A comma list without its blanks. One that names nothing must not mean everything."""
    text = annotations.get(key)
    if text is None:
        return []
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise InputError(
            f"{text!r} names no card",
            field=field_of(key),
            hint="name one, or remove the annotation",
        )
    return items
