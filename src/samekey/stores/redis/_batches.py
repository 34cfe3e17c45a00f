"""Jobs: commands on their way through the servers, until each has an answer that is one.

Sans-IO. A lost reply says nothing about the command. Every command recognises itself, so it is asked again over a new
connection, for as long as a server takes to restart or a replica to be promoted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from samekey.core.commands import Open, Read, StoreCommand, Wait
from samekey.core.errors import Misconfigured, SamekeyError, StoreUnavailable
from samekey.drivers.redis import connect as driver
from samekey.stores._failures import own_copy
from samekey.stores.redis._commands import steps
from samekey.stores.redis._servers import Links, Memory, Redirected, Request, Unreachable

BATCH_MAX = 512  # commands in one go: bounds how long the first of them waits for the last
BATCH_BYTES_MAX = 8 << 20  # and what they carry: bounds memory, and how long the connection is taken
REASK_SECONDS = 8.0  # how long a lost reply is asked after: a restart, a sentinel's or a cluster's failover
REASK_PAUSE_SECONDS = 0.02
REASK_PAUSE_MAX_SECONDS = 0.25
REDIRECTS_MAX = 16  # servers that each say another one has the key, asked at once; then with pauses, until they agree

Asking = Generator[Any, Any, Any]  # yields a request or a list of them, is sent the answer or a list of them


class Pause(NamedTuple):
    seconds: float


class Job:
    """One piece of work, and what became of it."""

    __slots__ = ("answers", "done", "error", "name", "question", "reply", "requests", "several", "working")

    def __init__(self, command: StoreCommand | None, working: Asking) -> None:
        self.question = command
        self.name = b"" if command is None else command.key.digest  # jobs of one name are done one after the other
        self.working = working
        self.requests: list[Request] = []
        self.answers: list[Any] = []  # to each of them; None while there is none
        self.several = False
        self.reply: Any = None
        self.error: Exception | None = None
        self.done = False

    def advance(self, answer: Any) -> None:
        """Go on with this answer until the next request, or to the end."""
        try:
            try:
                asked = self.working.send(answer)
            except StopIteration as stop:
                self.reply, self.done = stop.value, True
            else:
                if asked.__class__ is Request:
                    self.requests, self.answers, self.several = [asked], [None], False
                else:
                    self.requests, self.answers, self.several = asked, [None] * len(asked), True
        except Exception as error:  # of this command alone: its own frames stay, those of the leader do not
            self.fail(error, error.__traceback__.tb_next if error.__traceback__ is not None else None)
        except BaseException:  # Ctrl-C in whoever does it for us: it stands between two requests, and cannot go on
            self.fail(StoreUnavailable("interrupted while an answer was taken in"))
            raise

    def fail(self, error: Exception, trace: TracebackType | None = None) -> None:
        """End with this error, as an object of this caller's own; `trace` has no frames but those of `working`."""
        self.error, self.done = own_copy(error).with_traceback(trace), True
        self.working.close()

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.reply


def weight(jobs: Sequence[Job]) -> int:
    """The bytes of the results that these carry."""
    return sum([len(getattr(job.question, "result", None) or b"") for job in jobs])


def portions(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs in order, no more at a time than may travel together."""
    parts: list[list[Job]] = [[]]
    carried = 0
    for job in jobs:
        carried += weight((job,))
        if parts[-1] and (len(parts[-1]) >= BATCH_MAX or carried > BATCH_BYTES_MAX):
            parts.append([])
            carried = weight((job,))
        parts[-1].append(job)
    return parts


def job_of(command: StoreCommand, memory: Memory) -> Job:
    return Job(command, steps(command, memory))


def working_all(jobs: Sequence[Job], links: Links, memory: Memory) -> Generator[Any, Any, None]:
    """Every job to its end; those about one key one after the other, all others together."""
    live: list[Job] = []
    behind: dict[Any, deque[Job]] = {}  # who waits for whom, by name
    for job in jobs:
        name = job.name or id(job)
        if name in behind:
            behind[name].append(job)
        else:
            behind[name] = _NOBODY if len(jobs) == 1 else deque()
            live.append(job)
            if not job.requests:
                job.advance(None)
    trouble = _Trouble(memory.address.name, 0.0 if memory.address.hasty else REASK_SECONDS)
    while live:
        asked = [(job, at) for job in live for at, answer in enumerate(job.answers) if answer is None]
        replies = (yield from links.exchanging([job.requests[at] for job, at in asked])) if asked else []
        pause = 0.0
        for (job, at), reply in zip(asked, replies, strict=True):
            if reply.__class__ is list:
                job.answers[at] = reply
            elif not job.done:
                pause = max(pause, trouble.heard(job, at, reply))
        going: list[Job] = []
        for job in live:
            if not job.done and None not in job.answers:
                job.advance(job.answers if job.several else job.answers[0])
            going += _next(job, behind[job.name or id(job)]) if job.done else (job,)
        live = going
        if pause:
            yield Pause(pause)


def _next(ended: Job, behind: deque[Job]) -> Sequence[Job]:
    """Whoever comes after a job that is done, about the same key."""
    while behind:
        job = behind.popleft()
        if ended.error is None and _same(ended.question, job.question):
            job.working.close()  # the answer to the one is the answer to the other
            job.reply, job.done = ended.reply, True
            continue
        job.advance(None)
        if not job.done:
            return (job,)
        ended = job
    return ()


_NOBODY: deque[Job] = deque()


def _same(one: StoreCommand | None, other: StoreCommand | None) -> bool:
    """Whether the answer to the one is the answer to the other that comes right after it."""
    if one is None or other is None or one.key != other.key:
        return False
    reads = isinstance(one, (Read, Wait)) and isinstance(other, (Read, Wait))
    return reads or (isinstance(one, Open) and isinstance(other, Open))


class _Trouble:
    """What is done about answers that are none."""

    def __init__(self, name: str, seconds: float) -> None:
        self._name, self._seconds = name, seconds
        self._deadline: float | None = None
        self._pause = REASK_PAUSE_SECONDS

    def heard(self, job: Job, at: int, reply: Any) -> float:
        """Take the reply in; seconds to pause before it is asked again, if it is."""
        request = job.requests[at]
        if not isinstance(reply, Exception):
            job.answers[at] = _NOTHING if reply is None else reply
            return 0.0
        if isinstance(reply, SamekeyError):  # ours already: not asked, or not on its replicas
            job.fail(reply)
            return 0.0
        if isinstance(reply, driver.Lost):
            request.lost = True
            return self._again(job, driver.store_error(self._name, reply.cause), reply.cause)
        if isinstance(reply, Unreachable):
            # If nothing of ours was under way, that is the answer.
            if not (request.lost or request.tried) or isinstance(reply.error, (Misconfigured, Closed)):
                job.fail(reply.error)
                return 0.0
            return self._again(job, reply.error, None)
        if isinstance(reply, Redirected):
            request.redirects += 1
            if request.redirects > REDIRECTS_MAX:
                nobody = StoreUnavailable(f"{self._name}: no server of the cluster admits to having the key")
                return self._again(job, nobody, None)
            return 0.0
        if driver.is_unknown_script(reply) and not request.whole:
            request.whole = True
            return 0.0
        if driver.is_again(reply):
            request.tried = True
            return self._again(job, driver.store_error(self._name, reply), reply)
        error = driver.store_error(self._name, reply)
        error.__cause__ = reply
        job.fail(error)
        return 0.0

    def _again(self, job: Job, error: Exception, cause: BaseException | None) -> float:
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds
        if isinstance(error, Misconfigured) or now >= self._deadline:
            error.__cause__ = cause or error.__cause__
            job.fail(error)
            return 0.0
        self._pause, pause = min(self._pause * 2, REASK_PAUSE_MAX_SECONDS), self._pause
        return pause


class _Nothing(list[Any]):
    """A reply of nil to a plain command: an answer, and not the want of one."""


_NOTHING = _Nothing()


class Closed(StoreUnavailable):
    """The store was closed: nothing to wait for."""
