# SPDX-License-Identifier: Apache-2.0
"""Names: what the API server takes and what it refuses."""

from collections.abc import Callable

import pytest

from gpudra.api import names
from gpudra.api.errors import InputError

Check = Callable[[str, str], str]


def fully(value: str, field: str) -> str:
    """A qualified name with its domain."""
    return names.check_qualified_name(value, field, fully=True)


CASES: list[tuple[Check, list[str], list[str]]] = [
    (names.check_dns_label, ["a", "gpu-0", "a" * 63, "0a"], ["", "A", "-a", "a-", "a.b", "a" * 64, "a\n"]),
    (names.check_driver_name, ["gpu.gpudra.io", "a"], ["", "a..b", "A.b", "a" * 64, ".a", "a_b"]),
    (names.check_pool_name, ["node-a", "a/b.c"], ["", "a//b", "/a", "a" * 254, "A"]),
    (names.check_qualified_name, ["memory", "_x", "a.b/memory", "x" * 32], ["", "a/b/c", "1x", "x-y", "x" * 33, "/x", "a/", "A/x", "d" * 64 + "/x"]),
    (fully, ["a.b/x"], ["x", "/x", "a.b/"]),
]  # fmt: skip


@pytest.mark.parametrize(("check", "good", "bad"), CASES)
def test_each_kind_of_name(check: Check, good: list[str], bad: list[str]) -> None:
    """Good names pass unchanged; bad ones are refused with the field's path."""
    for value in good:
        assert check(value, "spec.x") == value
    for value in bad:
        with pytest.raises(InputError) as caught:
            check(value, "spec.x")
        assert caught.value.field == "spec.x"


def test_a_name_without_domain_belongs_to_its_driver() -> None:
    """An unqualified name takes the driver's name as domain."""
    assert names.split_qualified_name("memory", "gpu.example.com") == ("gpu.example.com", "memory")
    assert names.split_qualified_name("a.b/memory", "gpu.example.com") == ("a.b", "memory")
