# SPDX-License-Identifier: Apache-2.0
"""The newest form of an object, whichever way it became known."""

from gpudra.controller.managed.latest import Form, Latest


def form(version: int, uid: str = "u", value: str = "") -> Form[str]:
    """A form whose value says its version."""
    return Form(uid, str(version), value or str(version))


def test_an_answer_counts_before_the_watch_shows_it() -> None:
    """Older forms that the watch still has to tell do not replace it."""
    latest = Latest[str]()
    assert latest.seen("a", form(1))
    assert latest.answered("a", form(5))
    assert not latest.seen("a", form(3))
    assert not latest.seen("a", form(5))
    assert latest.seen("a", form(7))
    found = latest.get("a")
    assert found is not None
    assert found.value == "7"


def test_an_old_answer_is_no_news() -> None:
    """The watch was faster than the answer."""
    latest = Latest[str]()
    assert latest.seen("a", form(7))
    assert not latest.answered("a", form(5))
    assert not latest.answered("a", form(7))


def test_what_is_gone_stays_gone() -> None:
    """Neither a late answer nor a late event brings it back; its successor is another object."""
    latest = Latest[str]()
    latest.seen("a", form(1))
    assert latest.remove("a", "u")
    assert not latest.answered("a", form(9))
    assert not latest.seen("a", form(9))
    assert latest.get("a") is None
    assert latest.seen("a", form(2, "v"))
    assert not latest.remove("a", "u")
    assert latest.get("a", "v") is not None
    assert latest.get("a", "u") is None


def test_a_restored_server_is_believed() -> None:
    """The watch may go back to versions of yesterday; only answers of ours are held against it."""
    latest = Latest[str]()
    latest.seen("a", form(1000))
    assert latest.seen("a", form(10))
