"""The five states of a record, and who may move what.

`NEXT` is data: the docs' diagram, the stores' compare-and-set and the model all read it here.
Conditions that need more than the state (a dead lease, a missing mark, evidence) stand in
`register.py`, one line each.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    """Where a key stands: equal to its word, `State.COMPLETED == "completed"`."""

    STARTED = "started"  # someone holds the key, under a lease
    COMPLETED = "completed"  # the effect happened; its result is kept for replay
    CLOSED = "closed"  # refused for good; the refusal is kept for replay
    RELEASED = "released"  # known not to have happened; free to take
    IN_DOUBT = "in_doubt"  # nobody here knows; the provider, or a person, must say


class Role(StrEnum):
    HOLDER = "holder"  # the attempt whose fence the record carries
    PASSER_BY = "passer-by"  # any other attempt that finds the record
    LOOKUP = "lookup"  # someone who asked the provider, or holds evidence of what happened
    OPERATOR = "operator"  # a person, with name and reason


_VERDICTS = frozenset({State.COMPLETED, State.CLOSED, State.RELEASED})
_HAPPENED = frozenset({State.COMPLETED, State.CLOSED})

NEXT: Mapping[Role, Mapping[State, frozenset[State]]] = {
    Role.HOLDER: {
        State.STARTED: _VERDICTS | {State.IN_DOUBT},
        State.IN_DOUBT: _VERDICTS,  # late, but the fence is still ours: the best word there is
        State.RELEASED: _HAPPENED,  # nobody took it yet: our word is evidence
    },
    Role.PASSER_BY: {
        State.STARTED: frozenset({State.IN_DOUBT, State.STARTED}),  # only when the lease is dead
        State.RELEASED: frozenset({State.STARTED}),
        State.IN_DOUBT: frozenset({State.STARTED}),  # only where the boundary lets it run again
    },
    Role.LOOKUP: {
        State.IN_DOUBT: _VERDICTS,
        State.RELEASED: _HAPPENED,  # a late "it happened" is evidence; whoever holds it never takes
    },
    Role.OPERATOR: {
        State.IN_DOUBT: _VERDICTS,
        State.RELEASED: _HAPPENED,
    },
}

SETTLED = _HAPPENED  # the end: only retention or an audited `free` removes them
EXPIRES = _VERDICTS  # started and in_doubt never expire: unknown is never forgotten


_ALLOWED = frozenset(
    (role, before, after) for role, moves in NEXT.items() for before, afters in moves.items() for after in afters
)


def may(role: Role, before: State, after: State) -> bool:
    """Whether this role may ever make this move."""
    return (role, before, after) in _ALLOWED
