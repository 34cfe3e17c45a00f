"""What an error report shows of an exception: its frames and theirs, along every link that a reporter follows."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import FrameType

FRAMES_MAX = 60  # in one traceback; a guard's call takes about thirty


def chain(error: BaseException) -> list[BaseException]:
    """The exception, and all that it leads to by `__cause__` and `__context__`.

    Not an exception that is handled around the whole test: `interrupted_at` raises within handlers, and Python 3.11
    then leaves the exception of such a handler in the thread.
    """
    around = sys.exc_info()[1]
    found: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is not None and one is not around and not any(one is known for known in found):
            found.append(one)
            todo += [one.__cause__, one.__context__]
    return found


def frames(error: BaseException) -> list[FrameType]:
    """The frames of its own traceback."""
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append(trace.tb_frame)
        trace = trace.tb_next
    return found


def customers(error: BaseException) -> set[str]:
    """The values of the local variable `customer` in every frame that can be reached, also in the frames outside."""
    return {frame.f_locals["customer"] for frame in _reachable(error) if "customer" in frame.f_locals}


def assert_apart(errors: Sequence[tuple[str, BaseException]]) -> None:
    """Each exception is its customer's alone: no object, no frame and no growing traceback is shared."""
    seen: dict[int, str] = {}
    for customer, error in errors:
        for one in chain(error):
            assert seen.setdefault(id(one), customer) == customer, f"{one!r} was raised in {customer} and another"
            assert len(frames(one)) <= FRAMES_MAX
        assert customers(error) <= {customer}


def _reachable(error: BaseException) -> Iterator[FrameType]:
    for one in chain(error):
        for frame in frames(one):
            outer: FrameType | None = frame
            while outer is not None:
                yield outer
                outer = outer.f_back
