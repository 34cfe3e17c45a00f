"""The steps that a scenario yields and the replies that it is sent; a scenario opens no socket."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple

BUSY = frozenset({409, 425, 429, 503})  # "later, with the same key": they do not show whether it happened
OVERLOADED = frozenset({429, 503})  # about the load of the endpoint, and not about this request


class Request(NamedTuple):
    """One request; `keys` are the values of the key header, one header for each."""

    url: str
    keys: tuple[bytes, ...]
    body: bytes
    headers: tuple[tuple[str, str], ...]
    method: str


class Reply(NamedTuple):
    """What the endpoint answered; if it did not, `status` is 0 and `trouble` is the reason."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()  # names in lower case
    body: bytes = b""
    trouble: str = ""

    @property
    def good(self) -> bool:
        return 200 <= self.status < 400

    @property
    def busy(self) -> bool:
        return self.status in BUSY

    @property
    def doubtful(self) -> bool:
        """Whether a problem document states, in its type or its text, that the outcome is unknown."""
        return "problem+json" in self.header("content-type") and b"doubt" in self.body.lower()

    @property
    def refused(self) -> bool:
        return 400 <= self.status < 500

    @property
    def chunked(self) -> bool:
        return "chunked" in self.header("transfer-encoding").lower()

    @property
    def cookies(self) -> dict[str, str]:
        """The value of each cookie that the answer sets, by name."""
        pairs = (value.partition(";")[0].partition("=") for name, value in self.headers if name == "set-cookie")
        return {name.strip(): value.strip() for name, _, value in pairs}

    def header(self, name: str) -> str:
        return next((value for found, value in self.headers if found == name), "")

    @property
    def described(self) -> str:
        """The status, or why there is none, as part of a sentence."""
        return str(self.status) if self.status else f"not at all ({self.trouble})"

    def __str__(self) -> str:
        """The reply as a step of a story: equal bodies have equal marks."""
        if not self.status:
            return f"no answer ({self.trouble})"
        # Never the body itself: a report is passed on, and an answer may hold personal data.
        mark = hashlib.sha256(self.body).hexdigest()[:6] if self.body else "empty"
        replayed = ", marked as a replay" if self.header("idempotent-replayed").lower() == "true" else ""
        return f"{self.status}, body {mark}{replayed}"


class Send(NamedTuple):
    """Send it and wait for the answer -> Reply."""

    request: Request


class Together(NamedTuple):
    """Send all of them in the same instant -> list of Reply, in their order."""

    requests: tuple[Request, ...]


class HangUp(NamedTuple):
    """Send this part of the body, wait that long, and hang up without reading -> None."""

    request: Request
    part: float = 1.0
    after_seconds: float = 0.0


class Count(NamedTuple):
    """How many effects there are now, by the probe -> int."""


class Pause(NamedTuple):
    """Let time pass -> None."""

    seconds: float


class Break(NamedTuple):
    """From now on the endpoint fails, by the user's command of this number -> str: why that failed, or ""."""

    way: int


class Heal(NamedTuple):
    """The endpoint works again, by the user's command -> None."""


Step = Send | Together | HangUp | Count | Pause | Break | Heal


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The endpoint, and what the user declared about it."""

    url: str
    body: bytes
    method: str = "POST"
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    key_header: str = "Idempotency-Key"
    quoted: bool = False  # the endpoint wants "k", not k
    other_body: bytes | None = None  # None: made from `body`
    other_headers: tuple[tuple[str, str], ...] = ()  # of another principal; they replace headers of the same name
    fail_headers: tuple[tuple[str, str], ...] = ()  # each makes a request fail
    breaks: int = 0  # the number of commands that make it fail
    failures_kept: bool = False  # it documents that failures are replayed, as the draft and Stripe v1 do
    stream_url: str | None = None  # answers in a stream
    other_url: str | None = None  # another operation of the same application
    identity: tuple[str, ...] = ()  # where the answer names its effect; () is the whole body
    callers: int = 8  # at once
    rounds: int = 3  # of them
    oversize_bytes: int = 8 << 20
    patience_seconds: float = 5.0  # how long to repeat a request while the answer is "later"
    settle_seconds: float = 0.3  # before effects are counted whose answer no client waited for
    skip: frozenset[str] = field(default_factory=frozenset)
