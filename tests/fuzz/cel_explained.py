# SPDX-License-Identifier: Apache-2.0
"""Recognises the differences that docs/decisions/cel-differences.md explains.

Each rule names the section there and looks for what causes it in the expression. A rule must be
narrow: what it covers is not compared any more.
"""

import re

_ARITHMETIC = re.compile(r"\.(add|sub)\(")
_COMPARED = re.compile(r"==|!=| in |\.(includes|indexOf|lastIndexOf|distinct)\(|sets\.")

_RULES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("whole quantities by their spelling", re.compile(r"\.(isInteger|asInteger)\(\)")),
    ("approximate floats round once", re.compile(r"\.asApproximateFloat\(\)")),
    ("the smallest int as an amount", re.compile(r"-9223372036854775808|-0x8000000000000000")),
)


_VALUES = re.compile(r"value (.*), theirs (.*)", re.DOTALL)
_LOOP = re.compile(r"\.(map|filter|transformList)\(")


def _reordered(expression: str, difference: str) -> bool:
    """Whether the values differ in the order of elements only, after a loop over a map."""
    found = _VALUES.fullmatch(difference)
    return bool(
        found
        and "{" in expression
        and _LOOP.search(expression)
        and sorted(found[1]) == sorted(found[2])
    )


def explained(expression: str, difference: str) -> str | None:
    """Which explained difference this is, or None."""
    if _reordered(expression, difference):
        return "order of maps"
    if (
        difference.startswith("only they fail")
        and "internal error: interface conversion" in difference
    ):
        return "sort, sortBy and distinct of an error"
    if "quantity(" not in expression and "capacity" not in expression:
        return None
    for name, pattern in _RULES:
        if pattern.search(expression):
            return name
    computed = _ARITHMETIC.search(expression) and _COMPARED.search(expression)
    if computed and difference.startswith("only they fail"):
        return "equality with a computed quantity"
    return None
