# SPDX-License-Identifier: Apache-2.0
"""What a live pod of an opted-in namespace needs: its templates, or to be told why there are none.

Called by gpudra.controller.conversion for every pod that is not bound yet.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpudra.api.errors import InputError
from gpudra.api.quantity import Quantity
from gpudra.api.resource_v1 import ResourceClaimSpec, ResourceSlice
from gpudra.driver.core.conversion.names import ask_of
from gpudra.driver.core.conversion.pods import CONVERTED, convert_pod
from gpudra.driver.core.conversion.templates import CARD_SIZES, MANAGED_BY, MIB, template_of
from gpudra.driver.core.conversion.types import NVIDIA, Ask, Cards, Classes, Form

Raw = Mapping[str, Any]
# Label of a namespace whose pods are converted; its values.
OPT_IN = "gpudra.io/convert"
STOCK, MANAGED = "stock", "managed"


@dataclass(frozen=True, slots=True)
class Needs:
    """What is to be done for a pod.

    Attributes:
        asks: template name -> request.
        refusal: why the pod was not converted; empty: nothing to say.
    """

    asks: Mapping[str, Ask]
    refusal: str = ""


def needs_of(pod: Raw, *, managed: bool) -> Needs:
    """Reads a pod as the API server has it after admission."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    if CONVERTED in labels:
        claims = (pod.get("spec") or {}).get("resourceClaims") or ()
        names = [str(one.get("resourceClaimTemplateName") or "") for one in claims]
        return Needs({name: ask for name in names if (ask := ask_of(name)) is not None})
    try:
        found = convert_pod(pod, managed=managed)
    except InputError as error:
        return Needs({}, str(error))
    if not found.asks:
        return Needs({})
    return Needs(
        {},
        "was made before its namespace was opted in, or while the admission policy was not in force;"
        " pods cannot be changed afterwards: delete it and create it anew",
    )


def is_converted(pod: Raw) -> bool:
    """Whether the admission policy has converted it."""
    return CONVERTED in ((pod.get("metadata") or {}).get("labels") or {})


def difference(stored: Raw, ask: Ask, cards: Cards, classes: Classes) -> str:
    """Where a stored template differs from the one that the request has; empty if nowhere.

    The sizes of cards may be those of another day: a template that was right when it was made is
    recognised by the sizes that it says it considered.
    """
    wanted = template_of(ask, cards=cards, classes=classes)["spec"]["spec"]
    found = (stored.get("spec") or {}).get("spec") or {}
    try:
        same = ResourceClaimSpec.from_dict(found) == ResourceClaimSpec.from_dict(wanted)
    except InputError as error:
        return f"spec.spec.{error.field}: {error.what}"
    if same:
        return ""
    left, right = (ResourceClaimSpec.from_dict(one).to_dict() for one in (found, wanted))
    return next(_differences(left, right, "spec.spec"), "spec.spec differs")


def _differences(found: Any, wanted: Any, path: str) -> Iterator[str]:
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for key in [*wanted, *(key for key in found if key not in wanted)]:
            yield from _differences(found.get(key), wanted.get(key), f"{path}.{key}")
    elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
            yield from _differences(one, other, f"{path}[{index}]")
    elif found != wanted:
        yield f"{path} is {found!r}, not {wanted!r}"


def is_outdated(stored: Raw, ask: Ask, classes: Classes) -> bool:
    """Whether a template is ours and right, but for the cards that there were when it was made."""
    metadata = stored.get("metadata") or {}
    labels, sizes = (
        metadata.get("labels") or {},
        (metadata.get("annotations") or {}).get(CARD_SIZES),
    )
    if not ask.needs_cards or sizes is None or not MANAGED_BY.items() <= labels.items():
        return False
    try:
        then = cards_of_text(ask, sizes)
        return not difference(stored, ask, then, classes)
    except InputError:
        return False


def cards_of_text(ask: Ask, text: str) -> Cards:
    """The sizes that a template says it considered.

    Raises:
        InputError: the text holds something else than amounts.
    """
    sizes = sorted({Quantity.parse(one.strip()).as_integer() for one in text.split(",")})
    if ask.form is Form.SHARE:
        return Cards(shares=tuple(size // MIB for size in sizes))
    return Cards(parts=tuple(sizes))


def sizes_in(raw: Raw) -> tuple[frozenset[int], frozenset[int]]:
    """MiB of the NVIDIA cards that can be shared, and bytes of MIG devices, in one ResourceSlice."""
    found = ResourceSlice.from_dict(dict(raw))
    driver = found.spec.driver
    shares: set[int] = set()
    parts: set[int] = set()
    for device in found.spec.devices:
        attributes = {
            name.removeprefix(f"{driver}/"): one for name, one in device.attributes.items()
        }
        memory = device.capacity.get("memory") or device.capacity.get(f"{driver}/memory")
        if memory is None or attributes.get("vendor") != NVIDIA:
            continue
        if attributes.get("type") == Form.SHARE:
            shares.add(memory.value.value // MIB)
        elif attributes.get("type") == Form.MIG:
            parts.add(memory.value.value)
    return frozenset(shares), frozenset(parts)


def cards_of(sizes: Iterable[tuple[frozenset[int], frozenset[int]]]) -> Cards:
    """All sizes of a cluster from those of its slices."""
    shares: set[int] = set()
    parts: set[int] = set()
    for some_shares, some_parts in sizes:
        shares |= some_shares
        parts |= some_parts
    return Cards(shares=tuple(sorted(shares)), parts=tuple(sorted(parts)))
