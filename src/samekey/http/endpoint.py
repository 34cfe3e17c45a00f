"""What an endpoint promises over HTTP: requests in, answers out. Pure: no framework, no guard, no I/O.

    opening   is this request guarded, and under which key?             before the body is read
    asking    whose is it, which operation, what is its content?        after the body is complete, before the claim
    meaning   what does the application's answer mean for the key?      when the application is done
    answer    what goes out: the application's own, a replay, or a problem

An adapter only carries these between its framework and the guard (see `_visit.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from samekey.core.attributes import Pairs
from samekey.core.boundary import Atomic, Boundary
from samekey.core.errors import KeyMalformed, KeyMissing, Misconfigured, NotDone, Refused, ResultUnreadable
from samekey.core.fingerprint import declared_ignore
from samekey.core.key import as_text, make_key
from samekey.core.policy import Policy
from samekey.http import _problems as problems
from samekey.http._body import PATH, QUERY, VARIES, TooLarge, payload_of
from samekey.http._declared import (
    header_name,
    methods_of,
    operation_named,
    request_header,
    several,
    size_of,
    statuses,
    text_of,
)
from samekey.http._kept import pack, unpack
from samekey.http._key import parse_key
from samekey.http._labels import LabelRule, check_labels, labels_of
from samekey.http._message import Header, Reply, Request, new_tuple
from samekey.http._operation import SHOWN_BYTES, operation_name, short
from samekey.http._own_key import LATER, KeyRule, check_key_rule, own_key
from samekey.http._remember import PRESETS, Remember, meaning_of

METHODS = ("POST", "PATCH")  # the others are idempotent by themselves
BODY_MAX_BYTES = 1 << 20  # of a request: it is held in memory until it is complete
SETTLE_PATIENCE_SECONDS = 2.0  # for a finished answer: a server kills a worker that is silent for 30 s
WAITERS_MAX = 3  # threads of a process: of four, waitress' default, one is left for other requests
ASYNC_WAITERS_MAX = 1000  # tasks of a process: a few KB each
ALONE_SECONDS = 1.0  # a loser's wait where its process serves one request at a time, and none meanwhile

KEPT_HEADERS = frozenset({
    b"content-type", b"content-language", b"content-disposition", b"content-encoding", b"content-location",
    b"content-range", b"etag", b"last-modified", b"link", b"location", b"vary",
})  # fmt: skip
NEVER_KEPT = frozenset({
    b"authentication-info", b"connection", b"content-length", b"date", b"keep-alive", b"proxy-authenticate",
    b"proxy-connection", b"set-cookie", b"set-cookie2", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    b"www-authenticate",
})  # fmt: skip

REPLAYED: Header = (b"idempotent-replayed", b"true")
NOT_STORED: Header = (b"idempotency-stored", b"false")  # a retry will not get this answer again


class Asked(NamedTuple):
    """One guarded request, as the guard takes it."""

    operation: str
    tenant: str | None
    key: str
    payload: Any
    written: bytes  # the payload in canonical form
    attributes: Pairs | None = None


class NotHeld(Exception):
    """An answer that is not kept, as an error for the core: whether the effect happened is unknown."""


class Final(Refused):
    """An answer that closes its key; `detail` is the answer as it is kept, or None if it was too long."""


class BodyNotKept:
    """In place of an answer that was too long to keep."""


PrincipalRule = Callable[[Request], Any]
Settle = Literal["return", "before-send"]


class Endpoint:
    """The rules of one endpoint, or of all of them; checked here, once.

    A request is guarded by the key in its header; with `key=` every request is, by CONTENT or by what a function makes
    of it.

    `boundary` is required. So is the owner of a key: `principal` returns the authenticated caller's name (with None the
    request is refused), or `single_tenant=True` declares that there is only one caller.
    """

    def __init__(
        self,
        *,
        boundary: Boundary,
        principal: PrincipalRule | None = None,
        single_tenant: bool = False,
        remember: Remember = "success_only",
        final: Collection[int] = (),
        required: bool = False,
        key: KeyRule | None = None,
        methods: Collection[str] = METHODS,
        operation: str | None = None,
        aliases: Collection[str] = (),
        ignore: Collection[str] = (),
        vary_on: Collection[str] = (),
        keep_headers: Collection[str] = (),
        header: str = "Idempotency-Key",
        strict: bool = False,
        body_max_bytes: int = BODY_MAX_BYTES,
        waiters_max: int | None = None,
        settle: Settle = "return",
        connection: Callable[[Request], Any] | None = None,
        attributes: LabelRule | None = None,
        policy: Policy | None = None,
        problems_at: str = problems.TYPES_AT,
    ) -> None:
        if not isinstance(boundary, Boundary):
            raise Misconfigured(f"boundary= takes Atomic, Keyed, Asks, Repeatable or Opaque, not {boundary!r}")
        if (principal is None) == (not single_tenant):
            raise Misconfigured(
                "whose key is it? Give principal= (a function of the request) or single_tenant=True, one of them: "
                "without either, one caller would get the answer to another caller's key"
            )
        if principal is not None and not callable(principal):
            raise Misconfigured("principal= takes a function of the request")
        if remember not in PRESETS:
            v2 = " (for Stripe's v2 declare boundary=Keyed())" if str(remember) == "stripe_v2" else ""
            raise Misconfigured(f"remember= is one of {', '.join(PRESETS)}, not {remember!r}{v2}")
        if isinstance(boundary, Atomic) != (connection is not None):
            raise Misconfigured("Atomic and connection= go together: connection(request) returns the transaction's own")
        if connection is not None and not callable(connection):
            raise Misconfigured("connection= takes a function of the request")
        if not isinstance(policy, Policy | None):
            raise Misconfigured(f"policy= takes a Policy, not {type(policy).__name__}")
        if settle not in ("return", "before-send"):
            raise Misconfigured(f"settle= is 'return' or 'before-send', not {settle!r}")
        kept = frozenset(header_name(name, "keep_headers") for name in several(keep_headers, "keep_headers"))
        if kept & NEVER_KEPT:
            raise Misconfigured(f"{', '.join(sorted(map(bytes.decode, kept & NEVER_KEPT)))} must never be replayed")
        self.boundary, self.policy, self.ignore = boundary, policy, declared_ignore(ignore)
        self.principal, self.connection, self.attributes = principal, connection, check_labels(attributes)
        self.remember, self.final = remember, statuses(final)
        self.required, self.strict = required, strict
        self.key = check_key_rule(key, about_header=required or strict)
        self.methods = methods_of(methods)
        self.operation = None if operation is None else operation_named(operation, "operation")
        self.aliases = tuple(operation_named(name, "aliases") for name in several(aliases, "aliases"))
        self.header = header
        self.body_max_bytes, self.settle = size_of(body_max_bytes, "body_max_bytes"), settle
        self.waiters_max = None if waiters_max is None else size_of(waiters_max, "waiters_max", "requests")
        self.problems_at = text_of(problems_at, "problems_at")
        self._header = request_header(header, "header")
        self._vary_on = tuple(sorted({request_header(name, "vary_on") for name in several(vary_on, "vary_on")}))
        self._kept = (KEPT_HEADERS | kept) - {self._header}

    # -- opening: before the body is read --------------------------------------------------------------------------

    def opening(self, request: Request) -> str | Reply | None:
        """The key, the problem with it, or None if the request is not guarded."""
        if request.method not in self.methods:
            return None
        if self.key is not None:
            return LATER
        named, name = request.named, self._header
        value = named.get(name)
        if value is None:
            if self.required:
                return self.problem(problems.KEY_MISSING, f"This endpoint needs an {self.header} header.")
            return None
        try:
            if len(named) < len(request.headers) and len(request.values(name)) > 1:
                raise KeyMalformed(f"there is more than one {self.header} header")
            return parse_key(value, name, self.strict)
        except KeyMalformed as malformed:
            return self.problem(problems.KEY_MALFORMED, malformed.message)

    def too_large(self, key: str) -> Reply:
        return self.problem(
            problems.BODY_TOO_LARGE, f"At most {self.body_max_bytes} bytes are taken with a key.", key=key
        )

    def incomplete(self, key: str) -> Reply:
        return self.problem(problems.BODY_INCOMPLETE, "Nothing was done. Send it again with the same key.", key=key)

    def endless(self, key: str) -> Reply:
        """A body in chunks whose end the server does not mark: it cannot be compared."""
        return self.problem(
            problems.BODY_INCOMPLETE, "Nothing was done. Send it with a Content-Length, not in chunks.", key=key
        )

    # -- asking: before the claim ----------------------------------------------------------------------------------

    def asked(self, request: Request, key: str, who: Any) -> Asked | Reply:
        """The request as the guard takes it; `who` is what `principal` returned."""
        tenant = None
        if self.principal is not None:
            tenant = tenant_of(who)
            if tenant is None:
                return self.problem(problems.NO_PRINCIPAL, "A key belongs to a caller. Authenticate first.", key=key)
        name = operation_name(request.method, request.host + request.path if request.host else request.path)
        # The path is compared even where it is the operation's name: a record may be found by an alias or a template.
        beside: dict[int, Any] = {PATH: name}
        if request.query:
            beside[QUERY] = request.query.decode("latin-1")
        if self._vary_on:
            beside[VARIES] = [[value.decode("latin-1") for value in request.values(name)] for name in self._vary_on]
        named = request.named
        kind, encoding = named.get(b"content-type", b""), named.get(b"content-encoding")
        if len(named) < len(request.headers):  # of several content types each framework picks another: none counts
            kind = b", ".join(request.values(b"content-type"))
            encoding = b", ".join(request.values(b"content-encoding"))
        try:
            payload, written = payload_of(request.body, kind, encoding, beside, self.body_max_bytes)
        except TooLarge:
            return self.too_large(key)
        if self.operation is not None:
            name = self.operation
        elif request.route is not request.path:
            name = operation_name(request.method, request.route)
        if self.key is not None:
            try:
                key = own_key(self.key, request, name, payload, self.ignore)
            except KeyMissing as missing:
                return self.problem(problems.KEY_MISSING, f"A retry of this request cannot be recognised: {missing}.")
            except KeyMalformed as malformed:
                return self.problem(problems.KEY_MALFORMED, malformed.message)
        return new_tuple(Asked, (name, tenant, key, payload, written, labels_of(request, self.attributes)))

    # -- meaning: when the application is done ---------------------------------------------------------------------

    def packed(self, reply: Reply, room: int) -> bytes | None:
        """What the record keeps of an answer; None if it is longer than `room` bytes."""
        if reply.body is None:
            return None
        kept = pack(reply, self._kept)
        return kept if len(kept) <= room else None

    def error_of(self, reply: Reply, kept: bytes | None, held: Any) -> Exception | None:
        """The error as which an answer under this hold is settled; None if it completes the key."""
        match meaning_of(reply.status, self.remember, self.final, held):
            case "keep":
                return None
            case "close":
                return Final(f"answered {reply.status}", detail=kept)
            case "release":
                return NotDone(f"answered {reply.status}")
            case "unknown":
                return NotHeld(f"answered {reply.status}")

    # -- answers ---------------------------------------------------------------------------------------------------

    def first(self, reply: Reply, key: str, *, stored: bool = True) -> Reply:
        """The application's own answer."""
        status, headers, body = reply
        ours, sent = self._header, list(headers)
        for one in headers:
            if one[0].lower() == ours and self.key is None:  # the application answers with the header itself
                sent.remove(one)
        sent.extend(self._key_sent(key))
        if not stored:
            sent.append(NOT_STORED)
        return new_tuple(Reply, (status, sent, body))

    def replay(self, result: Any, key: str) -> Reply:
        """The answer a record keeps, marked as a replay."""
        try:
            reply = unpack(result)
        except (ValueError, TypeError):  # damaged, or a lookup's result that cannot be written as JSON
            return self.problem(
                problems.NOT_KEPT, "It is done and is not done again, but the kept answer cannot be read.", key=key
            )
        reply.headers.extend(self._key_sent(key))
        reply.headers.append(REPLAYED)
        return reply

    def answer_to(self, error: Exception, key: str | None = None) -> Reply | None:
        """The answer to an error of ours, or to Refused and NotDone; None if the application must answer it."""
        if isinstance(error, Final):
            if error.detail is not None:
                return self.replay(error.detail, key or "")
            error = ResultUnreadable("the kept refusal was too large", key=key)
        found = problems.problem_of(error)
        if found is None:
            return None
        problem, detail, members, seconds = found
        return self.problem(problem, detail, key=key, members=members, seconds=seconds)

    def _key_sent(self, key: str) -> list[Header]:
        """The key that the client sent, as it was understood. A key of our own is not the client's to send."""
        return [(self._header, key_header(key))] if self.key is None else []

    def problem(
        self,
        problem: problems.Problem,
        detail: str,
        *,
        key: str | None = None,
        members: dict[str, Any] | None = None,
        seconds: float = 1,
    ) -> Reply:
        headers = [(b"content-type", b"application/problem+json"), (b"cache-control", b"no-store")]
        if problem.retry:
            headers.append((b"retry-after", problems.retry_after(seconds).encode()))
        if key is not None:
            headers.extend(self._key_sent(key))
        return Reply(problem.status, headers, problems.problem_body(problem, detail, members or {}, self.problems_at))


def not_held_back(policy: Any) -> Any:
    """The policy over HTTP: unless it says otherwise, a finished answer waits only so long for its record."""
    if not isinstance(policy, Policy) or policy.settle_patience is not None:
        return policy  # what is no policy is refused with the operation
    return replace(policy, settle_patience=SETTLE_PATIENCE_SECONDS)


def tenant_of(who: Any) -> str | None:
    """The caller's name as the key has it; None if there is no caller for whom a key could be kept."""
    if type(who) is str and who and len(who) <= SHOWN_BYTES and who.isascii() and who.isprintable():
        return who
    if who is None or who is False:
        return None
    try:
        tenant = as_text(who)
    except (KeyMalformed, KeyMissing) as error:
        if isinstance(error, KeyMissing) and not (isinstance(who, (tuple, list)) and None in who):
            return None  # no parts, or an empty one
        if isinstance(who, Coroutine):
            who.close()
        # A mistake in principal=, not an unknown caller: it would fail for every caller.
        raise Misconfigured(
            "principal= gives the caller's name (a str, an int, a UUID, or a tuple of them) or None, "
            f"not {shown_type(who)}"
        ) from error
    try:
        if tenant.isprintable():
            return short(tenant) if tenant else None
        return make_key("principal", "checked", short(tenant)).tenant  # joiners and no-break spaces are fine, too
    except (UnicodeEncodeError, KeyMalformed, KeyMissing):
        return None


def shown_type(who: Any) -> str:
    if isinstance(who, (tuple, list)):
        return f"{type(who).__name__} of {', '.join(type(part).__name__ for part in who)}"
    return type(who).__name__


def key_header(key: str) -> bytes:
    if "\\" in key or '"' in key:
        key = key.replace("\\", "\\\\").replace('"', '\\"')
    return b'"%b"' % key.encode("ascii")
