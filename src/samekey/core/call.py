"""One call of one operation, and the answers and errors that its caller may get.

Pure functions that the attempt and its recovery share.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from samekey.core import envelope, refusal
from samekey.core.boundary import REPEATABLE, Boundary, Kind, Terms
from samekey.core.commands import Open, Take
from samekey.core.errors import InDoubt, InProgress, KeyReused, Refused, ResultNotKept, ResultUnreadable
from samekey.core.fingerprint import Fingerprint, Intent
from samekey.core.key import Key
from samekey.core.next_step import Next, next_step, seconds_until
from samekey.core.policy import Policy, is_timeout
from samekey.core.record import Record
from samekey.core.sealing import PAYLOAD, RESULT, Keeping, seal, unseal
from samekey.core.search import provider_term, sends_key
from samekey.core.shapes import NotStorable, Unreadable
from samekey.core.states import CLOSED, RELEASED, State

T = TypeVar("T")

_LOOK_IT_UP = "The effect happened: look up its result at the provider, and do not run it under another key"
_MEMORY = "memory://"

ERROR_MAX_CHARS = 500  # of an error's name or reason in a record: enough to understand, never a payload


@dataclass(slots=True, unsafe_hash=True)
class Answer(Generic[T]):
    """What the key answers. Treat it as immutable; a frozen dataclass would take three times as long to make."""

    result: T
    state: State
    replayed: bool
    key: str
    token: int
    attempts: int
    recorded: bool = True  # False: the store could not be reached; outside the same-answer promise
    guarded: bool = True  # False: the store was down and the policy is "run", or a test switched guards off


@dataclass(slots=True)
class Failed:
    """The effect's own exception, to be raised by the code that drives the attempt."""

    error: BaseException


@dataclass(slots=True)
class Call:
    """One call of one operation: what is asked, under which rules, and by which attempt. Treat it as immutable."""

    key: Key
    intent: Intent
    attempt: str
    boundary: Boundary
    terms: Terms
    terms_text: str
    policy: Policy
    types: tuple[type, ...] = ()
    aliases: tuple[Key, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    store_name: str = ""
    unguarded: bool = False  # guards are switched off, for a test
    keeping: Keeping | None = None  # where something is redacted, sealed, or kept besides the answer
    to_caller: bool = True  # a caller waits for the outcome; False for a worker that runs the effect


def open_command(call: Call) -> Open:
    return Open(
        call.key,
        call.attempt,
        call.intent,
        call.terms_text,
        call.policy.lease_seconds,
        call.terms.sends,
        call.attributes,
        None if call.keeping is None else kept_payload(call, call.keeping),
        hold_seconds(call) if call.terms.kind is REPEATABLE else 0.0,
    )


def take(call: Call, record: Record) -> Take:
    # A claim under other terms had another answer to whether its provider key can be searched for.
    changes = sends_key(record.boundary) is not sends_key(call.terms_text)
    return Take(
        seen=record,
        attempt=call.attempt,
        boundary=call.terms_text,
        lease_seconds=call.policy.lease_seconds,
        sends=call.terms.sends,
        terms=(provider_term(record.key, 0),) if changes else (),
        retain_seconds=hold_seconds(call),
    )


def hold_seconds(call: Call) -> float:
    """How long a hold of this call is remembered if it is never settled; 0: until it is resolved."""
    return call.policy.lease_seconds + call.policy.retention_seconds if call.terms.kind is REPEATABLE else 0.0


def replay(call: Call, record: Record) -> Answer[Any] | Failed:
    """The answer in a settled record: its result, or the refusal it was closed with."""
    if record.state is CLOSED:
        if record.result is None:
            return Failed(Refused(f"refused: {record.error or 'no detail kept'}"))
        try:
            kept = unseal(call.keeping and call.keeping.sealer, record.result, RESULT, record.key)
        except Unreadable as unreadable:
            return Failed(Refused(f"refused: {record.error or 'no error recorded'}; of the detail: {unreadable}"))
        try:
            return Failed(refusal.decode_refusal(kept, allowed=(Refused, *call.policy.closes)))
        except Unreadable:
            return Failed(Refused(f"refused: {record.error or 'the detail can no longer be read'}"))
    if record.result is None:
        raise ResultNotKept(
            f"{call.key} is completed, without its result ({record.error or 'no reason given'}); "
            f"the effect is not run again. {_LOOK_IT_UP}",
            key=call.key.text,
        )
    try:
        kept, keeping = record.result, call.keeping
        if keeping is not None:
            kept = unseal(keeping.sealer, kept, RESULT, record.key)
        result = envelope.decode(kept, types=call.types)
    except Unreadable as unreadable:
        raise ResultUnreadable(
            f"{call.key} is completed, but its result no longer decodes ({unreadable}); the effect is not run again. "
            f"{_LOOK_IT_UP}",
            key=call.key.text,
        ) from unreadable
    return Answer(result, record.state, True, call.key.text, record.token, record.attempts)


def shown(text: str) -> str:
    """Foreign text in a form that every store can keep and every terminal can show: no surrogates, bounded."""
    return text.encode("utf-8", "backslashreplace").decode()[:ERROR_MAX_CHARS]


def encode(call: Call, record: Record, value: Any) -> tuple[bytes | None, str | None]:
    """The result as this record keeps it, or why it cannot be kept: never a reason to run again."""
    try:
        if call.keeping is not None:
            return encode_for(call, call.keeping, record, value)
        return envelope.encode(value, max_bytes=call.policy.result_max_bytes, types=call.types), None
    except NotStorable as not_storable:
        return None, shown(f"not kept: {not_storable}")
    except MemoryError:  # the effect has happened: its answer must not be lost
        return None, "not kept: MemoryError while writing it"


def encode_for(call: Call, keeping: Keeping, record: Record, value: Any) -> tuple[bytes | None, str | None]:
    """The result redacted, and sealed for this record. What a redactor or a key service raises costs only the copy."""
    doing = "redacting"
    try:
        if keeping.redact is not None:
            value = keeping.redact(value)
        doing = "sealing"
        kept = envelope.encode(value, max_bytes=call.policy.result_max_bytes, types=call.types)
        return (kept if keeping.sealer is None else seal(keeping.sealer, kept, RESULT, record.key)), None
    except NotStorable:
        raise
    except Exception as error:
        return None, shown(f"not kept: {type(error).__name__} while {doing} it")


def encode_refusal(call: Call, record: Record, error: BaseException) -> bytes | None:
    """The refusal as this record keeps it; None if not even its name fits."""
    try:
        kept = refusal.encode_refusal(error, max_bytes=call.policy.result_max_bytes)
        if call.keeping is None or call.keeping.sealer is None:
            return kept
        return seal(call.keeping.sealer, kept, RESULT, record.key)
    except Exception:  # the key is closed all the same, by the name of the error
        return None


def kept_payload(call: Call, keeping: Keeping) -> bytes | None:
    """The whole payload in canonical form, sealed for its record; None if it is longer than a result may be."""
    if not keeping.payload or keeping.sealer is None:
        return None
    plain = call.intent.written()
    return seal(keeping.sealer, plain, PAYLOAD, call.key) if len(plain) <= call.policy.result_max_bytes else None


def retain_seconds(call: Call, state: State) -> float:
    if state is RELEASED:
        # A late report must still find the record: keep it for the longest effect plus believe_absent_after.
        return max(call.policy.retention_seconds, call.policy.lease_seconds + (call.terms.believe_absent_after or 0.0))
    return call.policy.retention_seconds


def key_reused(call: Call, record: Record) -> KeyReused:
    fields = call.intent.differing(Fingerprint(record.fingerprint, record.form, record.fields))
    named = ", ".join(repr(name) for name in fields) or "the payload"
    return KeyReused(
        f"{call.key} was used before with another payload: {named} differ{'s' if len(fields) < 2 else ''}."
        " Another intent needs another key; a retry must send the first payload",
        key=call.key.text,
        fields=fields,
    )


def in_progress(record: Record) -> InProgress:
    left = max(record.lease_left, 0.1)
    return InProgress(
        f"{record.key} is held by another attempt; try again with the same key in {left:.1f} s",
        key=record.key.text,
        token=record.token,
        retry_after=left,
    )


def in_doubt(call: Call, record: Record, why: str) -> InDoubt:
    age = max(0.0, record.now - record.doubt_since)
    return InDoubt(
        f"it is unknown whether {call.key} happened: {why} ({record.error or 'no error recorded'}, "
        f"{age:.0f} s ago); {way_out(call, record)}",
        key=call.key.text,
        token=record.token,
        error=record.error,
        age_seconds=age,
        next=next_of(call, record),
        retry_after=seconds_until(record),
    )


def next_of(call: Call, record: Record | None) -> Next:
    """What a next call like this one can do about the record."""
    can_ask = call.boundary.asks_with is not None
    return next_step(record, call.terms, can_ask=can_ask, lease_seconds=call.policy.lease_seconds)


def doubt_note(call: Call, record: Record, why: str) -> str:
    """For the user's own exception: which key, why, and the ways out."""
    match call.terms.kind:
        case Kind.KEYED:
            other = "call again: it runs again under the same provider key, within the provider's window"
        case Kind.ASKS:
            other = "call again: the next call with this key asks the provider first"
        case _:
            other = (
                f"declare a boundary that can tell (this one is {call.terms.kind}): "
                "Keyed if the provider dedups, Asks(lookup) if it can be asked"
            )
    return f"samekey: {call.key} is now in doubt: {why}. Two ways out: {way_out(call, record)}; or {other}."


def say_it_better(call: Call, error: BaseException) -> str:
    """For the note: how the effect can tell the next time that nothing happened.

    A timeout cannot: its request may have arrived. Only the mark shows that nothing was sent.
    """
    ways = []
    if isinstance(error, Exception) and not is_timeout(type(error)):
        ways += ["raise NotDone", f"list {shown(type(error).__name__)} in releases= of the policy"]
    if not call.terms.marked:
        ways.append("declare marked=True and call current().sending() right before the provider is called")
    return f" An effect that knows that nothing happened can say so: {', or '.join(ways)}." if ways else ""


def way_out(call: Call, record: Record) -> str:
    """What a person can do about this one record."""
    if call.store_name == _MEMORY:
        return "let it end with this process: the record is in memory, where no command reaches it"
    return f"settle this one with `{resolve_line(call, record)}` (or --refused, --not-done)"


def resolve_line(call: Call, record: Record) -> str:
    """The command that settles this record, to be pasted into a shell."""
    tenant = f" --tenant {shlex.quote(record.key.tenant)}" if record.key.tenant else ""
    store = f" --store {shlex.quote(call.store_name)}" if call.store_name else ""
    options = f"{tenant} --happened --why 'how you know'{store}"
    named = f"{shlex.quote(record.key.operation)} {shlex.quote(record.key.text)}"
    if record.key.operation.startswith("-") or record.key.text.startswith("-"):
        return f"samekey resolve{options} -- {named}"
    return f"samekey resolve {named}{options}"
