"""What a consumer does with a message: one pure table for every broker.

The handler asks the guard and gets a value: of `begin`, or an `Ended`. `decide` makes an `Action` of it, and the file
of each broker only translates the action:

    ack       the broker may forget the message
    later     it comes back after some seconds; free: without costing a try, counted: it is one try
    park      the parking store keeps it, then the broker may forget it
    dead      the dead-letter place keeps it, with the reason, then the broker may forget it
    silent    nothing is sent to the broker: another consumer may have the message by now
    stop      with any of them: take no more messages until the store is well

Two rules stand above the rows. A holder that lost its lease says nothing to the broker, unless the record is settled:
a late ack of an old delivery would remove the message under its new holder. And what is parked or dead is written
first and acknowledged second: a crash in between repeats the write under the same id.

| row | what the guard answered                          | action                                             |
|-----|--------------------------------------------------|----------------------------------------------------|
| 1   | first run completed                              | ack                                                |
| 2   | replay                                           | ack, with the stored result                        |
| 3   | running elsewhere                                | later, free                                        |
| 4   | took over, then completed                        | ack                                                |
| 5   | NotDone                                          | later, counted; after the last try: dead           |
| 6   | any other error under Repeatable (released)      | as 5; also a transaction that was rolled back      |
| 7a  | in doubt, the next delivery runs                 | later, counted; after the last try: park           |
| 7b  | in doubt, the next delivery asks the provider    | later, counted; after the last try: park           |
| 7c  | in doubt, only a person can decide               | park                                               |
| 8   | refused, now or before                           | ack, or dead where `refused="dead"`                |
| 9   | in doubt already                                 | being asked by another: later, free; else as 7     |
| 10  | the key was used with another payload            | dead; the record is not touched                    |
| 11  | no key, malformed, no fingerprint                | dead; there is no record                           |
| 12  | body too big / result too big                    | dead, before the claim / ack                       |
| 13  | store down at the claim                          | later, free, and stop                              |
| 14  | store down at the settle, until the lease ended  | silent, and stop                                   |
| 15  | lease lost while running                         | the record is settled: ack; else silent            |
| 16  | shutdown: not begun / cut / cut and begun        | later, free / later, free / silent                 |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from samekey.core.call import Answer
from samekey.core.errors import SamekeyError, StoreError
from samekey.core.next_step import Next
from samekey.core.states import State
from samekey.guard.adapters import Doubt, Down, Ended, Mismatch, NotKept, Refusal, Waiting

Verb = Literal["ack", "later", "park", "dead", "silent"]

BACKOFF_SECONDS = 1.0  # before the second try; doubled for each try after it
BACKOFF_MAX_SECONDS = 300.0  # a provider that was down for an hour is asked again within minutes
LATER_MAX_SECONDS = 30.0  # a message that waits for another holder looks again at least this often
STORE_DOWN_SECONDS = 2.0
TRIES_MAX = 10


@dataclass(frozen=True, slots=True)
class Action:
    """What to do with one delivery."""

    verb: Verb
    seconds: float = 0.0  # of later
    counted: bool = False  # of later: it is one try
    kind: str = ""  # of park and dead: "in doubt", "poison", ... as in samekey_parked
    reason: str = ""
    stop: bool = False
    result: Any = None  # of ack: what the effect returned, now or before
    row: str = ""  # of the table, for logs and tests
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """What an application may choose about the table."""

    refused: Literal["ack", "dead"] = "ack"
    tries: int = TRIES_MAX  # counted tries before a message is dead or parked
    backoff: float = BACKOFF_SECONDS
    backoff_max: float = BACKOFF_MAX_SECONDS
    later_max: float = LATER_MAX_SECONDS

    def after(self, tries: int, jitter: float) -> float:
        """Seconds to wait after so many tries; `jitter` from 0 to 1 spreads them by up to a quarter."""
        doubled: float = self.backoff * 2 ** min(max(tries, 1) - 1, 30)
        return min(doubled, self.backoff_max) * (1 + jitter / 4)


@dataclass(frozen=True, slots=True)
class Delivery:
    """What the consumer knows about this delivery, apart from the record."""

    tries: int = 1  # this one included; only those that were counted
    lost: bool = False  # the lease was lost while the effect ran
    cut: bool = False  # the effect was cut short by a shutdown
    jitter: float = 0.0  # from 0 to 1; the table itself has no randomness


@dataclass(frozen=True, slots=True)
class Poison:
    """The message has no key, or no form in which two deliveries could be compared."""

    why: str


@dataclass(frozen=True, slots=True)
class TooBig:
    size: int
    most: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The consumer stops, and the effect of this message has not begun."""


Outcome = Answer[Any] | Refusal | NotKept | Waiting | Doubt | Mismatch | Down | Ended | Poison | TooBig | Shutdown


def decide(outcome: Outcome, delivery: Delivery, rules: Rules) -> Action:
    """The action for this outcome of this delivery."""
    match outcome:
        case Ended():
            return _ended(outcome, delivery, rules)
        case Answer():
            return Action("ack", result=outcome.result, row="2", replayed=True)
        case NotKept():
            return Action("ack", row="2", replayed=True)
        case Waiting(retry_after=left):
            spread = 1 + delivery.jitter / 4
            return Action("later", max(0.0, min(left, rules.later_max)) * spread, row="3")
        case Refusal(error=error):
            return _refused(error, rules, replayed=True)
        case Doubt(error=error, next=following, retry_after=left):
            if left > 0 and following == "asks":
                return Action("later", min(left, rules.later_max) * (1 + delivery.jitter / 4), row="9")
            return _in_doubt(following, error.error or "no error recorded", delivery, rules, row="9")
        case Mismatch(error=reused):
            fields = ", ".join(reused.fields) or "the payload"
            return Action("dead", kind="key reused", reason=f"key reused: fields {fields}", row="10")
        case Poison(why=why):
            return Action("dead", kind="poison", reason=f"poison: {why}", row="11")
        case TooBig(size=size, most=most):
            return Action("dead", kind="too big", reason=f"too big: {size} bytes, {most} are the limit", row="12")
        case Down():
            return Action("later", STORE_DOWN_SECONDS, stop=True, row="13")
        case Shutdown():
            return Action("later", row="16")


def _ended(ended: Ended, delivery: Delivery, rules: Rules) -> Action:
    if ended.recorded and ended.state is State.COMPLETED:
        row = "15" if delivery.lost else "2" if ended.replayed else "1"
        return Action("ack", result=ended.result, row=row, replayed=ended.replayed)
    if ended.recorded and ended.state is State.CLOSED:
        return _refused(ended.error, rules, replayed=ended.replayed)
    if delivery.cut:
        released = ended.recorded and ended.state is State.RELEASED and not delivery.lost
        return Action("later", row="16") if released else Action("silent", row="16")
    if ended.state is None:  # no record: a transaction that was rolled back, or guards are switched off
        if ended.error is None:
            return Action("ack", result=ended.result, row="1")
        return _not_done(ended.error, delivery, rules, row="6")
    if delivery.lost or ended.replayed:
        return Action("silent", row="15")
    if not ended.recorded or ended.state is State.STARTED:
        fenced = isinstance(ended.error, SamekeyError) and not isinstance(ended.error, StoreError)
        return Action("silent", row="15") if fenced else Action("silent", stop=True, row="14")
    if ended.state is State.RELEASED:
        return _not_done(ended.error, delivery, rules, row="5")
    return _in_doubt(ended.next, type(ended.error).__name__, delivery, rules, row="7")


def _refused(error: BaseException | None, rules: Rules, *, replayed: bool) -> Action:
    if rules.refused == "ack":
        return Action("ack", row="8", replayed=replayed)
    return Action("dead", kind="refused", reason=f"refused: {type(error).__name__}", row="8", replayed=replayed)


def _not_done(error: BaseException | None, delivery: Delivery, rules: Rules, *, row: str) -> Action:
    if delivery.tries >= rules.tries:
        reason = f"not done after {delivery.tries} tries: {type(error).__name__}"
        return Action("dead", kind="not done", reason=reason, row=row)
    return Action("later", rules.after(delivery.tries, delivery.jitter), counted=True, row=row)


def _in_doubt(following: Next, why: str, delivery: Delivery, rules: Rules, *, row: str) -> Action:
    """The record is in doubt. A message that used up its tries is parked, not dead: its effect may have happened."""
    letter = {"runs": "a", "asks": "b", "person": "c"}.get(following, "") if row == "7" else ""
    if following == "answers":  # evidence says that it happened: the next delivery gets the answer
        return Action("later", 0.0, row=row)
    if following == "person":
        return Action("park", kind="in doubt", reason=f"in doubt: {why}", row=row + letter)
    if delivery.tries >= rules.tries:
        reason = f"in doubt after {delivery.tries} tries: {why}"
        return Action("park", kind="in doubt", reason=reason, row=row + letter)
    return Action("later", rules.after(delivery.tries, delivery.jitter), counted=True, row=row + letter)
