"""Two books that a store keeps beside its records: counts of attempts by the minute, and findings.

Counts are for charts, rates and alarms. Guards add them up and write them every few seconds. A minute is kept for
14 days. A lost reply may leave a list of counts out, or add it twice, so no decision about an effect uses them.

A finding is one thing that a person should look at: a late success, two reports that contradict each other, two rows
that are one payment. Its id is made of what it is about, so that finding it again adds nothing. A person may accept a
finding: with a name, a reason and an end, because an acceptance without an end hides the finding for ever.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from samekey.core.errors import Misconfigured, RecordUnreadable
from samekey.core.key import NAME_MAX_BYTES
from samekey.core.record import ATTRIBUTE_MAX_CHARS, DAMAGED, Audit

COUNTS_KEPT_SECONDS = 14 * 24 * 3600  # the longest alarm (no replay at all) looks at 14 days
COUNTS_AHEAD_SECONDS = 24 * 3600  # a clock further ahead is wrong: its minutes would be kept until that day comes
COUNTS_MAX = 10_000  # counts in one reading: a few megabytes
COUNTS_ADDED_MAX = 1000  # counts in one list: one statement of some hundred kilobytes
COUNTS_FORGOTTEN_MAX = 1000  # old counts that one addition deletes: milliseconds
NUMBER_MAX = 10**12  # of one count: sums of them still fit into 64 bits, and into a double exactly
MINUTE_MAX = 2**31 - 1  # a 32-bit column
OUTCOME_MAX_CHARS = 32

FINDINGS_MAX = 1000  # findings in one page
ID_MAX_CHARS = 64
KIND_MAX_CHARS = 64
DIGEST_MAX_CHARS = 64  # hexadecimal, of 32 bytes
TITLE_MAX_CHARS = 200  # one line
SOURCE_MAX_CHARS = 255  # which part found it, and where
EVIDENCE_MAX_CHARS = 16_384  # enough for some sample rows, never a whole result set
PROPOSAL_MAX_CHARS = 4096
ACCEPTANCE_MAX_CHARS = 500  # of the name and of the reason
SEVERITIES = ("low", "medium", "high", "critical")

_ID_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:_-")


# -- counts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Count:
    """So many attempts of one operation, from one source, had this outcome in one minute."""

    minute: int  # seconds since 1970, divided by 60
    operation: str
    source: str
    outcome: str
    number: int

    def __post_init__(self) -> None:
        _check_number("minute", self.minute, 0, MINUTE_MAX)
        _check_name("operation", self.operation)
        _check_text("source", self.source, ATTRIBUTE_MAX_CHARS)
        _check_text("outcome", self.outcome, OUTCOME_MAX_CHARS, least=1)
        _check_number("number", self.number, 1, NUMBER_MAX)

    @property
    def series(self) -> tuple[int, str, str, str]:
        """What a store counts under."""
        return self.minute, self.operation, self.source, self.outcome


def merged(counts: Sequence[Count]) -> list[Count]:
    """A list as stores write it: each series once, and in order, so that two writers never wait for each other."""
    if len(counts) > COUNTS_ADDED_MAX:
        raise Misconfigured(f"{len(counts)} counts are too many for one list; {COUNTS_ADDED_MAX} is the limit")
    numbers: dict[tuple[int, str, str, str], int] = {}
    for count in counts:
        numbers[count.series] = numbers.get(count.series, 0) + count.number
    return [Count(*series, number) for series, number in sorted(numbers.items())]


def kept_minutes(now: float) -> tuple[int, int]:
    """The first and the last minute that a store keeps at this time of its clock."""
    minute = math.floor(now / 60)
    return minute - COUNTS_KEPT_SECONDS // 60, minute + COUNTS_AHEAD_SECONDS // 60


def minutes_between(since: float, until: float) -> tuple[int, int]:
    """The first and the last minute of this span of time; a minute that it touches belongs to it."""
    if math.isnan(since) or math.isnan(until):
        raise Misconfigured(f"counts are read between two times in seconds since 1970, not {since!r} and {until!r}")
    first, last = (min(max(given, 0), MINUTE_MAX * 60.0) for given in (since, until))
    return math.floor(first / 60), math.ceil(last / 60) - 1


def counts_of(rows: Iterable[Sequence[Any]]) -> list[Count]:
    """The counts of the first COUNTS_MAX + 1 rows, as a store returns them: in order, and whole minutes only.

    A reader that got a full list continues at the minute after the last one. A minute with more series than that is
    cut, because no reader could get past it.
    """
    try:
        counts = sorted([Count(*row) for row in rows])
    except (Misconfigured, *DAMAGED) as error:
        raise RecordUnreadable(f"a row of the counts is damaged or was written by a newer version: {error}") from error
    if len(counts) <= COUNTS_MAX:
        return counts
    last = counts[COUNTS_MAX].minute
    return [one for one in counts if one.minute < last] or counts[:COUNTS_MAX]


# -- findings ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a person should look at; `accepted_*` is there once a person has accepted it."""

    id: str  # `finding_id` makes one
    at: float  # when it was found, in seconds since 1970
    kind: str
    severity: str  # one of SEVERITIES
    operation: str  # "" where it is about no operation
    tenant: str | None
    digest: str  # of the key, in hexadecimal; "" where it is about no key
    title: str
    evidence: str  # JSON
    proposal: str  # what to do about it
    source: str  # which part found it
    accepted_by: str | None = None
    accepted_why: str | None = None
    accepted_until: float | None = None

    def __post_init__(self) -> None:
        check_id(self.id)
        _check_time("at", self.at)
        _check_text("kind", self.kind, KIND_MAX_CHARS, least=1)
        if self.severity not in SEVERITIES:
            raise Misconfigured(f"the severity of a finding is one of {', '.join(SEVERITIES)}; not {self.severity!r}")
        _check_name("operation", self.operation, may_be_empty=True)
        if self.tenant is not None:
            _check_name("tenant", self.tenant)
        _check_text("digest", self.digest, DIGEST_MAX_CHARS)
        _check_text("title", self.title, TITLE_MAX_CHARS, least=1)
        _check_text("evidence", self.evidence, EVIDENCE_MAX_CHARS)
        _check_json(self.evidence)
        _check_text("proposal", self.proposal, PROPOSAL_MAX_CHARS)
        _check_text("source", self.source, SOURCE_MAX_CHARS)
        given = (self.accepted_by, self.accepted_why, self.accepted_until)
        if given != (None, None, None):
            check_acceptance(*given)

    @property
    def place(self) -> tuple[float, str]:
        """Its place in the order; the cursor of the page after it."""
        return self.at, self.id

    def accepted_at(self, now: float) -> bool:
        """Whether a person has accepted it, and the acceptance has not ended."""
        return self.accepted_until is not None and self.accepted_until > now

    def accepted(self, by: str, why: str, until: float) -> Finding:
        """This finding after a person accepted it; a later acceptance replaces an earlier one."""
        return replace(self, accepted_by=by, accepted_why=why, accepted_until=until)


@dataclass(frozen=True, slots=True)
class FindingQuery:
    """Which findings to list, newest first; `before` is the `place` of the last one of the page before."""

    kind: str | None = None
    severity: str | None = None
    operation: str | None = None
    accepted: bool | None = None  # False: also those whose acceptance has ended
    limit: int = 100
    before: tuple[float, str] | None = None

    @property
    def page_size(self) -> int:
        return max(0, min(self.limit, FINDINGS_MAX))

    def picks(self, finding: Finding, now: float) -> bool:
        """Whether this finding is asked for at this time of the store's clock; every store agrees with it."""
        return (
            self.kind in (None, finding.kind)
            and self.severity in (None, finding.severity)
            and self.operation in (None, finding.operation)
            and self.accepted in (None, finding.accepted_at(now))
            and (self.before is None or finding.place < self.before)
        )


def make_finding(
    kind: str,
    *,
    at: float,
    severity: str,
    title: str,
    about: Sequence[str | None] = (),
    operation: str = "",
    tenant: str | None = None,
    digest: str = "",
    evidence: Any = None,
    proposal: str = "",
    source: str = "",
) -> Finding:
    """A finding of foreign texts, cut to what stores keep; `evidence` is anything that JSON can hold.

    Its id is made of the kind, the operation, the tenant, the digest, and of what else it is `about`.
    """
    return Finding(
        id=finding_id(kind, operation, tenant, digest, *about),
        at=at,
        kind=kind,
        severity=severity,
        operation=operation,
        tenant=tenant,
        digest=digest,
        title=kept_text(title, TITLE_MAX_CHARS),
        evidence=_evidence_text(evidence),
        proposal=kept_text(proposal, PROPOSAL_MAX_CHARS),
        source=kept_text(source, SOURCE_MAX_CHARS),
    )


def _evidence_text(evidence: Any) -> str:
    """The evidence as JSON in ASCII; of one that is too long its beginning, as a text."""
    try:
        text = json.dumps(evidence)
    except (TypeError, ValueError, RecursionError) as error:
        raise Misconfigured(f"the evidence of a finding cannot be written as JSON: {error}") from error
    if len(text) <= EVIDENCE_MAX_CHARS:
        return text
    return json.dumps({"cut": text[: EVIDENCE_MAX_CHARS // 2 - 16]})  # a character takes two at most once it is escaped


def finding_id(kind: str, *about: str | None) -> str:
    """The id of a finding of this kind about these things: the same each time, whichever process finds it."""
    parts = [kind, *about]
    whole = b"".join(b"-" if part is None else b"%d:%b" % (len(part.encode()), part.encode()) for part in parts)
    return sha256(b"samekey.finding.1" + whole).hexdigest()[:32]


def finding_of(row: Sequence[Any]) -> Finding:
    """The finding that a store has kept as these values."""
    try:
        return Finding(*row)
    except (Misconfigured, *DAMAGED) as error:
        raise RecordUnreadable(f"a finding is damaged or was written by a newer version: {error}") from error


def acceptance_entry(before: Finding, after: Finding, now: float) -> Audit:
    """The entry in the audit log for an acceptance; the id of the finding is in the place of the key."""
    return Audit(
        at=now,
        who=after.accepted_by or "",
        action="accept",
        operation=before.operation,
        tenant=before.tenant,
        text=before.id,
        before="" if before.accepted_by is None else "accepted",
        after="accepted",
        why=after.accepted_why or "",
    )


# -- what may be written -----------------------------------------------------------------------------------


def kept_text(text: str, most: int) -> str:
    """Foreign text as every store can keep it: cut to `most` characters, and what cannot be stored is escaped."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")[:most]


def check_id(given: Any) -> None:
    if not isinstance(given, str) or not 0 < len(given) <= ID_MAX_CHARS or not _ID_CHARS.issuperset(given):
        raise Misconfigured(
            f"the id of a finding has 1 to {ID_MAX_CHARS} of the characters A-Z a-z 0-9 . : _ - in it; not {given!r}"
        )


def check_acceptance(by: Any, why: Any, until: Any) -> None:
    """Raise unless a name, a reason and an end are given."""
    _check_text("name of the person who accepts (by)", by, ACCEPTANCE_MAX_CHARS, least=1)
    _check_text("reason (why)", why, ACCEPTANCE_MAX_CHARS, least=1)
    _check_time("end of the acceptance (until)", until)


def _check_number(what: str, given: Any, least: int, most: int) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or not least <= given <= most:
        raise Misconfigured(f"the {what} of a count is a whole number from {least} to {most}; not {given!r}")


def _check_time(what: str, given: Any) -> None:
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not math.isfinite(given):
        raise Misconfigured(f"the {what} is a time in seconds since 1970; not {given!r}")


def _check_name(what: str, given: Any, *, may_be_empty: bool = False) -> None:
    _check_text(what, given, NAME_MAX_BYTES, least=0 if may_be_empty else 1)
    if len(given.encode()) > NAME_MAX_BYTES:
        raise Misconfigured(f"the {what} is {len(given.encode())} bytes long; {NAME_MAX_BYTES} is the limit")


def _check_text(what: str, given: Any, most: int, *, least: int = 0) -> None:
    if not isinstance(given, str):
        raise Misconfigured(f"the {what} is a text, not {type(given).__name__}")
    if not least <= len(given) <= most:
        raise Misconfigured(f"the {what} is {len(given)} characters long; {least} to {most} are possible")
    if not given.isascii():
        try:
            given.encode()
        except UnicodeEncodeError:
            raise Misconfigured(f"the {what} holds a lone surrogate, which no store can keep") from None
    if "\0" in given:
        raise Misconfigured(f"the {what} holds a NUL character, which not every store can keep")


def _check_json(text: str) -> None:
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Misconfigured(f"the evidence of a finding is JSON, and this is not: {error}") from error
