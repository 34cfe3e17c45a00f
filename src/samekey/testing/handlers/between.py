"""Where a line of code can be stopped between two things that it does: `sent.append(send(order))` does two."""

from __future__ import annotations

import dis
import functools
import sys
from types import CodeType, FrameType
from typing import Any

# PRECALL is how 3.11 begins a call. Local names are left out: no other call sees them.
CALLS = frozenset({"PRECALL", "CALL", "CALL_KW", "CALL_FUNCTION_EX"})
STORES = frozenset({"STORE_SUBSCR", "STORE_ATTR", "STORE_GLOBAL", "DELETE_SUBSCR", "DELETE_ATTR"})


def _traces_opcodes() -> bool:
    """Whether this Python calls a tracer for single instructions, from the first call on."""
    if sys.version_info[:2] == (3, 12):  # crashes if one thread turns that on in code that another thread runs
        return False
    events: list[str] = []

    def steps(frame: FrameType, event: str, arg: Any) -> Any:
        events.append(event)
        return steps

    def calls(frame: FrameType, event: str, arg: Any) -> Any:
        frame.f_trace_opcodes = True
        return steps

    before = sys.gettrace()
    sys.settrace(calls)
    try:
        (lambda: None)()
    finally:
        sys.settrace(before)
    return "opcode" in events  # 3.13.0 does so only when it meets the code again


TRACES_OPCODES = _traces_opcodes()


@functools.cache
def between(code: CodeType) -> frozenset[int]:
    """The instructions that call or store something on a line that has called something before."""
    if not TRACES_OPCODES:
        return frozenset()
    found: set[int] = set()
    called_on: int | None = None  # the line that has called something
    before = ""
    for step in dis.get_instructions(code):
        line = None if step.positions is None else step.positions.lineno
        calls = step.opname in CALLS and before != "PRECALL"
        if (calls or step.opname in STORES) and line is not None and line == called_on:
            found.add(step.offset)
        if calls:
            called_on = line
        before = step.opname
    return frozenset(found)
