"""One scenario being played: what it sent, what it saw, how many effects there were, and what it found."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from samekey.prove._steps import Count, HangUp, Pause, Reply, Request, Send, Step, Target, Together

ASKS_MAX = 60  # repetitions of one request while the answer is "later"
UNTOLD = "effects cannot be counted"
RETRY_AFTER_MAX_SECONDS = 1.0  # a longer Retry-After is shortened: patience is the bound that counts
ASK_AGAIN_SECONDS = 0.1

Play = Generator[Step, Any, Any]


@dataclass(slots=True)
class Tally:
    """How effects are counted: by a probe in units of one ordinary request, or by what answers name."""

    probed: bool
    unit: int = 0  # what one ordinary request adds to the probe's count
    telling: bool = False  # set once two ordinary requests were told apart
    latency_seconds: float = 0.0  # of an ordinary request


@dataclass(slots=True)
class Trial:
    target: Target
    tally: Tally
    keys: Iterator[str]  # never used before, by anybody
    story: list[str] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    broken: list[tuple[str, str]] = field(default_factory=list)  # (assumption, what was seen)
    unknown: list[tuple[str, str]] = field(default_factory=list)  # (assumption, why it cannot be told)
    apart: list[tuple[str, str]] = field(default_factory=list)  # (assumption, why this does not apply here)
    notes: list[str] = field(default_factory=list)
    uneasy: bool = False  # somebody was not answered well: it may be the endpoint that refuses everybody by now
    overloaded: int = 0  # the status of an answer that says "too much", and nothing about a key
    refusing: str = ""  # how an ordinary request was answered in the end, if that was not well
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

    def send(self, told: str, request: Request, *, fails: bool = False) -> Generator[Step, Any, Reply]:
        """The answer; `fails` where we made it fail, so that a bad one says nothing."""
        reply: Reply = yield Send(request)
        self.heard(told, reply, fails=fails)
        return reply

    def together(self, told: str, requests: list[Request]) -> Generator[Step, Any, list[Reply]]:
        replies: list[Reply] = yield Together(tuple(requests))
        for number, reply in enumerate(replies, 1):
            self.heard(f"{told}, {number}", reply, fails=True)  # those who lose may be told "later" in any way
        return replies

    def hang_up(self, told: str, request: Request, *, part: float = 1.0, after: float = 0.0) -> Play:
        yield HangUp(request, part=part, after_seconds=after)
        self.story.append(f"{told}: hung up")

    def until_answered(self, told: str, request: Request) -> Generator[Step, Any, Reply]:
        """The answer, asked for again while it is "later" and our patience lasts."""
        left = self.target.patience_seconds
        for asked in range(1, ASKS_MAX + 1):
            reply: Reply = yield Send(request)
            wait = pause_after(reply)
            if not reply.busy or left < wait or asked == ASKS_MAX:
                break
            yield Pause(wait)
            left -= wait
        self.heard(f"{told}, asked {asked} times" if asked > 1 else told, reply)
        return reply

    def still_serves(self) -> Play:
        """Find out whether an ordinary request is answered well: if none is, a refusal says nothing about a key."""
        overloaded = self.overloaded
        ordinary = self.request(next(self.keys))
        reply = yield from self.until_answered("an ordinary request, to see whether any is served", ordinary)
        self.overloaded = overloaded
        self.refusing = "" if reply.good else reply.told

    @property
    def says_nothing(self) -> str:
        """Why the answers say nothing about keys, if they do not. Effects that were counted do."""
        if self.refusing:
            return f"in the end an ordinary request was answered {self.refusing} too: that is no word about the key"
        if self.overloaded:
            return f"the endpoint answered {self.overloaded}, which is no word about the key: raise its limit"
        return ""

    def heard(self, told: str, reply: Reply, *, fails: bool = False) -> None:
        self.uneasy = self.uneasy or not reply.good
        if reply.overloaded and not fails:
            self.overloaded = reply.status
        self.replies.append(reply)
        self.story.append(f"{told}: {reply}")

    # -- counting --------------------------------------------------------------------------------------------------

    def start_count(self) -> Play:
        """From here on effects are counted."""
        self.replies.clear()
        if self.tally.probed:
            self._before = yield Count()

    def effects(self) -> Generator[Step, Any, Fraction]:
        """How many there were since `start_count`; ask `telling` first whether that is known.

        Never rounded: a repetition that does a twentieth of it again, one row of twenty, does something again.
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
        """As `effects`, after those had time to end whose answer nobody waited for."""
        yield Pause(self.target.settle_seconds + 2 * self.tally.latency_seconds)
        return (yield from self.effects())

    @property
    def telling(self) -> bool:
        return self.tally.telling

    def name_of(self, reply: Reply) -> bytes:
        """What the answer says its effect was: a field of it, or all of it."""
        if not self.target.identity:
            return reply.body
        try:
            found = json.loads(reply.body)
            for name in self.target.identity:
                found = found[int(name)] if isinstance(found, list) else found[name]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            return reply.body
        return json.dumps(found, sort_keys=True).encode()

    # -- finding ---------------------------------------------------------------------------------------------------

    def wrong(self, assumption: str, seen: str) -> None:
        self.broken.append((assumption, seen))

    def cannot_tell(self, assumption: str, why: str) -> None:
        self.unknown.append((assumption, why))

    def does_not_apply(self, assumption: str, why: str) -> None:
        """There is nothing to try it with at this endpoint: neither clean nor unknown."""
        self.apart.append((assumption, why))

    def note(self, text: str) -> None:
        self.notes.append(text)


def told_effects(number: Fraction) -> str:
    return "1 effect" if number == 1 else f"{number} effects"


def pause_after(reply: Reply) -> float:
    seconds = reply.header("retry-after").strip()
    if seconds.isdecimal() and len(seconds) < 10:
        return min(max(float(seconds), ASK_AGAIN_SECONDS), RETRY_AFTER_MAX_SECONDS)
    return ASK_AGAIN_SECONDS


def difference(first: Reply, second: Reply) -> str:
    """How a replay differs from what it replays; "" if it does not."""
    if first.status != second.status:
        return f"the status was {first.status} and is {second.status}"
    if first.body != second.body:
        return f"the body differs ({len(first.body)} bytes, then {len(second.body)})"
    for name in ("content-type", "location", "etag"):
        if first.header(name) != second.header(name):
            return f"{name} was {first.header(name) or 'absent'!r} and is {second.header(name) or 'absent'!r}"
    return ""
