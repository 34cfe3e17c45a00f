"""What a scenario may ask for, and what it is told: it yields steps, is sent replies, and opens no socket."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

BUSY = frozenset({409, 425, 429, 503})  # "later, with the same key": no word about whether it happened
OVERLOADED = frozenset({429, 503})


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `keys` are the values of the key header, as many as there are to be headers."""

    url: str
    keys: tuple[bytes, ...]
    body: bytes
    headers: tuple[tuple[str, str], ...]
    method: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back; `status` 0 where nothing did, and then `trouble` says why."""

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
    def overloaded(self) -> bool:
        """Whether it speaks of the endpoint, and not of this request."""
        return self.status in OVERLOADED

    @property
    def doubtful(self) -> bool:
        """Whether it says in a problem's type, or in words, that nobody knows how it ended."""
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
    def told(self) -> str:
        """In a sentence: the status, or why there is none."""
        return str(self.status) if self.status else f"not at all ({self.trouble})"

    def __str__(self) -> str:
        """As a step of a story: with a mark by which equal answers are known."""
        if not self.status:
            return f"no answer ({self.trouble})"
        # Never the body itself: a report is passed on, and an answer may hold what is nobody's business.
        mark = hashlib.sha256(self.body).hexdigest()[:6] if self.body else "empty"
        replayed = ", says it is replayed" if self.header("idempotent-replayed").lower() == "true" else ""
        return f"{self.status}, body {mark}{replayed}"


@dataclass(frozen=True, slots=True)
class Send:
    """Send it and wait for the answer -> Reply."""

    request: Request


@dataclass(frozen=True, slots=True)
class Together:
    """Send all of them in the same instant -> list of Reply, in their order."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class HangUp:
    """Send this part of the body, wait that long, and hang up without reading -> None."""

    request: Request
    part: float = 1.0
    after_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Count:
    """How many effects there are now, by the probe -> int."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Let time pass -> None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Break:
    """From now on the endpoint fails, by the user's command of this number -> str: why that failed, or ""."""

    way: int


@dataclass(frozen=True, slots=True)
class Heal:
    """The endpoint works again, by the user's command -> None."""


Step = Send | Together | HangUp | Count | Pause | Break | Heal


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The endpoint, and what its user told us about it."""

    url: str
    body: bytes
    method: str = "POST"
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    key_header: str = "Idempotency-Key"
    quoted: bool = False  # the endpoint wants "k", not k
    other_body: bytes | None = None  # None: made from `body`
    other_headers: tuple[tuple[str, str], ...] = ()  # of another principal, in place of those of the same name
    fail_headers: tuple[tuple[str, str], ...] = ()  # each makes a request fail
    breaks: int = 0  # so many commands make it fail
    failures_kept: bool = False  # it documents that failures are replayed, as the draft and Stripe v1 do
    stream_url: str | None = None  # answers in a stream
    other_url: str | None = None  # another operation of the same application
    identity: tuple[str, ...] = ()  # where the answer names its effect; () is the whole body
    callers: int = 8  # at once
    rounds: int = 3  # of them
    oversize_bytes: int = 8 << 20
    patience_seconds: float = 5.0  # how long to ask while the answer is "later"
    settle_seconds: float = 0.3  # before effects are counted that nobody waited for
    skip: frozenset[str] = field(default_factory=frozenset)
