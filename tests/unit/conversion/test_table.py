# SPDX-License-Identifier: Apache-2.0
"""Every request of the table of other systems' requests becomes the claim that stands beside it."""

import pytest
import yaml

from gpudra.api.errors import InputError
from gpudra.api.resource_v1 import ResourceClaimSpec
from gpudra.driver.core.conversion import words
from gpudra.driver.core.conversion.names import ask_of, name_of
from gpudra.driver.core.conversion.pods import CONVERTED, convert_pod
from gpudra.driver.core.conversion.templates import CARD_SIZES, template_of
from tests.support.conversion import CARDS, Row, claims, rows

ROWS = rows()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.row)
def test_a_request_becomes_its_claims_or_is_refused_by_name(row: Row) -> None:
    """Containers get the templates of the table; a refusal names field and value."""
    pod = row.pod("p")
    if row.refused is not None:
        with pytest.raises(InputError) as refusal:
            convert_pod(pod, managed=row.managed)
        assert row.refused["field"] == refusal.value.field
        assert row.refused["value"] in refusal.value.what
        return
    found = convert_pod(pod, managed=row.managed)
    assert row.asks == {name: name_of(ask) for name, ask in found.asks.items()}
    assert row.note in " ".join(found.notes)
    if row.asks:
        assert row.system == found.pod["metadata"]["labels"][CONVERTED]
        assert words.FOREIGN.search(yaml.safe_dump(found.pod["spec"])) is None
    elif not row.queue:
        assert pod == found.pod
    labels = found.pod["metadata"].get("labels") or {}
    assert row.queue == labels.get("gpudra.io/queue", "")
    assert row.group == labels.get("gpudra.io/pod-group", "")


@pytest.mark.parametrize("name", claims())
def test_a_name_says_the_whole_request(name: str) -> None:
    """From the name of a template alone comes the claim of the table."""
    ask = ask_of(name)
    assert ask is not None
    assert name == name_of(ask)
    template = template_of(ask, cards=CARDS)
    expected = claims()[name]
    assert expected["devices"] == template["spec"]["spec"]["devices"]
    assert expected.get("sizes") == template["metadata"].get("annotations", {}).get(CARD_SIZES)
    ResourceClaimSpec.from_dict(template["spec"]["spec"])


def test_the_table_is_large_and_complete() -> None:
    """Sixty requests at least, every word of other systems among them, and a claim for every name."""
    assert len(ROWS) >= 60
    text = yaml.safe_dump([row.pod("p") for row in ROWS])
    known = (
        set(words.HAMI_RESOURCES.values())
        | set(words.VOLCANO_RESOURCES.values())
        | set(words.COUNTED)
        | words.TRANSLATED
        | set(words.KAI_EXTRAS)
        | {words.PRIORITY, words.DISABLE_CONTROL}
    )
    assert [word for word in sorted(known) if word not in text] == []
    names = {name for row in ROWS for name in (row.asks or {}).values()}
    assert names == set(claims())
