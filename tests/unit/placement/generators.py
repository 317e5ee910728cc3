# SPDX-License-Identifier: Apache-2.0
"""Random small clusters and requests for the property tests of placement."""

from hypothesis import strategies as st

from gpudra.driver.core.placement.types import MigProfile, MigTable, NodeSpec, Request

MODELS = ("T4", "G2", "P100")
TABLE = MigTable(
    (
        MigProfile("1g", 1, (0, 1, 2, 3, 4, 5, 6)),
        MigProfile("2g", 2, (0, 2, 4)),
        MigProfile("3g", 4, (0, 4)),
        MigProfile("7g", 8, (0,)),
    )
)
SIZES = (50, 110, 190, 230, 320, 470, 500, 650, 810)


@st.composite
def nodes(draw: st.DrawFn, *, plain: bool = False) -> list[NodeSpec]:
    """One to five nodes; unless ``plain``, some with NVLink sets or MIG tables."""
    found = []
    for number in range(draw(st.integers(1, 5))):
        cards = draw(st.integers(1, 4))
        links: tuple[int, ...] = ()
        table = MigTable()
        if not plain and draw(st.booleans()):
            links = tuple(draw(st.integers(-1, 1)) for _ in range(cards))
        if not plain and draw(st.booleans()):
            table = TABLE
        found.append(
            NodeSpec(
                f"n{number}",
                draw(st.sampled_from((8000, 16000, 32000))),
                draw(st.sampled_from((16384, 65536))),
                cards,
                draw(st.sampled_from(MODELS)),
                links,
                links,
                table,
            )
        )
    return found


@st.composite
def requests(draw: st.DrawFn, *, plain: bool = False) -> Request:
    """A CPU-only, shared, whole-card or (unless ``plain``) MIG or lopsided request."""
    cpu, memory = draw(st.integers(0, 6)) * 1000, draw(st.integers(0, 4)) * 4096
    models = draw(st.sets(st.sampled_from(MODELS), max_size=2)) if draw(st.booleans()) else set()
    form = draw(st.sampled_from(("cpu", "share", "whole") + (() if plain else ("mig", "skew"))))
    allowed = frozenset(models)
    if form == "cpu":
        return Request(cpu, memory)
    if form == "whole":
        return Request(cpu, memory, draw(st.integers(1, 4)), 1000, 1000, allowed)
    if form == "mig":
        profile = draw(st.sampled_from([p.name for p in TABLE.profiles]))
        return Request(cpu, memory, 1, models=allowed, mig_profile=profile)
    size = draw(st.sampled_from(SIZES))
    other = size if form == "share" else draw(st.sampled_from(SIZES))
    return Request(cpu, memory, 1, size, other, allowed)
