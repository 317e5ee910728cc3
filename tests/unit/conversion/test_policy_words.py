# SPDX-License-Identifier: Apache-2.0
"""The admission policy holds the same words as the command; what it does with them is an e2e test."""

import json
import re

import pytest
import yaml

from gpudra.controller.ctl.local.layout import checkout_dir
from gpudra.driver.core.conversion import queues, words
from gpudra.driver.core.conversion.pods import CONVERTED

POLICY = checkout_dir() / "deploy/charts/gpudra/templates/conversion-policy.yaml"
TEXT = POLICY.read_text()
PATTERNS = dict(re.findall(r"\{\{- \$(\w+) := (\".*\") \}\}", TEXT))


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("foreign", f"^({words.FOREIGN.pattern})$"),
        ("state", f"^({words.STATE.pattern})$"),
        ("families", f"^({words.FAMILIES.pattern})$"),
        ("ascend", f"^{words.ASCEND.pattern}$"),
    ],
)
def test_patterns_are_the_same(name: str, pattern: str) -> None:
    """Letter by letter: RE2 there, re here, and nothing in them that the two read differently."""
    assert json.loads(PATTERNS[name]) == pattern


def test_vendors_are_the_same() -> None:
    """Cards that are counted, and whose they are."""
    table = re.search(r"name: vendors\n +expression: >-\n(.*?)\n +#", TEXT, re.DOTALL)
    assert table is not None
    assert yaml.safe_load(table[1]) == words.COUNTED


def test_every_word_is_in_the_policy() -> None:
    """Resources, annotations, queues, schedulers and the labels that it writes."""
    wanted = [
        *words.HAMI_RESOURCES.values(),
        *words.VOLCANO_RESOURCES.values(),
        *(words.TRANSLATED - {words.FRACTION_LIMIT, words.MEMORY_LIMIT}),
        *words.KAI_EXTRAS,
        *words.SCHEDULERS,
        *(key for _, key in (*queues.QUEUES, *queues.GROUPS)),
        *(words.PRIORITY, words.DISABLE_CONTROL),
    ]
    assert [word for word in wanted if f"'{word}'" not in TEXT] == []
    for label in (CONVERTED, queues.QUEUE, queues.GROUP):
        assert f"/metadata/labels/{label.replace('/', '~1')}'" in TEXT
