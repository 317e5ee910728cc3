# SPDX-License-Identifier: Apache-2.0
"""The name of a request's template: the request itself, written as a DNS subdomain.

``gpudra-nvidia-1x-share-m3000-c30`` is one share of an NVIDIA card with 3000 MiB and 30 per cent. The
name says everything, so equal requests share a template, different ones never do, and whoever sees
the name in a pod can make the template. CEL has no hash function, which leaves no other way for the
admission policy; the chart's conversion-policy.yaml composes the same text.
"""

import re
from collections.abc import Iterable

from gpudra.api.errors import InputError
from gpudra.driver.core.conversion.types import NVIDIA, WHOLE_CARD, Ask, Form

PREFIX = "gpudra-"
# Of a DNS subdomain, which the API takes as name of a template.
MAX_NAME = 253
_ISOLATION = {"hami-core": "hamicore", "mps": "mps", "none": "none"}
_NEAR = ("nvlink", "numa")
_GRAMMAR = re.compile(
    r"gpudra-(?P<vendor>[a-z0-9]+)-(?P<count>[1-9][0-9]?)x-(?P<form>gpu|share|mig)"
    r"(-p(?P<profile>[1-9]g\.[0-9]+gb(\.me|\.gfx)?))?"
    r"(-m(?P<memory>[1-9][0-9]{0,6}))?(-f(?P<fraction>[1-9][0-9]{0,3}))?"
    r"(-c(?P<compute>[1-9][0-9]{0,2}))?(-i(?P<isolation>hamicore|mps|none))?"
    r"(-(?P<numa>numa))?(-n(?P<near>nvlink|numa|nvlink\.numa))?"
    r"(-t(?P<types>[a-z0-9]+(\.[a-z0-9]+)*))?(-x(?P<not_types>[a-z0-9]+(\.[a-z0-9]+)*))?"
    r"(-u(?P<uuids>([0-9a-f]{32})+))?(-v(?P<not_uuids>([0-9a-f]{32})+))?",
    re.ASCII,
)


def name_of(ask: Ask) -> str:
    """The name of the template for a request.

    Raises:
        InputError: it would be longer than the API takes.
    """
    parts = [
        f"{ask.vendor}-{ask.count}x-{ask.form}",
        _part("p", ask.profile.replace("+", ".")),
        _part("m", ask.memory),
        _part("f", ask.fraction),
        _part("c", ask.compute),
        _part("i", _ISOLATION.get(ask.isolation, "")),
        "numa" if ask.numa else "",
        _part("n", ".".join(ask.near)),
        _part("t", ".".join(ask.types)),
        _part("x", ".".join(ask.not_types)),
        _part("u", "".join(ask.uuids)),
        _part("v", "".join(ask.not_uuids)),
    ]
    name = PREFIX + "-".join(part for part in parts if part)
    if len(name) > MAX_NAME:
        raise InputError(
            f"the request needs a name of {len(name)} characters, {MAX_NAME} are possible",
            hint="choose by type, or list fewer cards, or write a ResourceClaimTemplate of your own",
        )
    return name


def ask_of(name: str) -> Ask | None:
    """The request that a name says; None for a name that no request has."""
    found = _GRAMMAR.fullmatch(name)
    if found is None:
        return None
    text = found.groupdict()
    ask = Ask(
        vendor=text["vendor"],
        count=int(text["count"]),
        form=Form(text["form"]),
        profile=_profile(text["profile"] or ""),
        memory=int(text["memory"] or 0),
        fraction=int(text["fraction"] or 0),
        compute=int(text["compute"] or 0),
        isolation={word: key for key, word in _ISOLATION.items()}.get(text["isolation"] or "", ""),
        numa=bool(text["numa"]),
        near=tuple((text["near"] or "").split(".")) if text["near"] else (),
        types=tuple((text["types"] or "").split(".")) if text["types"] else (),
        not_types=tuple((text["not_types"] or "").split(".")) if text["not_types"] else (),
        uuids=_uuids(text["uuids"]),
        not_uuids=_uuids(text["not_uuids"]),
    )
    return ask if _possible(ask) else None


def _possible(ask: Ask) -> bool:
    """Whether some pod can ask for it; a name of ours that somebody made up is none of ours."""
    if ask.form is Form.WHOLE:
        return not (ask.memory or ask.fraction or ask.compute or ask.isolation or ask.profile)
    if ask.vendor != NVIDIA or ask.compute > 100 or (ask.memory and ask.fraction):
        return False
    if ask.form is Form.MIG:
        return bool(ask.memory) != bool(ask.profile) and not (ask.fraction or ask.compute)
    return ask.fraction < WHOLE_CARD and not ask.profile


def _profile(text: str) -> str:
    return text.replace(".me", "+me").replace(".gfx", "+gfx")


def _part(letter: str, value: object) -> str:
    return f"{letter}{value}" if value else ""


def _uuids(text: str | None) -> tuple[str, ...]:
    return tuple(re.findall(".{32}", text or ""))


def normal(texts: Iterable[str]) -> tuple[str, ...]:
    """A list without repetitions, in order of the alphabet: the order of a list asks for nothing."""
    return tuple(sorted(set(texts)))
