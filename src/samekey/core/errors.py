"""Every error names who can do something about it.

    CallerError   the caller must change something, the same call will never work
    Busy          the caller may try again later, with the same key
    Uncertain     a provider or a person must decide; trying again blindly is the double charge
    StoreError    the store did not do its part; the driver's own exception is `__cause__`

`Refused` and `NotDone` are not errors of samekey: an effect raises them to report what it knows.
"""

from __future__ import annotations

from typing import Any


class SamekeyError(Exception):
    """Base of what samekey raises, except TypeError where a declaration or call does not fit its function."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.__dict__.update(facts)

    def __reduce__(self) -> tuple[Any, ...]:
        # Task queues pickle exceptions across processes; the facts must arrive with the message.
        return (_rebuild, (type(self), self.__dict__.copy()))


def _rebuild(cls: type[SamekeyError], facts: dict[str, Any]) -> SamekeyError:
    error = cls.__new__(cls, facts["message"])
    error.args = (facts["message"],)
    error.__dict__.update(facts)
    return error


class CallerError(SamekeyError):
    """The caller must change something."""


class KeyMissing(CallerError):
    """A key (or tenant) is required and none was given."""


class KeyMalformed(CallerError):
    """The key (or tenant, or operation name) cannot be one: wrong type, too long, control characters."""


class PayloadRefused(CallerError):
    """The payload has no exact canonical form; `path` is the place in it."""

    path: str


class KeyReused(CallerError):
    """The key was used before with another payload; `fields` names what differs."""

    key: str
    fields: tuple[str, ...]


class Misconfigured(CallerError):
    """The guard, the policy, the store address or the decorated function cannot work as written."""


class Busy(SamekeyError):
    """Try again later with the same key, after `retry_after` seconds."""

    retry_after: float


class InProgress(Busy):
    """Another attempt holds the key and did not finish within the patience given."""

    key: str
    token: int


class TransactionConflict(Busy):
    """The caller's transaction lost against another one: roll it back and run it again, as a whole."""

    key: str


class Uncertain(SamekeyError):
    """A provider or a person must decide."""


class InDoubt(Uncertain):
    """samekey does not know whether the effect happened, and does not run it again by itself."""

    key: str
    token: int
    error: str | None  # type of the error that led here
    age_seconds: float
    next: str  # what a next call can do: it "asks" the provider again, "runs", or only a "person" can resolve it
    retry_after: float  # seconds until a next call can do that; 0.0 where only a person can


class Fenced(Uncertain):
    """This attempt lost its hold: the key changed hands while it ran."""

    key: str
    token: int


class ResultNotKept(Uncertain):
    """The effect happened; its result was not kept (too large, not storable, or redacted)."""

    key: str


class ResultUnreadable(Uncertain):
    """The effect happened; its stored result no longer decodes (a changed class, a newer version)."""

    key: str


class StoreError(SamekeyError):
    """The store did not do its part; `__cause__` is the driver's exception."""


class StoreUnavailable(StoreError):
    """The store could not be reached, or did not answer in time."""

    tried_seconds: float = 0.0  # how long the caller waited for it, where the caller measured that


class StoreBusy(StoreUnavailable):
    """The store answers, but an open transaction holds this record: wait, and never run without it."""


class RecordUnreadable(StoreError):
    """A record in the store is damaged, foreign, or written by a newer version."""

    cursor: tuple[Any, Any] | None = (
        None  # in a list: the position of the record, so that the caller can continue after it
    )


class Refused(Exception):
    """Raised by an effect: refused for good. The key is closed and replays this refusal.

    `detail` is kept with the reason and must be storable like a result. `declined`: as for NotDone.
    """

    declined: bool = False

    def __init__(self, reason: str = "", *, detail: Any = None, declined: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail
        if declined:
            self.declined = True

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_report, (type(self), self.args, self.__dict__.copy()))


class NotDone(Exception):
    """Raised by an effect that knows that nothing happened. The key is free for the next try.

    Never raise it for a timeout: after a timeout the effect cannot know.

    `declined=True` says more: the provider got this request under `held.provider_key()`, declined it, and keeps that
    answer for every other request under the same key. Where the boundary is `Keyed(keeps_declines=True)`, that also
    ends the doubt about an earlier attempt. An effect that has not sent anything never says so.
    """

    declined: bool = False

    def __init__(self, reason: str = "", *, detail: Any = None, declined: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail
        if declined:
            self.declined = True

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_report, (type(self), self.args, self.__dict__.copy()))


def _rebuild_report(cls: type[Exception], args: tuple[Any, ...], facts: dict[str, Any]) -> Exception:
    report = cls.__new__(cls, *args)
    report.args = args
    report.__dict__.update(facts)
    return report
