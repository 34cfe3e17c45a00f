"""Adopting: taking over keys of another table, so that the day of the switch is no day without keys.

Each row becomes a record as an attempt would have written it: a claim, and how it ended. What was in progress is in
doubt, because its holder is of another program. The request hash of the other table was made by other rules, so it
cannot be compared: the record has the form "adopted", and every payload under its key gets its answer.

The id of the attempt is made of the key. So an adoption that was interrupted recognises its own claims and goes on, and
a key that has a record already keeps it. The steps are written once for both colours (see `core.drive.do`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

from samekey.core.boundary import Opaque
from samekey.core.commands import Open, Settle
from samekey.core.drive import Steps
from samekey.core.envelope import encode
from samekey.core.errors import Refused
from samekey.core.fingerprint import ADOPTED, Fingerprint
from samekey.core.key import Key
from samekey.core.policy import RESULT_MAX_BYTES
from samekey.core.record import ATTRIBUTE_MAX_CHARS, Record
from samekey.core.refusal import encode_refusal
from samekey.core.shapes import NotStorable
from samekey.core.states import Role, State
from samekey.ops.deciding import NOT_GIVEN

PIECE = 64  # keys of one batch
LEASE_SECONDS = 60.0  # between the claim and its settle, which follow each other at once
BOUNDARY = Opaque().terms.text()  # a person decides about a doubt: the other program's effect is not known here


class Row(NamedTuple):
    """One row of the other table."""

    key: Key
    state: State  # completed, closed or in_doubt
    request_hash: str = ""
    result: Any = NOT_GIVEN
    created_at: str = ""  # as the other table has it; kept as an attribute


@dataclass(slots=True)
class Adopted:
    """How many rows were written, and how many keys had a record already."""

    written: int = 0
    there: int = 0


def adopting(store: Any, rows: Sequence[Row], *, why: str, retain_seconds: float) -> Steps:
    """Write up to PIECE rows, in two round trips."""
    adopted = Adopted()
    opened = yield partial(store.batch, [_claim(row) for row in rows])
    settles: list[Settle] = []
    for row, record in zip(rows, opened, strict=True):
        if isinstance(record, Exception):
            raise record
        settle = _settle(row, record, why, retain_seconds)
        if settle is None:
            adopted.there += 1
        else:
            settles.append(settle)
    settled = (yield partial(store.batch, settles)) if settles else []
    for record in settled:
        if isinstance(record, Exception):
            raise record
        adopted.written += 1
    return adopted


def attempt_of(key: Key) -> str:
    """The attempt that adopts this key: the same in each run."""
    return sha256(b"samekey.adopt.1" + key.digest).hexdigest()[:32]


def _claim(row: Row) -> Open:
    text = row.created_at[:ATTRIBUTE_MAX_CHARS]
    attributes = (("adopted_created_at", text),) if text.isprintable() and text else ()
    digest = sha256(b"samekey.adopted.1:" + row.request_hash.encode("utf-8", "surrogatepass")).digest()
    return Open(
        row.key,
        attempt_of(row.key),
        Fingerprint(digest, ADOPTED, ()),
        BOUNDARY,
        LEASE_SECONDS,
        sends=False,
        attributes=attributes,
    )


def _settle(row: Row, record: Record, why: str, retain_seconds: float) -> Settle | None:
    """How the row ended; None if the key has a record of its own, or an earlier run wrote this one."""
    ours = record.attempt == attempt_of(row.key) and record.form == ADOPTED
    unsettled = record.state is State.STARTED or (record.state is State.IN_DOUBT and row.state is not State.IN_DOUBT)
    if not ours or not unsettled:
        return None
    result, error = _kept(row)
    return Settle(
        record,
        Role.HOLDER,
        row.state,
        by=record.attempt,
        result=result,
        error=error,
        why=why,
        retain_seconds=retain_seconds,
    )


def _kept(row: Row) -> tuple[bytes | None, str | None]:
    if row.state is State.IN_DOUBT:
        return None, "Adopted"
    if row.state is State.CLOSED:
        return encode_refusal(Refused("refused before it was adopted"), max_bytes=RESULT_MAX_BYTES), "Adopted"
    if row.result is NOT_GIVEN:
        return None, "adopted without a result"
    try:
        return encode(row.result, max_bytes=RESULT_MAX_BYTES), None
    except NotStorable:
        return None, "adopted, and its result is too large"
