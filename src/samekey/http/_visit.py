"""One guarded request through the guard: what all sync adapters share, and what all async adapters share.

`Door.enter` claims the key. It returns a `Reply` if the request is answered already, or a `Visit`: then the application
must run, and the adapter must call exactly one of `leave`, `fail` and `cut` when it is done. Sync above async, line by
line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast
from weakref import WeakSet, ref

from samekey.core.call import Answer, Call
from samekey.core.errors import Misconfigured, NotDone, Refused
from samekey.guard.adapters import AsyncRunning, Ended, Running
from samekey.guard.claiming import Crowd
from samekey.guard.guards import AsyncGuard, Guard
from samekey.guard.operations import OPERATIONS_MAX, Declared, Operation
from samekey.http._kept import pack, unpack
from samekey.http._message import Header, Reply, Request, falls_short, is_endless
from samekey.http._rules import OF_VIEWS
from samekey.http.endpoint import (
    ALONE_SECONDS,
    ASYNC_WAITERS_MAX,
    REPLAYED,
    WAITERS_MAX,
    Asked,
    BodyNotKept,
    Endpoint,
    Final,
    not_held_back,
)

_log = logging.getLogger("samekey")

# What remember="stripe_v1" answers and keeps for an exception that the application has not made a page of.
PAGE = b'{"title": "Internal Server Error", "status": 500}'
FAILURE = Reply(500, [(b"content-type", b"application/problem+json")], PAGE)

CLAIMED = "samekey.claimed"  # in the mapping that a request carries: the claim that was made for it, and its visit

THREADS, TASKS = Crowd(), Crowd()  # the requests of this process that wait for other holders of their keys

ENVELOPE_BYTES = 2  # version and codec
SHORT = "the application's answer is shorter than its Content-Length"
CUT = "its client left, or its answer was dropped, before the answer was complete"


class Door:
    """Claims keys for requests under a sync guard."""

    def __init__(self, guard: Guard) -> None:
        if not isinstance(guard, Guard):
            raise Misconfigured(f"a sync application is guarded by Guard, not {type(guard).__name__}")
        self.guard, self._rules = guard, _Operations()

    def start(self, rules: Any) -> None:
        """At the start of an application: declare its operations, and check the store once for each guard."""
        declare(self.guard, rules)
        if self.guard not in _STARTED:
            self.guard.check()
            _STARTED.add(self.guard)

    def enter(self, endpoint: Endpoint, request: Request, key: str) -> Reply | Visit:
        who = None if endpoint.principal is None else endpoint.principal(request)
        asked = endpoint.asked(request, key, who)
        if isinstance(asked, Reply):
            return asked
        key = asked.key
        try:
            guard = self.guard if endpoint.connection is None else self.guard.on(endpoint.connection(request))
            call = once_only(self._rules.call(guard, endpoint, asked), request)
            crowd = THREADS, WAITERS_MAX if endpoint.waiters_max is None else endpoint.waiters_max
            opened = guard.begin(call, wait=patience(call, request), decides=True, crowd=crowd)
        except Exception as error:
            return answered(endpoint, key, error)
        if isinstance(opened, Answer):
            return endpoint.replay(opened.result, key)
        if not isinstance(opened, Running):
            return answered(endpoint, key, opened.error)
        visit = Visit(endpoint, key, opened, self.guard)
        carried_by(request)[CLAIMED] = call, ref(visit)
        return visit


class _Visit:
    stored = True
    over = False

    def __init__(self, endpoint: Endpoint, key: str, running: Any, guard: Any) -> None:
        self.endpoint, self.key, self.running, self.held = endpoint, key, running, running.held
        self.policy = endpoint.policy or guard.policy
        self.room = self.policy.result_max_bytes - ENVELOPE_BYTES  # for an answer as it is kept


class Visit(_Visit):
    """The application runs, and this attempt holds its key."""

    running: Running

    def leave(self, reply: Reply, size: int | None = None) -> Reply:
        """The application gave this answer: settle, and return what goes out.

        `size` is the length of a body that is too long to keep. A body shorter than its Content-Length raises.
        """
        if reply.body is not None:
            size = len(reply.body)
        if size is not None and falls_short(reply, size):
            self.fail(broken := RuntimeError(SHORT))
            raise broken
        self.over = True
        error, kept = judged(self, reply)
        ended = self.running.succeed(kept, happened=reply.status < 400) if error is None else self.running.fail(error)
        return settled(self, reply, error, ended)

    def fail(self, error: BaseException, made: Reply | None = None) -> Reply | None:
        """The application raised this error, and `made` is the page it made of it, if any.

        Returns None where the answer is not ours: raise the error again, or send that page.
        """
        if self.over:
            return None
        self.over = True
        judged_as, kept = failure(self, error, made)
        ended = self.running.succeed(kept, happened=False) if judged_as is None else self.running.fail(judged_as)
        return after_failure(self, error, made, judged_as, ended)

    def cut(self, reply: Reply) -> None:
        """The answer was cut short on its way out, and the application with it: how far it came is unknown.

        A handler that called `current().keep()` before has its answer kept.
        """
        if self.held.decision == "keep":
            self.leave(reply)
        elif not self.over:
            self.over = True
            self.running.cut(CUT)


def ends_with_view(visit: Any) -> bool:
    """Whether an answer is settled before it is streamed: its record is in a transaction, which ends with the view."""
    return visit.endpoint.connection is not None


class Stream:
    """An answer that is too long to keep, in place of its `source`: sent as it is made, settled when it is closed."""

    def __init__(self, parts: Iterable[bytes], source: Any, visit: Visit, reply: Reply) -> None:
        self._parts, self._source = parts, source
        self._visit, self._reply = visit, reply
        self._ended = False

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        try:
            for part in self._parts:
                size += len(part)
                yield part
            self._ended = not falls_short(self._reply, size)
        except GeneratorExit:  # the client left
            raise
        except BaseException as error:
            self._visit.fail(error)
            raise

    def close(self) -> None:
        """The stream ended, or its client left before. A second call finds nothing to close."""
        source, self._source = self._source, None
        try:
            close(source)
        except BaseException as error:
            self._visit.fail(error)
            raise
        if self._visit.over:
            return
        if self._ended:
            self._visit.leave(self._reply)
        else:
            self._visit.cut(self._reply)

    def __del__(self) -> None:
        if not self._visit.over:  # another answer was sent instead, and this one was not closed
            self._visit.running.keep()


def close(source: Any) -> None:
    if hasattr(source, "close"):
        source.close()


def gather(parts: Iterator[bytes], room: int, headers: Iterable[Header]) -> tuple[list[bytes], bool]:
    """The first parts of a streamed answer, and whether they are all of it: then they fit into `room` bytes."""
    held: list[bytes] = []
    size, endless = 0, is_endless(headers)
    while size <= room and not endless:
        part = next(parts, None)
        if part is None:
            return held, True
        held.append(part)
        size += len(part)
    return held, False


class AsyncDoor:
    """Claims keys for requests under an async guard."""

    def __init__(self, guard: AsyncGuard) -> None:
        if not isinstance(guard, AsyncGuard):
            raise Misconfigured(f"an async application is guarded by AsyncGuard, not {type(guard).__name__}")
        self.guard, self._rules = guard, _Operations()

    def declare(self, rules: Any) -> None:
        """When the adapter is made: declare its operations, and open the store, so that a missing driver is found."""
        declare(self.guard, rules)
        _ = self.guard.store

    async def start(self) -> None:
        """At the start of an application: check the store once for each guard."""
        if self.guard not in _STARTED:
            await self.guard.check()
            _STARTED.add(self.guard)

    async def enter(self, endpoint: Endpoint, request: Request, key: str) -> Reply | AsyncVisit:
        who: Any = None if endpoint.principal is None else endpoint.principal(request)
        if type(who) is not str and hasattr(who, "__await__"):
            who = await who
        asked = endpoint.asked(request, key, who)
        if isinstance(asked, Reply):
            return asked
        key = asked.key
        try:
            guard = self.guard if endpoint.connection is None else self.guard.on(endpoint.connection(request))
            call = once_only(self._rules.call(guard, endpoint, asked), request)
            crowd = TASKS, ASYNC_WAITERS_MAX if endpoint.waiters_max is None else endpoint.waiters_max
            opened = await guard.begin(call, decides=True, crowd=crowd)
        except Exception as error:
            return answered(endpoint, key, error)
        if isinstance(opened, Answer):
            return endpoint.replay(opened.result, key)
        if not isinstance(opened, AsyncRunning):
            return answered(endpoint, key, opened.error)
        visit = AsyncVisit(endpoint, key, opened, self.guard)
        carried_by(request)[CLAIMED] = call, ref(visit)
        return visit


class AsyncVisit(_Visit):
    running: AsyncRunning

    async def leave(self, reply: Reply, size: int | None = None) -> Reply:
        if reply.body is not None:
            size = len(reply.body)
        if size is not None and falls_short(reply, size):
            await self.fail(broken := RuntimeError(SHORT))
            raise broken
        self.over = True
        error, kept = judged(self, reply)
        ended = await (
            self.running.succeed(kept, happened=reply.status < 400) if error is None else self.running.fail(error)
        )
        return settled(self, reply, error, ended)

    async def fail(self, error: BaseException, made: Reply | None = None) -> Reply | None:
        if self.over:
            return None
        self.over = True
        judged_as, kept = failure(self, error, made)
        ended = await (
            self.running.succeed(kept, happened=False) if judged_as is None else self.running.fail(judged_as)
        )
        return after_failure(self, error, made, judged_as, ended)

    async def cut(self, reply: Reply) -> None:
        if self.held.decision == "keep":
            await self.leave(reply)
        elif not self.over:
            self.over = True
            await self.running.cut(CUT)


class _Operations:
    """The checked operations of each endpoint: made once, looked up by every request."""

    def __init__(self) -> None:
        self._known: dict[tuple[Endpoint, str], Operation] = {}

    def call(self, guard: Any, endpoint: Endpoint, asked: Asked) -> Call:
        name, tenant, key, payload, written, attributes = asked
        which = (endpoint, name)
        operation = self._known.get(which)
        if operation is None:
            operation = checked(guard, endpoint, name)
            if len(self._known) < OPERATIONS_MAX:
                self._known[which] = operation
        call: Call = guard.new_call(operation, key, payload, tenant, attributes, written)
        return call


_STARTED: WeakSet[Any] = WeakSet()  # guards whose store was checked


def declare(guard: Any, rules: Any) -> None:
    """Put the operations of these rules into the guard's registry, before the first request.

    An adapter does not know its routes yet, so one entry covers all of them: `POST /*`. Rules that name their own
    operation are declared by that name. So are the rules that views got by `@rules`, read when the registry is read:
    views may be made after the adapter.
    """
    if isinstance(rules, Endpoint):
        for name in names_of(rules):
            checked(guard, rules, name)
    else:
        guard.enter(Declared("* /*", "http"))  # a function chooses the rules of each request
    guard.declare_later(lambda: [Declared(name, "http") for endpoint in list(OF_VIEWS) for name in names_of(endpoint)])


def names_of(endpoint: Endpoint) -> list[str]:
    if endpoint.operation is not None:
        return [endpoint.operation]
    return [f"{method} /*" for method in sorted(endpoint.methods)]


def checked(guard: Any, endpoint: Endpoint, name: str) -> Operation:
    policy = endpoint.policy or guard.policy
    if policy.redact is not None:
        policy = replace(policy, redact=partial(redacted, policy.redact))
    operation: Operation = guard.operation(
        name,
        ignore=endpoint.ignore,
        boundary=endpoint.boundary,
        policy=not_held_back(policy),
        aliases=tuple(alias for alias in endpoint.aliases if alias != name),
        apart=() if endpoint.key is None else None,  # what a rule takes as the key may be any part of the request
        by="http",
    )
    return operation


# -- decisions that sync and async share ---------------------------------------------------------------------------


def carried_by(request: Request) -> Any:
    """The mapping that every adapter of this request sees: an ASGI scope, or a WSGI environ (Django's META)."""
    native = request.native
    if hasattr(native, "META"):
        return native.META
    return native.environ if hasattr(native, "environ") else native


def once_only(call: Call, request: Request) -> Call:
    """Refuse a request that an outer adapter has claimed already: it would wait for itself, and then answer 409."""
    around, seen = carried_by(request).get(CLAIMED, (None, None))
    if around is None or around.key != call.key or around.store_name != call.store_name:
        return call
    visit = seen()
    if visit is not None and not visit.over:
        if not visit.held.reached_out:
            visit.held.release()  # no provider was reached, so the key is free again
        raise Misconfigured(
            f"{call.key.operation} is guarded twice, by two adapters around each other: remove one of them. "
            "@rules(None) above @guarded(...) makes Django's middleware leave that view alone"
        )
    return call


def patience(call: Call, request: Request) -> float | None:
    """How long a loser waits, if not as long as its policy says: a process without other threads serves no one else."""
    alone = carried_by(request).get("wsgi.multithread") is False
    return min(call.policy.patience_seconds, ALONE_SECONDS) if alone else None


def answered(endpoint: Endpoint, key: str, error: Any) -> Reply:
    """The answer to an error of the guard, or to the refusal in the record; any other error is raised again."""
    reply = endpoint.answer_to(error, key)
    if reply is None:
        raise error
    if isinstance(error, Refused) and REPLAYED not in reply.headers:
        reply.headers.append(REPLAYED)
    return reply


def judged(visit: Any, reply: Reply) -> tuple[Exception | None, Any]:
    """How this answer is settled: as an error, or as the result (where the error is None)."""
    endpoint = visit.endpoint
    kept = endpoint.packed(reply, visit.room)
    visit.stored = kept is not None
    error: Exception | None = endpoint.error_of(reply, kept, visit.held)
    if isinstance(error, Final):
        error.detail = refusal_kept(visit, kept)
    return error, BodyNotKept() if kept is None else kept


def redacted(redact: Callable[[Any], Any], result: Any) -> Any:
    """What `redact` makes of an answer, as it is kept. It is a function of a `Reply`, and gets what would be kept."""
    reply = redact(unpack(result))
    if not isinstance(reply, Reply):
        raise TypeError(f"redact= returned {type(reply).__name__}, not a Reply")
    return pack(reply, {name.lower() for name, _ in reply.headers})


def refusal_kept(visit: Any, kept: bytes | None) -> bytes | None:
    """What a closed key keeps of its answer: the core redacts results, and does not look into refusals."""
    redact = visit.policy.redact
    if kept is None or redact is None:
        return kept
    try:
        return cast(bytes, redacted(redact, kept))
    except Exception as error:
        _log.error("the answer of %s is not kept: redact= raised %s", visit.held, type(error).__name__)
        return None


def settled(visit: Any, reply: Reply, error: Exception | None, ended: Ended) -> Reply:
    """What goes out: the application's answer (settled as this error, if any), unless the record has another one."""
    if ended.error is not error:
        return answered(visit.endpoint, visit.key, ended.error)
    if ended.replayed:
        replay: Reply = visit.endpoint.replay(ended.result, visit.key)
        return replay
    stored = visit.stored and (ended.recorded or ended.error is not None)
    first: Reply = visit.endpoint.first(reply, visit.key, stored=stored)
    return first


def counts(visit: Any, error: Exception, status: int, *, answers: bool = False) -> bool:
    """Whether the exception decides about the record, and not the page of this status that was made of it.

    The exception decides if its type means something for the effect, whatever the page is. It also decides if the page
    is a 5xx, unless the exception is only a way to answer (`answers`: an HTTP exception).
    """
    return visit.held.meaning(error) != "unknown" or (status >= 500 and not answers)


def own_page(error: BaseException, made: Reply | None) -> Reply | None:
    """The page, if it is the answer to this exception: our problem replaces a plain 500 for Refused and NotDone."""
    return None if made is not None and made.status == 500 and isinstance(error, (Refused, NotDone)) else made


def failure(visit: Any, error: BaseException, made: Reply | None) -> tuple[BaseException | None, Any]:
    """How an exception is settled: as itself, as what the handler decided before it, or as an answer (None, kept)."""
    endpoint, held = visit.endpoint, visit.held
    if not isinstance(error, Exception):
        return error, None
    if held.decision == "release":
        return NotDone(f"released, then {type(error).__name__}"), None
    meaning, page = held.meaning(error), own_page(error, made)
    if meaning == "closes" and page is not None:
        kept = endpoint.packed(page, visit.room)
        visit.stored = kept is not None
        return Final(f"{type(error).__name__}, answered {page.status}", detail=refusal_kept(visit, kept)), None
    if endpoint.remember == "stripe_v1" and meaning == "unknown":
        kept = endpoint.packed(made or FAILURE, visit.room)
        visit.stored = kept is not None
        return None, BodyNotKept() if kept is None else kept
    return error, None


def after_failure(
    visit: Any, error: BaseException, made: Reply | None, judged_as: BaseException | None, ended: Ended
) -> Reply | None:
    endpoint, key, held = visit.endpoint, visit.key, visit.held
    if ended.error is not judged_as:
        return answered(endpoint, key, ended.error)
    page = own_page(error, made)
    reply: Reply | None = None
    if ended.replayed:  # the key changed hands while the application ran, and the other attempt's answer counts
        reply = endpoint.replay(ended.result, key)
    elif ended.error is None:  # the failure is the answer, from now on and so the first time too
        if made is None:
            _log.error("%s answered 500 from now on: its handler raised", held, exc_info=error)
        reply = endpoint.first(made or FAILURE, key, stored=visit.stored and ended.recorded)
    elif page is not None:
        reply = endpoint.first(page, key, stored=visit.stored)
    # Refused or NotDone of the effect itself is answered; one that left an inner guard, and any other error, goes on.
    elif isinstance(error, (Refused, NotDone)) and not held.raised(error).inner:
        reply = endpoint.answer_to(error, key)
    return reply
