"""The drainer: moves entries from the buffer to the database, and keeps the filter of known keys.

Steps, as in the pipeline. A pop leases entries, so a drainer that is killed after it loses nothing; the fence refuses
an acknowledgement of a drainer whose lease has ended. Entries are written before they are acknowledged, together with
the log of their changes; an acknowledgement finds newer changes and hands them back, to be written first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from samekey.core.errors import SamekeyError
from samekey.intake import commands as c
from samekey.intake.buffer_commands import AckMany, Fill, Load
from samekey.intake.pipeline import Context, Steps, free_if_over

ACKS_MAX = 50  # changes that may come between a write and its acknowledgement, before the entry is left for later
LOAD_PIECE = 500


class Drained(NamedTuple):
    """What became of one pop."""

    written: int = 0
    there: int = 0
    buried: int = 0
    left: int = 0  # not written this time: their leases bring them back
    popped: int = 0

    def plus(self, other: Drained) -> Drained:
        return Drained(*(one + more for one, more in zip(self, other, strict=True)))


@dataclass(slots=True)
class Rules:
    for_good: Callable[[BaseException], bool]  # whether an error will be the same each time
    note: Callable[[str], None] = lambda _: None


def drain(environment: str, count: int, lease: float, rules: Rules) -> Steps:
    """One pop of up to `count` entries of one environment. Raises the error of a database that does not answer."""
    popped: list[c.Popped] = yield c.Pop(environment, count, lease)
    result = Drained(popped=len(popped))
    entries: list[c.Popped] = []
    for one in popped:
        if one.entry is None:
            yield c.Bury(environment, one.id, one.fence, f"unreadable: {one.reason}")
            result = result._replace(buried=result.buried + 1)
        else:
            entries.append(one)
    if not entries:
        return result
    try:
        outcomes: list[Any] = yield c.Absorb(
            tuple((one.entry.run, one.entry.operations) for one in entries if one.entry)
        )
    except Exception as error:
        if isinstance(error, SamekeyError) and not rules.for_good(error):
            raise  # the database does not answer: the leases bring the entries back
        outcomes = yield from _one_by_one(entries, rules)
    acks = []
    for one, outcome in zip(entries, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            if rules.for_good(outcome):
                yield c.Bury(environment, one.id, one.fence, reason_of(outcome))
                result = result._replace(buried=result.buried + 1)
            else:
                result = result._replace(left=result.left + 1)
        elif outcome in ("differs", "moved"):
            rules.note("finding_" + outcome)
            yield c.Bury(environment, one.id, one.fence, f"a row with this id has another payload ({outcome})")
            result = result._replace(buried=result.buried + 1)
        else:
            if outcome == "there":
                rules.note("inner_duplicate_drain")
                result = result._replace(there=result.there + 1)
            acks.append(c.Ack(environment, one.id, one.fence, len(one.entry.operations) if one.entry else 0))
    result = result._replace(written=sum(outcome == "new" for outcome in outcomes))
    yield from _acknowledge(environment, acks)
    return result


def _one_by_one(entries: Iterable[c.Popped], rules: Rules) -> Steps:
    """After a batch that was refused: each entry by itself, so that one bad row holds up no other."""
    outcomes: list[Any] = []
    for one in entries:
        assert one.entry is not None  # noqa: S101 - the unreadable ones are buried
        try:
            outcomes += yield c.Absorb(((one.entry.run, one.entry.operations),))
        except Exception as error:
            if isinstance(error, SamekeyError) and not rules.for_good(error):
                raise
            outcomes.append(error)
    return outcomes


def _acknowledge(environment: str, acks: list[c.Ack]) -> Steps:
    for _ in range(ACKS_MAX):
        if not acks:
            return
        replies = yield AckMany(environment, tuple(acks))
        newer = []
        for ack, reply in zip(acks, replies, strict=True):
            if isinstance(reply, c.Buffered):  # changed meanwhile: write that first
                yield c.Absorb(((reply.run, reply.operations),))
                newer.append(c.Ack(environment, ack.id, ack.fence, len(reply.operations)))
        acks = newer


def reason_of(error: BaseException) -> str:
    """The type and the server's error code: the text may quote a payload."""
    cause = error.__cause__ or error
    state = getattr(cause, "sqlstate", None)
    return f"{type(cause).__name__}{f' (SQLSTATE {state})' if state else ''}"


class Turns:
    """Whose turn it is: deficit round robin, so a heavy environment does not keep a light one waiting."""

    def __init__(self, quantum: int) -> None:
        self._quantum = quantum
        self._order: deque[str] = deque()

    def next(self, environments: Iterable[str]) -> list[tuple[str, int]]:
        """One round: every environment once, each with its quantum; the round begins where the last one ended."""
        known = set(environments)
        self._order = deque(one for one in self._order if one in known)
        self._order.extend(sorted(known - set(self._order)))
        self._order.rotate(-1)
        return [(one, self._quantum) for one in self._order]


# -- upkeep --------------------------------------------------------------------------------------------------------


def tend_filter(environment: str) -> Steps:
    """List the keys that were written without Redis, then renew the filter's lease; load a filter that is gone."""
    if (yield from _renew(environment)):
        return False
    yield Load(environment, "begin")
    after = ""
    while True:
        digests: list[str] = yield c.Digests(environment, after, LOAD_PIECE)
        if not digests:
            break
        if not (yield Load(environment, "add", tuple(digests))):
            return False  # the server was restarted: the next turn begins again
        after = digests[-1]
    after = ""
    while True:
        raised: list[tuple[str, c.Pinned]] = yield c.Raised(environment, after, LOAD_PIECE)
        for digest, pinned in raised:
            yield Fill(environment, digest, pinned)
        if not raised:
            break
        after = raised[-1][0]
    yield Load(environment, "done")
    yield from _renew(environment)  # a node without Redis may write a row that the load has passed already
    return True


def _renew(environment: str) -> Steps:
    """Whether there is a filter. Its lease is counted from before the read: a drainer that pauses renews nothing."""
    began: int = yield Load(environment, "ask")  # it connects too, so that the incarnation is known
    while True:
        unlisted: list[tuple[str, str]] = yield c.Unlisted(environment, LOAD_PIECE)
        if not unlisted:
            break
        if not (yield Load(environment, "add", tuple(digest for _, digest in unlisted))):
            return False  # loading the filter reads these rows too
        yield c.Listed(tuple(run_id for run_id, _ in unlisted))
    return (yield Load(environment, "renew", began=began))


def expire(now: float, known: Context) -> Steps:
    """End the runs that were not started in time, and free their keys."""
    due: list[tuple[str, str]] = yield c.Due(now, LOAD_PIECE)
    for environment, run_id in due:
        operation = {"id": f"expire:{run_id}", "op": "expire", "at": now}
        changed: c.Changed | None = yield c.Change(environment, run_id, operation)
        if changed is not None:
            yield from free_if_over(changed.after, known, now)
    return len(due)
