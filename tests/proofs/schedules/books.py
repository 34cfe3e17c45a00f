"""A provider and its books, as values: what `world.py` has behind the key."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from samekey.core.boundary import Absent, Conflicting, Declined, Happened, Verdict
from samekey.core.commands import Outcome, Raised, Returned
from samekey.core.errors import Fenced, NotDone, Refused, StoreUnavailable


class Ending(NamedTuple):
    """How an effect ended, as a value: errors gather notes, so each attempt is given new ones."""

    how: str  # returned, or the name of an error
    value: str = ""
    begun: bool = False
    inner: bool = False  # it had already left another guard
    declined: bool = False  # the provider keeps this decline under its key, and the effect knows that

    def outcome(self) -> Outcome:
        match self.how:
            case "returned":
                return Returned(self.value)
            case "NotDone":
                not_done = NotDone("declined", declined=self.declined)
                return Raised(not_done, inner=self.inner, begun=self.begun)
            case "Refused":
                return Raised(Refused("stolen card", declined=self.declined), begun=self.begun)
            case "Fenced":
                return Raised(Fenced("the hold is lost"), begun=self.begun)
            case "StoreUnavailable":
                return Raised(StoreUnavailable("the store does not answer"), begun=self.begun)
            case "TimeoutError":
                return Raised(TimeoutError("the provider does not answer"), begun=self.begun)
            case _:
                return Raised(RuntimeError("a bug"), begun=self.begun)


class Charge(NamedTuple):
    by: str  # the caller whose request it was
    reference: str
    result: str


class Known(NamedTuple):
    """A key that the provider dedups on, and what it answers under it."""

    key: str
    until: float
    ending: Ending


class Request(NamedTuple):
    by: str
    reference: str  # what a lookup finds it by
    key: str  # what the provider dedups on, "" for none: only code that declares Keyed sends it
    due: float = inf  # by when it has landed or is lost, if the world is punctual
    copy: bool = False  # made by something between us and the provider


class Books(NamedTuple):
    charges: tuple[Charge, ...] = ()
    declined: frozenset[str] = frozenset()  # references
    known: tuple[Known, ...] = ()
    broke: bool = False  # the customer has not topped up yet


@dataclass(frozen=True, slots=True)
class Provider:
    """What stands behind the key, in truth - whatever the boundary declares."""

    dedups: bool = False
    retention: float = inf  # seconds for which it knows a key
    keeps_declines: bool = False  # and answers with the old decline under it
    broke: bool = False  # it declines until the customer tops up, which may happen at any moment
    refuses: bool = False  # it always refuses, for good
    copies: int = 0  # requests that a retrying proxy may send twice

    def arrive(self, books: Books, request: Request, now: float) -> tuple[Books, Ending]:
        """The books after this request, and the answer to it."""
        known = tuple(one for one in books.known if one.until > now)
        if self.dedups:
            for one in known:
                if one.key == request.key:
                    return books, one.ending
        if self.refuses or books.broke:
            kept = self.dedups and self.keeps_declines and bool(request.key)
            ending = Ending("Refused" if self.refuses else "NotDone", declined=kept)
            books = books._replace(declined=books.declined | {request.reference})
        else:
            ending = Ending("returned", f"receipt of {request.by}")
            books = books._replace(charges=(*books.charges, Charge(request.by, request.reference, ending.value)))
        if self.dedups and request.key and (ending.how == "returned" or self.keeps_declines):
            known = (*known, Known(request.key, now + self.retention, ending))
        return books._replace(known=known), ending

    def look(self, books: Books, reference: str) -> Verdict:
        """What its books say now about this reference; a request on its way is in no book."""
        found = tuple(charge.result for charge in books.charges if charge.reference == reference)
        if len(found) > 1:
            return Conflicting(found)
        if found:
            return Happened(found[0])
        if reference in books.declined:
            return Declined(final=self.refuses, reason="stolen card" if self.refuses else "declined")
        return Absent()
