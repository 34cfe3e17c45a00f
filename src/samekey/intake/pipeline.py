"""The decisions of the intake, as steps: each yields commands (commands.py) and is sent their replies.

`resolve_or_create` is the one way to a run id, for single triggers, and-wait, batch items, and keys whose run is over.
No clock, no randomness and no I/O in here, so tests/intake/playing.py can play every interleaving of the real steps.

Why two stores never hold two ids for one key: the id is computed from the key and its generation (ids.py). Why a
payload is never dropped under an old id: a raise of the generation marks the buffer's copy unknown first, an accept
compares the generation in the same script, and an insert compares it in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from samekey.core.errors import StoreError
from samekey.intake import commands as c
from samekey.intake.ids import is_ours, keyed_id, new_id, retry_id
from samekey.intake.runs import Operation, Problem, Run, RunState, apply, fold

ROUNDS_MAX = 20  # generations that may move under one trigger, or changes under one append
WAITING_MAX = 10_000  # buffered runs that a filter is tried on
APPENDS_MAX = 200  # lost races of one change against others on the same buffered run

Steps = Generator[Any, Any, Any]
Note = Callable[[str], None]


class Triggered(NamedTuple):
    """What a trigger is answered with."""

    id: str
    cached: bool
    run: Run | None = None


@dataclass(frozen=True, slots=True)
class Trigger:
    """One trigger, checked: the run it asks for, still without its id."""

    run: Run
    now: float
    life: float  # of its key
    unique: str  # random, for an id that is derived from nothing
    request: str | None = None  # the client's own id of this request: the same on its retries
    wait: bool = False  # and-wait: never buffered
    patience: float = 5.0


@dataclass(slots=True)
class Context:
    """What the steps know besides their trigger."""

    secrets: Mapping[int, bytes]
    refuses_timeouts: bool = False
    buffers: bool = True
    operations_max: int = 1000
    note: Note = lambda _: None
    remembered: Callable[[str], str | None] = lambda _: None  # ids seen alive a moment ago, with their makers
    remember: Callable[[str, Run], None] = lambda _, __: None


class _Again(Exception):
    """The generation has moved: start over with what the database says."""


def resolve_or_create(trigger: Trigger, known: Context) -> Steps:
    """The run of this trigger: Triggered, or Problem."""
    if trigger.run.digest is None:
        return (yield from _keyless(trigger, known))
    attempt = _Keyed(trigger, known)
    for _ in range(ROUNDS_MAX):
        try:
            return (yield from attempt.once())
        except _Again:
            attempt.from_database = True
    raise Problem(503, "the key is reset again and again; try again", retry_after=1.0)


class _Keyed:
    """One keyed trigger: generation, claim, both stores, gate, write, publish."""

    def __init__(self, trigger: Trigger, known: Context) -> None:
        self.trigger, self.known = trigger, known
        self.from_database = False
        self.redis = True  # it has answered so far: after one failure this trigger goes on without it
        self.fresh = self.listed = False

    def once(self) -> Steps:
        trigger, known, asked = self.trigger, self.known, self.trigger.run
        digest = str(asked.digest)
        pinned: c.Pinned = yield from self._pinned(asked.environment, digest)
        run_id = keyed_id(known.secrets[pinned.secret], asked.environment, digest, pinned.generation)
        run = replace(asked, id=run_id, generation=pinned.generation, unlisted=not self.listed)
        claim = c.Unclaimed()
        if self.redis:
            claim = yield c.Claim(
                asked.environment, digest, pinned.generation, asked.fingerprint, trigger.patience, trigger.life
            )
        match claim:
            case c.Cached(kept):
                return (yield from self._cached(run, kept))
            case c.Claimed(hold):
                try:
                    done = yield from self._write(run, holder=True, may_be_first=True)
                except Exception as error:  # raised to this caller; the next waiter takes the claim
                    yield c.Release(hold, error)
                    raise
                won = yield c.Publish(hold, done.id)
                # Another trigger took the claim over while this one was paused: that one says isCached false.
                return done._replace(cached=True) if won is False else done
            case c.TimedOut():
                known.note("timed_out")
                if known.refuses_timeouts:
                    raise Problem(503, "Idempotency claim resolution timed out", retry_after=1.0)
                return (yield from self._write(run, holder=False, may_be_first=False))
            case c.Mismatched():
                # Of a run, or of an attempt that wrote nothing: the stores decide.
                return (yield from self._write(run, holder=False, may_be_first=False))
            case _:
                self.redis = False
                return (yield from self._write(run, holder=False, may_be_first=True))

    def _pinned(self, environment: str, digest: str) -> Steps:
        seen = c.Seen(None)
        if self.redis:
            try:
                seen = yield c.Look(environment, digest)
            except StoreError:
                self.known.note("look_failed")
                self.redis = False
        self.listed = seen.listed
        if seen.pinned is not None and not self.from_database:
            self.fresh = seen.fresh
            return seen.pinned
        self.fresh = False
        return (yield c.Generation(environment, digest))

    def _cached(self, run: Run, kept: str) -> Steps:
        trigger, known = self.trigger, self.known
        if not trigger.wait:
            maker = known.remembered(kept)
            if maker is not None:
                return Triggered(kept, cached=not maker or maker != trigger.request)
        found: Run | None = yield from self._find(run)
        if found is None:
            # A claim that names a run in neither store. It is created again under the same id.
            known.note("recreated")
            pinned: c.Pinned = yield c.Generation(run.environment, str(run.digest))
            if pinned.generation != run.generation:
                raise _Again
            return (yield from self._write(run, holder=False, may_be_first=False))
        return (yield from self._same(run, found))

    def _write(self, run: Run, *, holder: bool, may_be_first: bool) -> Steps:
        """Find the run or write it. `holder`: only one trigger at a time is; others do not use the buffer."""
        trigger, known = self.trigger, self.known
        if not self.fresh:
            found: Run | None = yield from self._find(run)
            if found is not None:
                return (yield from self._same(run, found))
        if holder and self.redis and known.buffers and not trigger.wait:
            try:
                offered = yield c.Offer(run)
            except StoreError:
                known.note("offer_failed")
                self.redis, offered = False, c.Passed()
            match offered:
                case c.Accepted(accepted):
                    known.note("accepted")
                    return Triggered(run.id, cached=False, run=accepted)
                case c.Existing(there):
                    known.note("inner_duplicate_accept")
                    return (yield from self._same(run, there))
                case c.Moved():
                    raise _Again
                case c.Full(seconds):
                    raise full(seconds)
        written = yield c.Insert(run)
        match written:
            case c.Inserted(made):
                known.remember(run.id, made)
                return Triggered(run.id, cached=not may_be_first, run=made)
            case c.Existing(there):
                if holder:
                    known.note("inner_duplicate_insert")
                return (yield from self._same(run, there))
            case _:
                raise _Again

    def _find(self, run: Run) -> Steps:
        """The run in either store, in the direction that the data move: the buffer first, then the database."""
        if self.redis:
            try:
                entry: c.Buffered | None = yield c.Entry(run.environment, run.id)
            except StoreError:
                self.known.note("entry_failed")
                self.redis = False
            else:
                if entry is not None:
                    return as_run(entry)
        return (yield c.Fetch(run.environment, run.id))

    def _same(self, run: Run, found: Run) -> Steps:
        """A run that has this key: the answer, unless its key is over or its payload is another one."""
        trigger = self.trigger
        if not found.key_live(trigger.now):
            yield from raise_generation(found, self.known, must_mark=False)
            raise _Again
        if found.fingerprint != run.fingerprint:
            raise Problem(422, "this idempotency key was used before with another payload", code="key_reused")
        self.known.remember(found.id, found)
        if trigger.wait and found.buffered:
            yield from materialise(found.environment, found.id)
        again = found.maker is not None and found.maker == trigger.request
        return Triggered(found.id, cached=not again, run=found)


def _keyless(trigger: Trigger, known: Context) -> Steps:
    run = trigger.run
    secret = known.secrets[max(known.secrets)]
    if trigger.request is None:
        run = replace(run, id=new_id(secret, run.environment, trigger.unique))
        unique = None
    else:
        # Pinned to the first secret: a retry must get the same id after a new secret was added.
        first = known.secrets[min(known.secrets)]
        run = replace(run, id=retry_id(first, run.environment, run.task, trigger.request, run.fingerprint))
        unique = run.id
    if known.buffers and not trigger.wait:
        try:
            offered = yield c.Offer(run, unique)
            if isinstance(offered, c.Unsure):
                there: Run | None = yield c.Fetch(run.environment, run.id)
                if there is not None:
                    return Triggered(there.id, cached=False, run=there)
                offered = yield c.Offer(run)
        except StoreError:
            known.note("offer_failed")
            offered = c.Passed()
        match offered:
            case c.Accepted(accepted) | c.Existing(accepted):
                known.note("accepted")
                return Triggered(run.id, cached=False, run=accepted)
            case c.Full(seconds):
                raise full(seconds)
    written = yield c.Insert(run)
    return Triggered(run.id, cached=False, run=written.run)


def full(seconds: float) -> Problem:
    return Problem(429, "too many runs wait in this environment", code="buffer_full", retry_after=seconds)


def as_run(entry: c.Buffered) -> Run:
    """A buffered run as readers see it: with its log applied."""
    return fold(replace(entry.run, buffered=True), entry.operations)


# -- the end of a key ----------------------------------------------------------------------------------------------


def raise_generation(run: Run, known: Context, *, must_mark: bool) -> Steps:
    """From now on the key of this run makes another id.

    The copy is marked unknown before the database is raised: else a trigger that comes after this one has returned
    could read the old generation from it. `must_mark=False` is for a key whose run shows by itself that it is over:
    each trigger that is given it by an old copy sees that, and reads the database.
    """
    digest = str(run.digest)
    token = f"{run.id}.{run.generation}"
    marked = True
    try:
        yield c.MarkUnknown(run.environment, digest, token)
    except StoreError as error:
        if must_mark:
            raise _not_reset() from error
        marked = False
        known.note("mark_failed")
    pinned: c.Pinned = yield c.Raise(run.environment, digest, run.generation, max(known.secrets))
    if marked:
        try:
            yield c.WriteCopy(run.environment, digest, token, pinned)
        except StoreError:
            known.note("copy_failed")  # it stays unknown: slower, and right


def _not_reset() -> Problem:
    return Problem(503, "the key cannot be reset while a store does not answer", code="not_reset", retry_after=1.0)


def reset_key(environment: str, digest: str, known: Context, operation: Operation) -> Steps:
    """Free the key of a live run. Reply: the run that had it; Problem 404 where no run has it."""
    pinned: c.Pinned = yield c.Generation(environment, digest)
    run_id = keyed_id(known.secrets[pinned.secret], environment, digest, pinned.generation)
    try:
        found: Run | None = yield from find(environment, run_id)
    except StoreError as error:
        raise _not_reset() from error
    if found is None or not found.key_live(float(operation["at"])):
        raise Problem(404, "no run has this idempotency key")
    yield from raise_generation(found, known, must_mark=True)
    if found.buffered:
        try:
            yield from _freed(found, operation)
        except StoreError:
            known.note("free_failed")  # the drainer sees the raised generation, and writes the run without its key
    return found


def _freed(run: Run, operation: Operation) -> Steps:
    """Write into a buffered run that it has no key any more; the raise does it for a row."""
    for _ in range(APPENDS_MAX):
        entry: c.Buffered | None = yield c.Entry(run.environment, run.id)
        if entry is None:
            break
        if (yield c.Append(run.environment, run.id, operation, len(entry.operations))) is True:
            return
    yield c.Change(run.environment, run.id, operation)


def free_if_over(run: Run, known: Context, now: float) -> Steps:
    """After a run has ended: raise the generation of its key where that frees it."""
    if run.digest is None or run.key_freed or run.key_live(now):
        return
    if run.key_expires_at is not None and run.key_expires_at <= now and run.state is not RunState.FAILED:
        return  # the next trigger with the key raises it
    yield from raise_generation(run, known, must_mark=False)


# -- reads and changes ---------------------------------------------------------------------------------------------


def find(environment: str, run_id: str) -> Steps:
    """The run in either store, or None: the buffer first, in the direction that the data move."""
    entry: c.Buffered | None = yield c.Entry(environment, run_id)
    if entry is not None:
        return as_run(entry)
    return (yield c.Fetch(environment, run_id))


def get(environment: str, run_id: str, known: Context) -> Steps:
    """The run; Problem 404 for an id that is not ours, 410 for one that a buffer lost, 503 where that is not known."""
    down: StoreError | None = None
    try:
        found: Run | None = yield from find(environment, run_id)
    except StoreError as error:
        down = error
        found = yield c.Fetch(environment, run_id)
    if found is not None:
        return found
    if down is not None:
        raise Problem(503, "the buffer does not answer, and the database does not have this run", retry_after=1.0)
    raise missing(environment, run_id, known)


def missing(environment: str, run_id: str, known: Context) -> Problem:
    if any(is_ours(secret, environment, run_id) for secret in known.secrets.values()):
        return Problem(410, "this run was accepted, and lost when the buffer lost its memory", code="lost")
    return Problem(404, "run not found")


def change(environment: str, run_id: str, operation: Operation, known: Context) -> Steps:
    """Apply an operation to a run, wherever it is. Reply: Changed; a Problem changes nothing."""
    for _ in range(APPENDS_MAX):
        entry: c.Buffered | None = yield c.Entry(environment, run_id)
        while entry is not None:
            before = as_run(entry)
            if operation["id"] in before.applied:
                return c.Changed(before, before)
            after = apply(before, operation)
            if len(entry.operations) >= known.operations_max:
                raise _too_many(len(entry.operations))
            written = yield c.Append(environment, run_id, operation, len(entry.operations))
            if written is True:
                return c.Changed(before, after)
            entry = written  # as it is now, with newer operations; None: it was drained meanwhile
            if entry is not None and operation["id"] in {one["id"] for one in entry.operations}:
                return c.Changed(before, as_run(entry))
        changed: c.Changed | None = yield c.Change(environment, run_id, operation)
        if changed is not None:
            return changed
        raise missing(environment, run_id, known)
    raise Problem(503, "this run is changed too often; try again", retry_after=0.1)


def _too_many(count: int) -> Problem:
    text = f"{count} changes of this run wait for the drainer, which is as many as a buffered run may have; try again"
    return Problem(429, text, code="too_many_changes", retry_after=1.0)


def materialise(environment: str, run_id: str) -> Steps:
    """Write one buffered run to the database now."""
    for _ in range(ROUNDS_MAX):
        entry: c.Buffered | None = yield c.Entry(environment, run_id)
        if entry is None:
            return
        yield c.Absorb(((entry.run, entry.operations),))
        popped: list[c.Popped] = yield c.Pop(environment, 1, 30.0, run_id)
        if not popped:
            return  # a drainer has it, and acknowledges it
        if (yield c.Ack(environment, run_id, popped[0].fence, len(entry.operations))) is True:
            return


def change_row(environment: str, run_id: str, operation: Operation, known: Context) -> Steps:
    """A report of the worker (start, complete, fail): the run is written to the database first."""
    yield from materialise(environment, run_id)
    changed: c.Changed | None = yield c.Change(environment, run_id, operation)
    if changed is None:
        raise missing(environment, run_id, known)
    if changed.after.state.over and not changed.before.state.over:
        yield from free_if_over(changed.after, known, float(operation["at"]))
    return changed


def page(asked: c.Page, matches: Callable[[Run], bool]) -> Steps:
    """One page over both stores, newest first. The buffer is read first, in the direction that the data move."""
    most = WAITING_MAX if asked.filters else asked.size + 1
    waiting: list[c.Buffered] = yield c.Waiting(asked.environment, most, asked.before, asked.after)
    stored: list[Run] = yield replace(asked, size=asked.size + 1)
    found = {run.id: run for run in stored}
    found |= {entry.run.id: as_run(entry) for entry in waiting}
    newest = sorted(found.values(), key=lambda run: (run.created_at, run.id), reverse=asked.after is None)
    return [run for run in newest if matches(run)]
