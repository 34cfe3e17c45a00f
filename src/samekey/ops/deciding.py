"""What an operator may write: how a doubt ended, dropping a result, freeing a key.

Each decision is fenced: it is written only if the record is still as the operator saw it, and always with a name and a
reason, which the store keeps in its audit log. The steps are written once for both colours (see `core.drive.do`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from samekey.core.boundary import parse_terms
from samekey.core.commands import Free, Read, Redact, Settle
from samekey.core.drive import Steps
from samekey.core.envelope import encode
from samekey.core.errors import Misconfigured, Refused
from samekey.core.policy import RESULT_MAX_BYTES
from samekey.core.record import Record
from samekey.core.refusal import encode_refusal
from samekey.core.search import provider_term
from samekey.core.shapes import NotStorable
from samekey.core.states import EXPIRES, SETTLED, Role, State
from samekey.ops._refusals import CannotResolve, MovedOn, moved_on
from samekey.ops._texts import written
from samekey.ops.story import Resolution, mark, objection, span

# A record does not know its policy's retention, and forgetting too early means a second effect. So a person's decision
# is kept longer than under any usual policy (24-72 h).
RESOLVED_RETAIN_SECONDS = 30 * 24 * 3600.0

NOT_GIVEN: Any = object()  # no result: None is one


def check(record: Record, resolution: Resolution, *, mark_seen: str | None = None, lease_is_over: bool = False) -> None:
    """Raise what `resolving` would raise about this record; `mark_seen` is from an earlier look."""
    if mark_seen is not None and mark(record) != mark_seen:
        raise moved_on(record, record)
    reason = objection(record, resolution, lease_is_over=lease_is_over)
    if reason is not None:
        raise CannotResolve(f"{record.key} cannot be resolved as {resolution.value}: {reason}", record=record)


def resolving(
    store: Any,
    seen: Record,
    resolution: Resolution,
    *,
    who: str,
    why: str,
    result: Any = NOT_GIVEN,
    lease_is_over: bool = False,
) -> Steps:
    """Write how a doubt ended, and return the record after that."""
    who, why = written("name (who)", who), written("reason (why)", why)
    check(seen, resolution, lease_is_over=lease_is_over)
    envelope, error = _kept(seen, resolution, result)
    terms = parse_terms(seen.boundary)
    now: Record | None = yield partial(store.carry_out, Read(seen.key))
    if now is None or mark(now) != mark(seen):
        raise moved_on(seen, now)
    if now.state is State.STARTED:
        over = lease_is_over and now.lease_live
        if over:
            why = written("reason (why)", f"over a lease of {span(now.lease_left)}: {why}")
        now = yield from _doubted(store, seen, now, resolution, who, over=over)
    # The doubt may have been a decline whose reply was lost. It is still on the provider's books, so the next try needs
    # another reference: a lookup would take the old decline for the new request's.
    next_round = resolution is Resolution.NOT_DONE and terms.new_round_after_decline
    after: Record | None = yield partial(
        store.carry_out,
        Settle(
            now,
            Role.OPERATOR,
            resolution.state,
            by=who,
            result=envelope,
            error=error,
            why=why,
            retain_seconds=max(RESOLVED_RETAIN_SECONDS, terms.window or 0.0),
            next_round=next_round,
            terms=(provider_term(now.key, now.round + 1),) if next_round else (),
        ),
    )
    ours = (resolution.state.value, f"{Role.OPERATOR}:{who}", why)
    if after is None or after.fence != now.fence or [(m.after, m.who, m.why) for m in after.moves[-1:]] != [ours]:
        raise moved_on(seen, after)
    return after


def _doubted(store: Any, seen: Record, held: Record, resolution: Resolution, who: str, *, over: bool) -> Steps:
    """The holder is gone: write the doubt down first, as any passer-by would, and then the decision.

    Where the operator speaks over a lease (`over`), the doubt is written in the holder's place: the only role that may
    end a lease that lives. A renewal since the operator looked shows that the holder is alive after all.
    """
    if over and held.version != seen.version:
        raise MovedOn(f"the holder of {seen.key} renewed its lease since you looked; nothing was written", record=held)
    check(held, resolution, lease_is_over=over)  # renewed since it was shown: the holder is alive after all
    doubted: Record | None = yield partial(
        store.carry_out,
        Settle(
            held,
            Role.HOLDER if over else Role.PASSER_BY,
            State.IN_DOUBT,
            by=f"{Role.OPERATOR}:{who}",
            error="LeaseEnded",
            why="the operator declared its lease over" if over else "the lease ended",
        ),
    )
    if doubted is None or doubted.state is not State.IN_DOUBT or doubted.fence != held.fence:
        raise moved_on(held, doubted)
    return doubted


def check_redact(record: Record) -> None:
    """Raise unless the record is settled: no other one has a result to drop."""
    if record.state not in SETTLED:
        raise CannotResolve(f"{record.key} is {record.state}: only a settled record has a result", record=record)


def redacting(store: Any, seen: Record, *, who: str, why: str) -> Steps:
    """Drop the stored results of a settled record; the record stays, so nothing can run twice."""
    who, why = written("name (who)", who), written("reason (why)", why)
    after: Record | None = yield partial(store.carry_out, Redact(seen, by=who, why=why))
    if after is None or after.fence != seen.fence:
        raise moved_on(seen, after)
    check_redact(after)
    return after


def check_free(record: Record) -> None:
    """Raise unless the record is settled or released: of the others it is not known whether they happened."""
    if record.state not in EXPIRES:
        raise CannotResolve(f"{record.key} is {record.state}: resolve it first", record=record)


def freeing(store: Any, seen: Record, *, who: str, why: str) -> Steps:
    """Remove a settled or released record: the key may run again."""
    who, why = written("name (who)", who), written("reason (why)", why)
    now: Record | None = yield partial(store.carry_out, Read(seen.key))
    if now is None or (mark(now) != mark(seen) and now.state in EXPIRES):
        raise moved_on(seen, now)
    left: Record | None = yield partial(store.carry_out, Free(seen, by=who, why=why))
    if left is None:
        return
    check_free(left)
    raise moved_on(seen, left)


def _kept(record: Record, resolution: Resolution, result: Any) -> tuple[bytes | None, str | None]:
    """What callers will get: the envelope, or why there is none."""
    if resolution is not Resolution.HAPPENED:
        if result is not NOT_GIVEN:
            raise Misconfigured(f"a result goes with happened, not with {resolution.value}")
        if resolution is Resolution.NOT_DONE:
            return None, None
        # Neither the operator's name nor the reason: this text is shown to the caller's customers.
        return encode_refusal(Refused("refused, as an operator found out"), max_bytes=RESULT_MAX_BYTES), "Resolved"
    if result is NOT_GIVEN:
        if record.happened is not None and record.happened.result is not None:
            return record.happened.result, None
        return None, "resolved by an operator, without a result"
    try:
        return encode(result, max_bytes=RESULT_MAX_BYTES), None
    except NotStorable as not_storable:
        raise Misconfigured(f"the result cannot be kept: {not_storable}") from not_storable
