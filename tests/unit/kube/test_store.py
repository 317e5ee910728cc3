# SPDX-License-Identifier: Apache-2.0
"""The indexed cache."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudra.driver.kube.store import Entry, Store

Value = tuple[str, tuple[str, ...]]


def tags(value: Value) -> Iterable[str]:
    """Index function: the second half of a value."""
    return value[1]


def entry(name: str, uid: str, *tagged: str) -> Entry[Value]:
    """An entry in namespace ``ns``."""
    return Entry("ns", name, uid, "1", (uid, tagged))


steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "remove"]),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["u1", "u2", "u3", "u4"]),
        st.lists(st.sampled_from(["x", "y", "z"]), unique=True, max_size=3),
    ),
    max_size=40,
)


@given(steps)
def test_indexes_say_what_a_full_search_says(done: list[tuple[str, str, str, list[str]]]) -> None:
    """After any history each index equals a search over everything, and holds no empty values."""
    store: Store[Value] = Store({"tag": tags})
    truth: dict[str, Entry[Value]] = {}
    for what, name, suffix, tagged in done:
        item = entry(name, f"{name}-{suffix}", *tagged)
        if what == "put":
            assert store.put(item) == truth.get(item.key)
            truth[item.key] = item
        else:
            assert store.remove(item.key) == truth.pop(item.key, None)
    assert store.keys() == sorted(truth)
    assert store.entries() == [truth[key] for key in sorted(truth)]
    for tag in "xyz":
        expected = [truth[key].value for key in sorted(truth) if tag in truth[key].value[1]]
        assert store.by_index("tag", tag) == expected
        assert (tag in store.index_values("tag")) == bool(expected)
    for item in truth.values():
        assert store.by_uid(item.uid) == item.value


def test_lookups() -> None:
    """By name, by namespace and name, by uid; a name used anew forgets the old uid."""
    store: Store[Value] = Store()
    store.put(entry("a", "old"))
    store.put(entry("a", "new"))
    store.put(Entry("", "node", "n", "1", ("n", ())))
    assert store.get("a", "ns") == ("new", ())
    assert store.get("a") is None
    assert store.get("node") == ("n", ())
    assert store.by_uid("old") is None
    assert "ns/a" in store
    assert len(store) == 2
    found = store.entry("a", "ns")
    assert found is not None
    assert found.uid == "new"


def test_an_index_function_that_raises_leaves_the_store_alone() -> None:
    """A failing index function changes nothing."""

    def picky(value: Value) -> Iterable[str]:
        if value[0] == "bad":
            raise ValueError("bad")
        return value[1]

    store: Store[Value] = Store({"tag": picky})
    store.put(entry("a", "good", "x"))
    with pytest.raises(ValueError, match="bad"):
        store.put(entry("a", "bad", "y"))
    assert store.values() == [("good", ("x",))]
    assert store.index_values("tag") == ["x"]


def test_an_unknown_index_is_an_error() -> None:
    """Asking for an index that does not exist is a mistake, not an empty answer."""
    with pytest.raises(KeyError):
        Store().by_index("nope", "x")
