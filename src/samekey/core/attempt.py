"""One attempt at one key: the whole decision, as a generator that yields commands.

Read it top to bottom: that is the order in which a request travels. It has no clock, no randomness and no
I/O: the driver of the steps supplies them, so every interleaving, crash and expiry can be played.

Errors of samekey are raised. Errors of the user's effect are returned as `Failed`, because a generator
cannot let a StopIteration through, and the effect's exception must reach the caller unchanged.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, assert_never

from samekey.core.boundary import (
    ATOMIC,
    Absent,
    Conflicting,
    Declined,
    Happened,
    Kind,
    StillUnknown,
    asks_at_once,
    parse_terms,
)
from samekey.core.call import (
    Answer,
    Call,
    Failed,
    doubt_note,
    encode,
    encode_refusal,
    in_doubt,
    in_progress,
    key_reused,
    open_command,
    replay,
    retain_seconds,
    say_it_better,
    shown,
    take,
)
from samekey.core.commands import (
    Begin,
    CallLookup,
    Command,
    Open,
    Outcome,
    Raised,
    Read,
    Returned,
    RunEffect,
    Settle,
    SettleLater,
    Sleep,
    Take,
    Tell,
    Testify,
    Undo,
    Wait,
)
from samekey.core.errors import (
    Fenced,
    InProgress,
    Misconfigured,
    NotDone,
    RecordUnreadable,
    Refused,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from samekey.core.next_step import agreed, within_window
from samekey.core.record import Record
from samekey.core.recovery import may_rotate, recover, spoken
from samekey.core.search import provider_term
from samekey.core.states import COMPLETED, HOLDER, SETTLED, Role, State

ROUNDS_MAX = 20  # lost races before we call the key busy; 3 is already rare
ASK_AT_ONCE_SECONDS = 5.0  # of a lease that must be left to ask at once: a lookup and the settle after it
SETTLE_PAUSE_SECONDS = 0.05  # first pause before a settle is tried again; doubles up to
SETTLE_PAUSE_MAX_SECONDS = 2.0


def attempt(call: Call) -> Generator[Command, Any, Answer[Any] | Failed]:
    """The steps of one call; ends in an Answer, in the effect's own failure, or in a SamekeyError."""
    if call.unguarded:
        return (yield from run_unguarded(call))
    try:
        # `yield` on the hot path: `yield from command` is the same, typed, and makes a generator.
        record: Record | None = (yield from find(call)) if call.aliases else (yield open_command(call))
    except StoreUnavailable as why:
        return (yield from without_store(call, why))

    for _ in range(ROUNDS_MAX):
        if record is None:  # freed or swept since we saw it
            record = yield from open_command(call)
        if record.attempt == call.attempt:
            if record.lease_live:
                return (yield from run_held(call, record))
            # Our own claim, but its lease ended before the answer came. The effect never ran.
            record = yield from let_go(call, record)
            continue
        if not call.intent.matches(record.fingerprint, record.form):
            raise key_reused(call, record)  # a mismatch comes before "in progress"
        match record.state:
            case State.COMPLETED | State.CLOSED:
                return replay(call, record)
            case State.RELEASED if record.happened is None:
                try:
                    record = yield from take(call, record)
                except StoreUnavailable as why:
                    return (yield from without_store(call, why))
            case State.STARTED if record.lease_live:
                try:
                    seen, record = record, (yield from Wait(record))
                except StoreUnavailable as why:
                    return (yield from without_store(call, why))
                if record is not None and record.lease_live and record.fence == seen.fence:
                    raise in_progress(record)
            case State.STARTED | State.IN_DOUBT | State.RELEASED:
                record = yield from recover(call, record)
    if record is None:
        raise InProgress(f"the key {call.key} changes hands too fast", key=call.key.text, token=0, retry_after=1.0)
    raise in_progress(record)


def without_store(call: Call, why: StoreUnavailable) -> Generator[Command, Any, Answer[Any] | Failed]:
    """The store failed before the key was ours: what the policy says. What is known to be in doubt never comes here."""
    # In a transaction the store is the database that the effect writes to: without it nothing can run. And a
    # transaction that holds the record may be running this very effect.
    if call.policy.store_down == "refuse" or call.terms.kind is Kind.ATOMIC or isinstance(why, StoreBusy):
        if not hasattr(why, "__notes__"):  # another caller of the batch may have added it
            note(why, "samekey: nothing was run; try again with the same key later")
        raise why
    yield from Tell("store_down", None, "run", type(why).__name__)
    return (yield from run_unguarded(call))


# -- claiming ------------------------------------------------------------------------------------------


def find(call: Call) -> Generator[Command, Any, Record | None]:
    """Claim the key, or return the record that is there, also under an earlier name of the operation."""
    for alias in call.aliases:
        record = yield from Read(alias)
        if record is not None:
            return record
    return (yield from open_command(call))


def let_go(call: Call, record: Record) -> Generator[Command, Any, Record | None]:
    """Release a hold whose effect never ran; if an earlier attempt is in doubt, the key stays in doubt."""
    settled = yield from Settle(
        record,
        Role.HOLDER,
        State.IN_DOUBT if record.unsure else State.RELEASED,
        by=call.attempt,
        why="never ran",
        retain_seconds=retain_seconds(call, State.RELEASED),
    )
    if settled is not None and settled.attempt == call.attempt:
        raise in_progress(settled)  # the caller must ask again as a new attempt: an id is used for one hold only
    return settled


def withdraw(call: Call, command: Open | Take) -> Generator[Command, Any, None]:
    """Interrupted during the claim: if it was written, let it go. A repeated claim recognises itself."""
    record = yield from command
    if record is not None and record.attempt == call.attempt and record.state in (State.STARTED, State.IN_DOUBT):
        # In doubt: our lease ended first, and a passer-by could not know that the effect never ran.
        try:
            yield from let_go(call, record)
        except InProgress:
            pass  # the key is free, which was the purpose


# -- holding -------------------------------------------------------------------------------------------


def run_held(call: Call, held: Record) -> Generator[Command, Any, Answer[Any] | Failed]:
    """Run the effect under our hold, and write its outcome."""
    if held.after_loss:
        yield from Tell("store_lost_memory", held)
        known = (yield from ask_before_first_run(call, held)) if call.boundary.asks_with is not None else None
        if known is not None:
            return known
    outcome: Outcome = yield RunEffect(held)
    if isinstance(outcome, Returned):
        return (yield from complete(call, held, outcome))
    error = outcome.error
    if isinstance(error, GeneratorExit):  # abandoned, not failed: write nothing, the lease will end
        if call.terms.kind is Kind.ATOMIC:
            yield from Undo(claim_too=True)  # in a transaction there is no lease: the claim goes with the effect
        return Failed(error)
    match call.policy.meaning(error, inner=outcome.inner):
        case "closes":
            return (yield from close(call, held, outcome))
        case "releases":
            if call.terms.kind is Kind.ATOMIC:
                yield from Undo(claim_too=False)
            yield from release(call, held, outcome)
        case "unknown" if call.terms.kind is Kind.ATOMIC:
            yield from Undo(claim_too=True)  # effect and record together, as if it had never run
        case "unknown" if call.terms.marked and not outcome.begun:
            yield from release(call, held, outcome)  # before the mark nothing was sent
        case "unknown" if call.terms.kind is Kind.REPEATABLE:
            yield from release(call, held, outcome)  # it may have happened; the next caller runs it again in any case
        case _:
            if asks_at_once(call.boundary) and isinstance(error, Exception) and not outcome.inner:
                known = yield from ask_at_once(call, held, outcome)
                if known is not None:
                    return known
            yield from doubt(call, held, outcome)
    return Failed(error)


def ask_at_once(call: Call, held: Record, outcome: Raised) -> Generator[Command, Any, Answer[Any] | Failed | None]:
    """The effect ended in an error that leaves its outcome open: ask the provider before the caller gets that error.

    Only while the lease has time for it. What the provider has on its books is the answer; that it has nothing there
    is none, since the request may still be on its way. None: it stays unknown.
    """
    now = yield from Read(held.key)
    if now is None or now.fence != held.fence or now.lease_left <= ASK_AT_ONCE_SECONDS:
        return None
    verdict = yield from CallLookup(now)
    match verdict:
        case Happened(result):
            return (yield from complete(call, held, Returned(result, outcome.notes, outcome.terms)))
        case Declined(final=True, reason=reason) if not held.unsure:
            refused = Refused(reason)
            return (yield from close(call, held, Raised(refused, notes=outcome.notes, terms=outcome.terms)))
        case Declined(reason=reason) if not held.unsure:
            not_done = NotDone(reason)
            not_done.__cause__ = outcome.error
            yield from release(call, held, Raised(not_done, notes=outcome.notes, terms=outcome.terms))
            return Failed(not_done)
        case _:
            return None


def ask_before_first_run(call: Call, held: Record) -> Generator[Command, Any, Answer[Any] | Failed | None]:
    """The store lost its memory a while ago, so a new key may have run before. None: go on and run."""
    verdict = yield from CallLookup(held)
    match verdict:
        case Happened(result):
            return (yield from complete(call, held, Returned(result)))
        case Declined(final=True, reason=reason):
            refusal = encode_refusal(call, held, Refused(reason))
            settled = yield from settle(call, held, State.CLOSED, result=refusal, error="Declined")
            if isinstance(settled, StoreUnavailable):
                raise settled
            if settled is not None and settled.settled:
                return replay(call, settled)
            raise in_doubt(call, settled or held, "the provider declined it, and the key changed hands")
        case Absent() | Declined():
            return None
        case StillUnknown() | Conflicting():
            settled = yield from settle(call, held, State.IN_DOUBT, error="StoreLostMemory")
            if isinstance(settled, StoreUnavailable):
                raise settled
            raise in_doubt(call, settled or held, f"the store lost its memory, and {spoken(verdict)}")
        case _:
            assert_never(verdict)


def complete(call: Call, held: Record, outcome: Returned) -> Generator[Command, Any, Answer[Any] | Failed]:
    state, value = COMPLETED, outcome.value
    result, error = encode(call, held, value)
    if error is not None:
        yield from Tell("not_kept", held)
    settled = yield from settle(call, held, state, result, error, outcome=outcome)
    if isinstance(settled, StoreUnavailable):
        yield from Tell("not_recorded", held, type(settled).__name__)
        if call.terms.kind is Kind.ATOMIC:
            raise settled  # undone with the claim: there is no answer
        return Answer(value, state, False, call.key.text, held.token, held.attempts, recorded=False)
    if settled is not None and has_our_outcome(call, settled, state, result):
        # The record has our bytes, so our own object equals what a replay would return.
        return Answer(value, state, False, call.key.text, settled.token, settled.attempts)
    return (yield from too_late(call, held, settled, state, result, outcome))


def close(call: Call, held: Record, outcome: Raised) -> Generator[Command, Any, Answer[Any] | Failed]:
    error = outcome.error
    if call.terms.kind is Kind.ATOMIC:
        yield from Undo(claim_too=False)
    whole = held.unsure and ends_the_doubt(call, held, outcome)
    if held.unsure and not whole:  # the refusal is about this attempt; an earlier one may still land
        yield from release(call, held, Raised(error, notes=outcome.notes, terms=outcome.terms), answered=True)
        return Failed(error)
    result = encode_refusal(call, held, error)
    name = shown(type(error).__name__)
    settled = yield from settle(call, held, State.CLOSED, result=result, error=name, outcome=outcome, answered=whole)
    if isinstance(settled, StoreUnavailable):
        yield from Tell("not_recorded", held, type(settled).__name__)
        note(error, f"samekey: the refusal of {call.key} could not be recorded: {settled}")
        return Failed(error)
    if settled is not None and has_our_outcome(call, settled, State.CLOSED, result):
        return Failed(error)
    return (yield from too_late(call, held, settled, State.CLOSED, result, outcome))


def has_our_outcome(call: Call, settled: Record, state: State, result: bytes | None) -> bool:
    """Whether the record has our outcome. An effect that forks ends twice under one attempt: the first outcome stays.

    A record without a result counts as ours, too: it was redacted since.
    """
    ours = settled.settled_by == call.attempt and settled.state is state
    return ours and (settled.result is None or settled.result == result)


def release(call: Call, held: Record, outcome: Raised, *, answered: bool = False) -> Generator[Command, Any, None]:
    """The next caller may run it: free the key, unless an earlier attempt is still in doubt."""
    whole = held.unsure and ends_the_doubt(call, held, outcome)
    state = State.IN_DOUBT if held.unsure and not whole else State.RELEASED
    settled = yield from settle(
        call,
        held,
        state,
        error=shown(type(outcome.error).__name__),
        # A provider that replays an old decline needs a new key for the next try; one that is asked needs a new
        # reference, or a lookup would find the old decline for a later request. Only after the holder's own
        # "not done", and never with an earlier attempt in doubt: that one may still land under this key.
        next_round=may_rotate(held, call.terms) and (not held.unsure or whole) and _is_not_done(call, outcome),
        outcome=outcome,
        answered=whole or (state is State.IN_DOUBT and (answered or _is_not_done(call, outcome))),
    )
    if isinstance(settled, StoreUnavailable):
        note(outcome.error, f"samekey: {call.key} could not be released and stays held until its lease ends")
    elif settled is not None:
        yield from Tell(str(state), settled)
        if state is State.IN_DOUBT and call.terms.kind is not Kind.REPEATABLE:
            note(outcome.error, doubt_note(call, settled, "an earlier attempt may have happened"))


def doubt(call: Call, held: Record, outcome: Raised) -> Generator[Command, Any, None]:
    """A timeout, a bug, a cancelled task: the effect may have happened."""
    error = outcome.error
    name = shown(type(error).__name__)
    settled = yield from settle(call, held, State.IN_DOUBT, error=name, outcome=outcome)
    if isinstance(settled, StoreUnavailable):
        note(error, f"samekey: the store could not be reached for {call.key}; when its lease ends the key is in doubt")
        return
    if settled is not None:
        yield from Tell("in_doubt", settled, name)
    of_another = outcome.inner and call.policy.meaning(error, inner=False) != "unknown"
    why = (
        "which reports on another guard's effect inside it" if of_another else "which does not tell whether it happened"
    )
    better = "" if of_another else say_it_better(call, error)
    note(error, doubt_note(call, settled or held, f"the effect ended in {name}, {why}") + better)


def settle(
    call: Call,
    held: Record,
    state: State,
    result: bytes | None = None,
    error: str | None = None,
    *,
    next_round: bool = False,
    outcome: Outcome | None = None,
    answered: bool = False,
) -> Generator[Command, Any, Record | None | StoreUnavailable]:
    """Settle as the holder, with the notes and search terms of the hold."""
    notes, terms = (None, ()) if outcome is None else (outcome.notes, outcome.terms)
    if next_round:
        terms = (*terms, provider_term(held.key, held.round + 1))
    retain = retain_seconds(call, state)
    command = Settle(
        held, HOLDER, state, call.attempt, result, error, "", retain, next_round, notes, terms, answered, call.to_caller
    )
    return settle_or_undo(call, command) if call.terms.kind is ATOMIC else insist(call, command)


def settle_or_undo(call: Call, command: Settle) -> Generator[Command, Any, Record | None | StoreUnavailable]:
    """In a transaction an effect must not be committed without its record."""
    settled = yield from insist(call, command)
    if isinstance(settled, StoreUnavailable):
        yield from Undo(claim_too=True)
    return settled


def insist(call: Call, command: Settle | Testify) -> Generator[Command, Any, Record | None | StoreUnavailable]:
    """Write what we know: try again with growing pauses, for as long as the answer may wait.

    That is as long as a lease may live, unless the policy bounds it: then the rest of that time is spent on it in the
    background.
    """
    waited, pause = 0.0, SETTLE_PAUSE_SECONDS
    while True:
        try:
            record: Record | None = yield command
            return record
        except StoreUnavailable as error:
            unavailable = error
        except (Misconfigured, RecordUnreadable) as error:
            # A permission or a password changed, a disk became read-only, a record was damaged while the effect ran.
            # The effect ran all the same: the caller must get its answer, or its own error.
            if call.terms.kind is Kind.ATOMIC:
                raise  # the effect is rolled back with its transaction
            unavailable = StoreUnavailable(str(error))
            unavailable.__cause__ = error
            if isinstance(error, RecordUnreadable):
                return unavailable  # waiting does not repair a damaged record
        waited += unavailable.tried_seconds  # a store that does not answer takes longer than our pauses
        if waited >= call.policy.settle_patience_seconds or call.terms.kind is Kind.ATOMIC:
            left = call.policy.lease_seconds - waited
            if left > 0 and call.terms.kind is not Kind.ATOMIC:
                yield from SettleLater(command, left)
            return unavailable
        if call.policy.bounded:
            pause = min(pause, call.policy.settle_patience_seconds - waited)
        yield from Sleep(pause)
        waited, pause = waited + pause, min(pause * 2, SETTLE_PAUSE_MAX_SECONDS)


def too_late(
    call: Call, held: Record, record: Record | None, state: State, result: bytes | None, outcome: Outcome
) -> Generator[Command, Any, Answer[Any] | Failed]:
    """The effect ended after the key changed hands: keep its outcome as evidence, answer with the record."""
    kept = yield from insist(call, Testify(held.key, call.attempt, held.token, state, result, "settled too late"))
    if isinstance(kept, StoreUnavailable):
        yield from Tell("not_recorded", record, type(kept).__name__)
        raise fenced(call, held, f"its outcome ({state}) could not be kept") from kept
    yield from Tell("late", kept or record, str(state))
    record = kept or record
    adoptable = (State.IN_DOUBT, State.RELEASED) if state is State.COMPLETED else (State.RELEASED,)
    if record is not None and record.state in adoptable:
        # With evidence that it happened, the key never runs again. Our refusal is no fact about another
        # attempt that is in doubt, so there it is only kept as evidence.
        settled = yield from insist(
            call,
            Settle(
                record,
                Role.LOOKUP,
                state,
                by=call.attempt,
                result=result,
                why="a late attempt reported how it ended",
                retain_seconds=call.policy.retention_seconds,
                notes=outcome.notes,
                terms=outcome.terms,
            ),
        )
        record = record if isinstance(settled, StoreUnavailable) else settled
    for _ in range(ROUNDS_MAX):
        if record is None or record.state in (State.IN_DOUBT, State.RELEASED):
            break
        if record.settled:
            return replay(call, record)
        seen, record = record, (yield from Wait(record))
        if record is not None and record.fence == seen.fence and record.state is State.STARTED:
            break
    raise fenced(call, held, f"its outcome ({state}) is kept as evidence")


def insist_later(
    call: Call, command: Settle | Testify
) -> Generator[Command, Any, Record | None | StoreError | Misconfigured]:
    """One try of an outcome that the store did not take while its caller waited: the record, or why there is none yet.

    In the meantime the key may have changed hands; then the outcome is kept as evidence.
    """
    try:
        return (yield from last_word(call, command))
    except (StoreError, Misconfigured) as error:
        return error


def last_word(call: Call, command: Settle | Testify) -> Generator[Command, Any, Record | None]:
    """Interrupted while the outcome was written: write it once more; if that is too late, keep it as evidence."""
    record = yield from command
    if isinstance(command, Testify) or command.role is not Role.HOLDER or command.state not in SETTLED:
        return record
    if record is not None and record.settled_by == call.attempt and record.state is command.state:
        return record
    seen = command.seen
    return (yield from Testify(seen.key, call.attempt, seen.token, command.state, command.result, "settled too late"))


def fenced(call: Call, held: Record, what: str) -> Fenced:
    return Fenced(
        f"this attempt at {call.key} lost its hold while it ran; {what}. "
        "Ask again with the same key for what the record says",
        key=call.key.text,
        token=held.token,
    )


def sending(call: Call, held: Record) -> Generator[Command, Any, Record]:
    """The fenced mark right before the provider is called; raises Fenced if the hold is gone."""
    record = yield from Begin(held)
    if record is None or record.fence != held.fence or not record.lease_live or record.begun_at is None:
        raise Fenced(
            f"the hold on {call.key} is lost, so nothing may be sent any more; ask again with the same key",
            key=call.key.text,
            token=held.token,
        )
    return record


def run_unguarded(call: Call) -> Generator[Command, Any, Answer[Any] | Failed]:
    """The store is down and the policy says run, or a test switched guards off: an event, and a mark on the answer."""
    yield from Tell("unguarded", None)
    outcome = yield from RunEffect(None)
    if isinstance(outcome, Raised):
        return Failed(outcome.error)
    return Answer(outcome.value, State.COMPLETED, False, call.key.text, 0, 1, recorded=False, guarded=False)


def note(error: BaseException, text: str) -> None:
    """Add a note to the user's own exception, not by its own add_note; if that fails, the error goes out without it."""
    try:
        BaseException.add_note(error, text)
    except (AttributeError, TypeError):
        pass  # the exception uses __notes__ for something else


def ends_the_doubt(call: Call, held: Record, outcome: Raised) -> bool:
    """Whether this decline is also the answer to every earlier request of the key.

    Only where the effect says so: NotDone alone may come from an effect that has not sent anything, and then an earlier
    request may still land. The provider keeps declines under its key, so an earlier request that arrives later gets
    this decline, too.
    """
    claimed, today = parse_terms(held.boundary), call.terms
    return (
        getattr(outcome.error, "declined", False) is True
        and call.policy.meaning(outcome.error, inner=outcome.inner) != "unknown"
        and all(terms.kind is Kind.KEYED and terms.keeps_declines for terms in (claimed, today))
        and may_rotate(held, claimed)
        and within_window(agreed(claimed, today), held, 0.0)
    )


def _is_not_done(call: Call, outcome: Raised) -> bool:
    return call.policy.meaning(outcome.error, inner=outcome.inner) == "releases"
