"""The facts that a guard reports: one table, which the logs, the hooks, the docs and the tests share.

An attempt has several facts, in the order in which they came to be. The last one carries its `outcome`: each attempt
ends in exactly one of OUTCOMES, and is counted under it.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from samekey.core.call import Answer
from samekey.core.errors import (
    Busy,
    Fenced,
    InDoubt,
    KeyReused,
    ResultNotKept,
    ResultUnreadable,
    StoreBusy,
    StoreError,
    TransactionConflict,
)
from samekey.core.ports import Event
from samekey.core.states import State

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40  # as in the standard library's logging


class Fact(NamedTuple):
    """What an event means, and at which level it is logged."""

    level: int
    meaning: str

    @property
    def needs_a_person(self) -> bool:
        """Whether it is logged without any hook, and deserves an alert."""
        return self.level >= WARNING


EVENTS = {
    # Ordinary work: DEBUG, or `LoggingHook(level=...)`.
    "claimed": Fact(DEBUG, "an attempt took the key, and its effect begins"),
    "completed": Fact(DEBUG, "the effect ran, and the caller has its answer"),
    "replayed": Fact(DEBUG, "the answer came from the record"),
    "waited": Fact(DEBUG, "the caller waited for another holder of the key"),
    "closed": Fact(DEBUG, "the effect refused for good, and the refusal is on record"),
    "released": Fact(DEBUG, "the key is free again: the effect did not happen, or is harmless to repeat"),
    "raised": Fact(DEBUG, "the attempt ended in an exception"),
    "in_progress": Fact(DEBUG, "another attempt holds the key, and the caller did not wait longer"),
    "looked_up": Fact(DEBUG, "the provider was asked about a doubt"),
    "unguarded": Fact(DEBUG, "an effect runs without a record: `store_down` has the reason, or guards are off"),
    # A change that needs no action.
    "taken_over": Fact(INFO, "a key whose holder is gone was started again, as its boundary allows"),
    "resolved": Fact(INFO, "a lookup showed how a doubt ended"),
    "key_reused": Fact(INFO, "refused: the key was used before with another payload"),
    "lease_lost": Fact(INFO, "a holder lost its lease while its effect ran"),
    "fenced": Fact(INFO, "the store refused a write of a former holder"),
    "abandoned": Fact(INFO, "a hold was dropped inside its block: when its lease ends, the key is in doubt"),
    # A person must look.
    "in_doubt": Fact(WARNING, "it is unknown whether the effect happened"),
    "parked": Fact(WARNING, "workers cannot end a doubt by themselves, and look at it once a day only"),
    "late_truth": Fact(WARNING, "an effect happened, and its callers had got another answer"),
    "late": Fact(WARNING, "a holder came back after it had lost its key; its outcome is kept as evidence"),
    "not_kept": Fact(WARNING, "the effect happened, and its result could not be kept: callers get `ResultNotKept`"),
    "not_recorded": Fact(WARNING, "the effect ran, and the store did not accept its outcome"),
    "store_down": Fact(WARNING, "the store did not answer: nothing ran (`refused`), or the effect runs all the same"),
    "store_unreachable": Fact(WARNING, "the store did not answer when the application started: `guard.check()`"),
    "conflicting": Fact(ERROR, "a lookup found the effect more than once: one of them needs a refund"),
    "store_lost_memory": Fact(ERROR, "the store was restored, wiped or failed over: claims may be missing"),
    "unmarked": Fact(ERROR, "an effect under `marked=True` did not call `sending()`: the mark promises nothing"),
    "unkeyed": Fact(ERROR, "an effect under `Keyed` did not take `provider_key()`: the provider cannot dedup"),
}

OUTCOMES = {
    "new": "the effect ran, and the caller has its answer",
    "replayed": "the answer came from the record",
    "waited": "the answer came from the record, after waiting for the holder",
    "reused": "refused: the key was used before with another payload",
    "refused": "the effect refused for good, or the record replayed that refusal",
    "released": "the effect did not happen, was undone, or is harmless to repeat; the key is free",
    "in_doubt": "it is unknown whether the effect happened",
    "in_progress": "another attempt holds the key, and the caller did not wait longer",
    "fenced": "the attempt lost its hold",
    "store_down": "refused: the store did not answer, and nothing ran",
    "unguarded": "the effect ran without a record: the store did not answer, and the policy is `run`",
}

# The event that carries the outcome, where it is not `raised`.
LAST_EVENT = {
    "reused": "key_reused",
    "in_progress": "in_progress",
    "fenced": "fenced",
    "store_down": "store_down",
}

SOURCES_MAX = 50  # values of the source that are counted apart; the others count together
OTHER = "other"


# -- how an attempt ended ------------------------------------------------------------------------------------------


def outcome_of_answer(answer: Answer[Any], *, waited: bool) -> str:
    if not answer.guarded:
        return "unguarded"
    if not answer.replayed:
        return "new"
    return "waited" if waited else "replayed"


def outcome_of_failure(state: State | None, *, ran: bool, unguarded: bool) -> str:
    """Of an attempt that ended in its effect's own error, or in the refusal on record.

    `state` is what the attempt wrote into the record; None if it wrote nothing, or if the write was not answered.
    """
    if unguarded:
        return "unguarded"
    if not ran or state is State.CLOSED:
        return "refused"  # by the effect, or replayed from the record
    return "released" if state is State.RELEASED else "in_doubt"


def outcome_of_error(error: BaseException, *, waited: bool) -> str:
    """Of an attempt that ended in an error of the guard. Every other error comes before the effect, or undoes it."""
    match error:
        case KeyReused():
            return "reused"
        case StoreBusy() | TransactionConflict() | Busy():
            return "in_progress"
        case InDoubt():
            return "in_doubt"
        case Fenced():
            return "fenced"
        case ResultNotKept() | ResultUnreadable():
            return "waited" if waited else "replayed"
        case StoreError():
            return "store_down"
        case GeneratorExit():
            return "in_doubt"
    return "released"


# -- as text -------------------------------------------------------------------------------------------------------

# Events whose detail is the name of a type or a state, or a phrase of ours. Other details may quote a key or a result.
_SAFE_DETAIL = frozenset({"in_doubt", "late", "resolved", "conflicting", "looked_up", "store_down", "not_recorded"})
_DETAIL = re.compile(
    r"the lease ended|given up: [a-z ]{1,60}|\d{1,9} results|(?:given up: )?[A-Za-z_][A-Za-z0-9_]{0,79}"
)
_ATTEMPT_CHARS = 8


def loggable(event: Event) -> dict[str, Any]:
    """The fields of an event that a log may hold: no key, payload, tenant, result, attribute or text of an error."""
    safe = event.name in _SAFE_DETAIL and _DETAIL.fullmatch(event.detail) is not None
    return {
        "event": event.name,
        "operation": event.operation,
        "digest": event.key_digest,
        "state": event.state,
        "token": event.token,
        "attempt": event.attempt[:_ATTEMPT_CHARS],
        "outcome": event.outcome,
        "error": event.error if _DETAIL.fullmatch(event.error) is not None else "",
        "seconds": 0 if event.duration is None else round(event.duration, 6),
        "detail": event.detail if safe else "",
    }


def line_of(fields: dict[str, Any]) -> str:
    """`in_doubt operation=charge digest=1a2b3c4d ...`: fields that are empty are left out."""
    rest = [f"{name}={value}" for name, value in fields.items() if name != "event" and value not in ("", 0)]
    return " ".join([fields["event"], *rest])
