"""One scenario while it is played: its requests and replies, the number of effects, and its findings."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from samekey.prove._bodies import found_at
from samekey.prove._steps import OVERLOADED, Count, HangUp, Pause, Reply, Request, Send, Step, Target, Together

ASKS_MAX = 60  # repetitions of one request while the answer is "later"
UNCOUNTED = "effects cannot be counted"
RETRY_AFTER_MAX_SECONDS = 1.0  # a longer Retry-After is shortened: patience is the bound that counts
ASK_AGAIN_SECONDS = 0.1

Play = Generator[Step, Any, Any]


@dataclass(slots=True)
class Tally:
    """How effects are counted: by a probe in units of one ordinary request, or by what answers name."""

    probed: bool
    unit: int = 0  # what one ordinary request adds to the probe's count
    countable: bool = False  # set when two ordinary requests could be distinguished
    latency_seconds: float = 0.0  # of an ordinary request


@dataclass(slots=True)
class Trial:
    target: Target
    tally: Tally
    keys: Iterator[str]  # never used before
    story: list[str] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    broken: list[tuple[str, str]] = field(default_factory=list)  # (assumption, what was seen)
    unknown: list[tuple[str, str]] = field(default_factory=list)  # (assumption, why it cannot be judged)
    not_applicable: list[tuple[str, str]] = field(default_factory=list)  # (assumption, why this does not apply here)
    notes: list[str] = field(default_factory=list)
    unserved: bool = False  # a request was not served well: the endpoint may refuse every request by now
    overloaded: int = 0  # the status of an answer about load, which shows nothing about a key
    refusing: str = ""  # how an ordinary request was answered in the end, if it was not served
    most_effects: Fraction = Fraction(0)
    _before: int = 0

    # -- sending ---------------------------------------------------------------------------------------------------

    def request(
        self,
        *keys: str | bytes,
        body: bytes | None = None,
        more: tuple[tuple[str, str], ...] = (),
        url: str | None = None,
        method: str | None = None,
    ) -> Request:
        """An ordinary request under these keys; `more` headers replace those of the same name."""
        names = {name.lower() for name, _ in more}
        headers = self.target.headers
        if not any(name.lower() == "content-type" for name, _ in headers):
            headers = (("Content-Type", self.target.content_type), *headers)
        return Request(
            url or self.target.url,
            tuple(map(self._form, keys)),
            self.target.body if body is None else body,
            (*(pair for pair in headers if pair[0].lower() not in names), *more),
            method or self.target.method,
        )

    def _form(self, key: str | bytes) -> bytes:
        if isinstance(key, bytes):
            return key
        return f'"{key}"'.encode() if self.target.quoted else key.encode()

    def send(self, what: str, request: Request, *, fails: bool = False) -> Generator[Step, Any, Reply]:
        """Return the answer. With `fails` we made the request fail, so a bad status shows nothing."""
        reply: Reply = yield Send(request)
        self.add_reply(what, reply, fails=fails)
        return reply

    def together(self, what: str, requests: list[Request]) -> Generator[Step, Any, list[Reply]]:
        replies: list[Reply] = yield Together(tuple(requests))
        for number, reply in enumerate(replies, 1):
            # A request that lost the race may be answered "later" in any way.
            self.add_reply(f"{what}, {number}", reply, fails=True)
        return replies

    def hang_up(self, what: str, request: Request, *, part: float = 1.0, after: float = 0.0) -> Play:
        yield HangUp(request, part=part, after_seconds=after)
        self.story.append(f"{what}: hung up")

    def until_answered(self, what: str, request: Request) -> Generator[Step, Any, Reply]:
        """Return the answer; repeat the request while the answer is "later" and the patience lasts."""
        left = self.target.patience_seconds
        for asked in range(1, ASKS_MAX + 1):
            reply: Reply = yield Send(request)
            wait = pause_after(reply)
            if not reply.busy or left < wait or asked == ASKS_MAX:
                break
            yield Pause(wait)
            left -= wait
        self.add_reply(f"{what}, asked {asked} times" if asked > 1 else what, reply)
        return reply

    def still_serves(self) -> Play:
        """Send an ordinary request: if it is not served either, earlier refusals show nothing about a key."""
        overloaded = self.overloaded
        ordinary = self.request(next(self.keys))
        reply = yield from self.until_answered("an ordinary request, to see whether any is served", ordinary)
        self.overloaded = overloaded
        self.refusing = "" if reply.good else reply.described

    @property
    def inconclusive(self) -> str:
        """Why the answers show nothing about keys, or "". Effects that were counted still count."""
        if self.refusing:
            return f"in the end an ordinary request was answered {self.refusing} too: that shows nothing about the key"
        if self.overloaded:
            return f"the endpoint answered {self.overloaded}, which shows nothing about the key: raise its limit"
        return ""

    def add_reply(self, what: str, reply: Reply, *, fails: bool = False) -> None:
        self.unserved = self.unserved or not reply.good
        if reply.status in OVERLOADED and not fails:
            self.overloaded = reply.status
        self.replies.append(reply)
        self.story.append(f"{what}: {reply}")

    # -- counting --------------------------------------------------------------------------------------------------

    def start_count(self) -> Play:
        """Count effects from here on."""
        self.replies.clear()
        if self.tally.probed:
            self._before = yield Count()

    def effects(self) -> Generator[Step, Any, Fraction]:
        """Return the number of effects since `start_count`; it is known only if `countable` is true.

        It is never rounded: a repetition that writes one row of twenty again is a repeated effect too.
        """
        if self.tally.probed:
            now: int = yield Count()
            effects = Fraction(now - self._before, max(1, self.tally.unit))
        else:
            effects = Fraction(len({self.name_of(reply) for reply in self.replies if reply.good}))
        self.story.append(f"effects so far: {effects}")
        self.most_effects = max(self.most_effects, effects)
        return effects

    def settled_effects(self) -> Generator[Step, Any, Fraction]:
        """As `effects`, after a pause in which effects can end whose answer no client waited for."""
        yield Pause(self.target.settle_seconds + 2 * self.tally.latency_seconds)
        return (yield from self.effects())

    @property
    def countable(self) -> bool:
        return self.tally.countable

    def name_of(self, reply: Reply) -> bytes:
        """What identifies the effect in this answer: one field of it, or the whole body."""
        if not self.target.identity:
            return reply.body
        try:
            return json.dumps(found_at(self.target.identity, reply.body), sort_keys=True).encode()
        except ValueError:
            return reply.body

    # -- finding ---------------------------------------------------------------------------------------------------

    def wrong(self, assumption: str, seen: str) -> None:
        self.broken.append((assumption, seen))

    def cannot_tell(self, assumptions: str | tuple[str, ...], why: str) -> None:
        for assumption in (assumptions,) if isinstance(assumptions, str) else assumptions:
            self.unknown.append((assumption, why))

    def does_not_apply(self, assumption: str, why: str) -> None:
        """This endpoint has nothing to try it with: neither holds nor unknown."""
        self.not_applicable.append((assumption, why))

    def note(self, text: str) -> None:
        self.notes.append(text)


def effects_text(number: Fraction) -> str:
    return "1 effect" if number == 1 else f"{number} effects"


def pause_after(reply: Reply) -> float:
    seconds = reply.header("retry-after").strip()
    if seconds.isdecimal() and len(seconds) < 10:
        return min(max(float(seconds), ASK_AGAIN_SECONDS), RETRY_AFTER_MAX_SECONDS)
    return ASK_AGAIN_SECONDS


def difference(first: Reply, second: Reply) -> str:
    """How a replay differs from the first answer; "" if it does not."""
    if first.status != second.status:
        return f"the status was {first.status} and is {second.status}"
    if first.body != second.body:
        return f"the body differs ({len(first.body)} bytes, then {len(second.body)})"
    for name in ("content-type", "location", "etag"):
        if first.header(name) != second.header(name):
            return f"{name} was {first.header(name) or 'absent'!r} and is {second.header(name) or 'absent'!r}"
    return ""
