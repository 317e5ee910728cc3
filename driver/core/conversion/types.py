# SPDX-License-Identifier: Apache-2.0
"""What a container asks for, free of the words of the system it was written for."""

from dataclasses import dataclass
from enum import StrEnum

DEFAULT_DRIVER = "gpu.gpudra.io"
NVIDIA = "nvidia"
# A fraction is counted in parts of this: 0.5 of a card is 5000.
WHOLE_CARD = 10_000


class System(StrEnum):
    """Whose words a pod uses. A device plugin's plain count reads as HAMi's."""

    HAMI = "hami"
    KAI = "kai"
    VOLCANO = "volcano"


class Form(StrEnum):
    """In which form of a card the request is served."""

    WHOLE = "gpu"
    SHARE = "share"
    MIG = "mig"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The request of one container. Equal asks have equal names and share one template.

    Attributes:
        count: different cards.
        form: whole cards, shares or MIG devices.
        vendor: of the cards.
        memory: MiB of each card; with MIG the least that the device has. 0: see `fraction`.
        fraction: part of each card's memory in 1/10000; 0 with no memory either: all of it.
        compute: per cent of each card that is reserved and the limit; 0: nothing, unlimited.
        isolation: ``hami-core``, ``mps`` or ``none``; empty: the node decides.
        profile: of the MIG devices; empty: by `memory`.
        numa: all cards have to be of one NUMA node.
        near: what the cards should have in common if that can be had, best first: ``nvlink``, ``numa``.
        types: some of these has to be part of the card's name; letters and digits only.
        not_types: none of these may be.
        uuids: the cards to choose from, as 32 hex digits; empty: any.
        not_uuids: cards to stay away from.
    """

    count: int = 1
    form: Form = Form.WHOLE
    vendor: str = NVIDIA
    memory: int = 0
    fraction: int = 0
    compute: int = 0
    isolation: str = ""
    profile: str = ""
    numa: bool = False
    near: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    not_types: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    not_uuids: tuple[str, ...] = ()

    @property
    def needs_cards(self) -> bool:
        """Whether the claim depends on which cards there are: a part of a card is no amount."""
        return bool(self.fraction) or (self.form is Form.MIG and not self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """The cards that are considered where a request names a part of a card.

    Attributes:
        shares: MiB of the cards that can be shared, each size once, ascending.
        parts: bytes of the MIG devices that there can be, each size once, ascending.
    """

    shares: tuple[int, ...] = ()
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """Names of the DeviceClasses that the chart installs for a driver."""

    driver: str = DEFAULT_DRIVER

    def of(self, ask: Ask) -> str:
        """The class for a request."""
        if ask.form is not Form.WHOLE:
            return f"{ask.form}.{self.driver.removeprefix('gpu.')}"
        return f"{NVIDIA}.{self.driver}" if ask.vendor == NVIDIA else self.driver
