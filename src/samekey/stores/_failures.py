"""One exception object for each caller, when one failure ends the commands of many callers."""

from __future__ import annotations

from typing import TypeVar

CAUSES_MAX = 8  # a driver's chain has two or three

_E = TypeVar("_E", bound=BaseException)


def own_copy(error: _E, causes: int = CAUSES_MAX) -> _E:
    """A new exception that says the same, for one caller to raise; its causes are copied too.

    The copy has no traceback and no `__context__`. Both lead to frames of the thread or task that met the failure,
    and those frames hold the arguments of every caller in its batch: an error report of one customer would show them.
    Raising one object in many callers would also add the frames of each to the traceback of all.
    """
    copied = type(error).__new__(type(error), *error.args)
    copied.args = error.args
    copied.__dict__.update(error.__dict__)
    if "__notes__" in error.__dict__:
        copied.__notes__ = [*error.__notes__]
    cause = error.__cause__
    copied.__cause__ = None if cause is None or not causes else own_copy(cause, causes - 1)
    copied.__suppress_context__ = error.__suppress_context__
    return copied
