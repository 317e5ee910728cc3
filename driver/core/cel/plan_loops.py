# SPDX-License-Identifier: Apache-2.0
"""Plans for the loops that macros make, run natively instead of step by step.

The prices are those of the expanded loop (``macros``): an element of ``all`` costs three units
besides the predicate, of ``exists`` four, a kept element of ``filter`` thirteen, and so on. An
error in ``map``, ``filter`` and ``exists_one`` fails the loop; counting goes on as upstream does.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gpudra.driver.core.cel.errors import CelCostExceeded, CelValueError
from gpudra.driver.core.cel.library.operators import MAX_ELEMENTS
from gpudra.driver.core.cel.plan import NeedsCountingError, Run, charge, not_a_bool
from gpudra.driver.core.cel.values import MAPS, MapValue, Value, map_items, map_size

_NOTHING: Run = lambda _frame: None  # noqa: E731 - a named constant


class Loop(NamedTuple):
    """The parts of a loop.

    Attributes:
        kind: the macro.
        over: computes what is looped over.
        slot: where the first variable lives in the frame.
        slot2: where the second one lives; -1 if there is none.
        predicate: the condition; None if there is none.
        transform: the value of an element; None if there is none.
        constant_transform: whether cel-go folds ``[transform]`` into a constant list.
        counted: whether costs are counted.
    """

    kind: str
    over: Run
    slot: int
    slot2: int
    predicate: Run | None
    transform: Run | None
    constant_transform: bool
    counted: bool


def plan_loop(loop: Loop) -> Run:
    """A plan for a loop."""
    return _KINDS[loop.kind](loop)


def _elements(loop: Loop, frame: Any) -> Iterator[None]:
    """Runs through the elements, leaving each in the frame's variables."""
    over, variables = loop.over(frame), frame.variables
    slot, slot2 = loop.slot, loop.slot2
    if not loop.counted:
        _spend(frame, over)
    if type(over) is tuple:
        if slot2 < 0:
            for value in over:
                variables[slot] = value
                yield
        else:
            for index, value in enumerate(over):
                variables[slot], variables[slot2] = index, value
                yield
    elif isinstance(over, MAPS):
        for key, value in map_items(over):
            variables[slot] = key
            if slot2 >= 0:
                variables[slot2] = value
            yield
    else:
        raise CelValueError(
            f"a {type(over).__name__} cannot be looped over", hint="test the type of the attribute"
        )


def _spend(frame: Any, over: Value) -> None:
    """Keeps plain evaluation to short loops: more elements in all are left to counted plans."""
    frame.cost += (
        map_size(over) if isinstance(over, MAPS) else len(over) if type(over) is tuple else 0
    )
    if frame.cost > frame.limit:
        raise NeedsCountingError


def _quantifier(loop: Loop) -> Run:
    """``all`` and ``exists``: the first decisive element ends the loop and absorbs errors."""
    return _counted_quantifier(loop) if loop.counted else _plain_quantifier(loop)


def _plain_quantifier(loop: Loop) -> Run:
    decisive, predicate = loop.kind == "exists", loop.predicate or _NOTHING

    def run(frame: Any) -> Value:
        failure: CelValueError | None = None
        for _ in _elements(loop, frame):
            try:
                answer = predicate(frame)
            except CelValueError as error:
                failure = failure or error
                continue
            if answer is decisive:
                return decisive
            if type(answer) is not bool:
                failure = failure or not_a_bool(answer, loop.kind)
        if failure is not None:
            raise failure
        return not decisive

    return run


def _counted_quantifier(loop: Loop) -> Run:
    decisive, predicate = loop.kind == "exists", loop.predicate or _NOTHING
    price = 3 if decisive else 2

    def run(frame: Any) -> Value:
        failure: CelValueError | None = None
        decided = False
        for _ in _elements(loop, frame):
            if decided:
                charge(frame, price)  # upstream notices at the next element
                break
            charge(frame, price + 1)
            try:
                answer = predicate(frame)
            except CelValueError as error:
                failure = failure or error
                continue
            decided = answer is decisive
            if type(answer) is not bool:
                failure = failure or not_a_bool(answer, loop.kind)
        charge(frame, 1)
        if failure is not None and not decided:
            raise failure
        return decisive if decided else not decisive

    return run


def _exists_one(loop: Loop) -> Run:
    predicate, counted = loop.predicate or _NOTHING, loop.counted

    def run(frame: Any) -> Value:
        failure: CelValueError | None = None
        count = 0
        for _ in _elements(loop, frame):
            try:
                answer = predicate(frame)
                if type(answer) is not bool:
                    raise not_a_bool(answer, "exists_one")
            except CelValueError as error:
                failure = failure or error
                answer = False
            if answer:
                count += 1
            if counted:
                charge(frame, 2 if answer else 0)
            elif failure is not None:
                break
        if counted:
            charge(frame, 2)
        if failure is not None:
            raise failure
        return count == 1

    return run


# Adds what one element contributes to the result; gets the frame and the result so far.
_Keep = Callable[[Any, Any], None]


def _gather(loop: Loop, start: Callable[[], Any], keep: _Keep, price: int) -> Run:
    """Loops that build a list or a map; ``price`` is what keeping one element costs."""
    step = _step(loop, keep, price)
    # A call of three arguments, as the insertion of transformMap is, stops at the first error: once
    # the result is one, it is all that is computed.
    later = _step(loop, _keep_nothing, 1) if loop.kind == "transform_map" else step
    counted = loop.counted

    def run(frame: Any) -> Value:
        failure: CelValueError | None = None
        result = start()
        for _ in _elements(loop, frame):
            try:
                (step if failure is None else later)(frame, result)
            except CelValueError as error:
                if not counted:
                    raise
                failure = failure or error
        if counted:
            charge(frame, 1)
        if failure is not None:
            raise failure
        if len(result) > MAX_ELEMENTS:
            raise CelCostExceeded(f"a loop made more than {MAX_ELEMENTS} elements")
        return tuple(result) if type(result) is list else result

    return run


def _keep_nothing(_frame: Any, _result: Any) -> None:
    """Keeps nothing."""


def _step(loop: Loop, keep: _Keep, price: int) -> _Keep:
    """One round: tests the predicate, pays, keeps."""
    predicate, counted = loop.predicate, loop.counted

    def step(frame: Any, result: Any) -> None:
        if predicate is not None:
            answer = predicate(frame)
            if type(answer) is not bool:
                raise not_a_bool(answer, loop.kind)
            if not answer:
                if counted:
                    charge(frame, 0)
                return
        if counted:
            charge(frame, price)
        keep(frame, result)

    return step


def _list(loop: Loop) -> Run:
    transform = loop.transform or _NOTHING

    def keep(frame: Any, result: list[Value]) -> None:
        result.append(transform(frame))

    return _gather(loop, list, keep, 2 if loop.constant_transform else 12)


def _map(loop: Loop) -> Run:
    transform, slot = loop.transform or _NOTHING, loop.slot

    def keep(frame: Any, result: MapValue) -> None:
        _insert(result, frame.variables[slot], transform(frame))

    return _gather(loop, MapValue, keep, 3)


def _entries(loop: Loop) -> Run:
    transform = loop.transform or _NOTHING

    def keep(frame: Any, result: MapValue) -> None:
        entries = transform(frame)
        if not isinstance(entries, MAPS):
            raise CelValueError("transformMapEntry() wants a map for each element")
        for key, value in map_items(entries):
            _insert(result, key, value)

    return _gather(loop, MapValue, keep, 2)


def _insert(result: MapValue, key: Value, value: Value) -> None:
    if result.find(key)[0]:
        raise CelValueError(f"the key {key!r} occurs twice")
    result.insert(key, value)


_KINDS: dict[str, Callable[[Loop], Run]] = {
    "all": _quantifier,
    "exists": _quantifier,
    "exists_one": _exists_one,
    "map": _list,
    "filter": _list,
    "transform_map": _map,
    "transform_entry": _entries,
}
