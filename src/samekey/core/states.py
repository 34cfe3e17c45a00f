"""The five states of a record, and which role may make which move.

`NEXT` is data: the diagram in the docs, the compare-and-set of the stores and the model all read it.
Conditions that need more than the state (a dead lease, a missing mark, evidence) are in `register.py`,
one line each.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    """The state of a key; a member equals its text: `State.COMPLETED == "completed"`."""

    STARTED = "started"  # an attempt holds the key, under a lease
    COMPLETED = "completed"  # the effect happened; its result is kept for replay
    CLOSED = "closed"  # refused for good; the refusal is kept for replay
    RELEASED = "released"  # known not to have happened, or harmless to repeat; free to take
    IN_DOUBT = "in_doubt"  # samekey does not know; the provider or a person must decide


STATES = {state.value: state for state in State}  # by the text that records keep


class Role(StrEnum):
    HOLDER = "holder"  # the attempt whose fence the record carries
    PASSER_BY = "passer-by"  # any other attempt that finds the record
    LOOKUP = "lookup"  # an attempt that asked the provider, or that has evidence of what happened
    OPERATOR = "operator"  # a person, with name and reason


# The members as plain names, for the code that every call passes: looking a member up on its class takes ten times as
# long as reading a name of the module.
STARTED, COMPLETED, CLOSED, RELEASED, IN_DOUBT = State
HOLDER, PASSER_BY, _LOOKUP, OPERATOR = Role

_VERDICTS = frozenset({State.COMPLETED, State.CLOSED, State.RELEASED})
_HAPPENED = frozenset({State.COMPLETED, State.CLOSED})

NEXT: Mapping[Role, Mapping[State, frozenset[State]]] = {
    Role.HOLDER: {
        State.STARTED: _VERDICTS | {State.IN_DOUBT},
        State.IN_DOUBT: _VERDICTS,  # late, but the fence is unchanged: the holder knows best
        State.RELEASED: _HAPPENED,  # not taken yet: what the holder reports is evidence
    },
    Role.PASSER_BY: {
        State.STARTED: frozenset({State.IN_DOUBT, State.STARTED}),  # only when the lease is dead
        State.RELEASED: frozenset({State.STARTED}),
        State.IN_DOUBT: frozenset({State.STARTED}),  # only where the boundary lets it run again
    },
    Role.LOOKUP: {
        State.IN_DOUBT: _VERDICTS,
        State.RELEASED: _HAPPENED,  # a late "it happened" is evidence; an attempt that has it never takes the key
    },
    Role.OPERATOR: {
        State.IN_DOUBT: _VERDICTS,
        State.RELEASED: _HAPPENED,
    },
}

SETTLED = _HAPPENED  # the end: only retention or an audited `free` removes them
# Started and in_doubt never expire: unknown is never forgotten. (A dead hold of Repeatable ends: `register.expired`.)
EXPIRES = _VERDICTS


_ALLOWED = frozenset(
    (role, before, after) for role, moves in NEXT.items() for before, afters in moves.items() for after in afters
)


def may(role: Role, before: State, after: State) -> bool:
    """Whether this role may ever make this move."""
    return (role, before, after) in _ALLOWED
