# SPDX-License-Identifier: Apache-2.0
"""How many texts a process keeps that it has read once."""

from collections.abc import Iterator

import pytest

from gpudra.api import codec


@pytest.fixture
def few() -> Iterator[int]:
    """A process that keeps ten texts."""
    codec.keep_texts(10)
    yield 10
    codec.keep_texts(65536)


def test_equal_texts_are_one_object_while_they_are_kept(few: int) -> None:
    """The texts that repeat are there once, whoever decodes them."""
    word = "-".join(("gpu", "0"))
    again = "-".join(("gpu", "0"))
    assert word is not again
    assert codec.decode_string(word) is codec.decode_string(again)


def test_texts_of_the_past_do_not_stay(few: int) -> None:
    """Uids of claims come and go for ever; what is kept does not grow with them."""
    for number in range(1000):
        codec.decode_string(f"uid-{number}")
    assert codec._interned.cache_info().currsize == few
