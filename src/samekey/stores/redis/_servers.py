"""Requests and replies, to and from the servers of one store; many requests travel in one pipeline.

Sans-IO, as `_discovery`. A reply may be an exception object instead of a list: the connection was lost, the server
cannot be reached, another server has the key, or the server refused the request.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

from samekey.core.drive import Steps
from samekey.core.errors import Misconfigured, SamekeyError, StoreUnavailable
from samekey.drivers.redis.errors import Refusal, is_demoted, moved_to
from samekey.drivers.redis.wire import Lost, packed
from samekey.stores.redis._discovery import Connection, Discovery, Network
from samekey.stores.redis._knowledge import Knowledge
from samekey.stores.redis._requests import OPEN, SELF_CHECK, WRITE, Request

WAIT_MILLISECONDS = 1000  # how long a write may take to reach its replicas before it counts as not replicated
_ASKING = packed((b"ASKING",))


class Unreachable(Exception):
    """Nothing was sent; `error` has the reason."""

    def __init__(self, error: SamekeyError) -> None:
        super().__init__(str(error))
        self.error = error


class Redirected(Exception):
    """Another server has the key: send the request again, and it goes there."""


class Servers(Discovery):
    """Sends requests to the servers that have their buckets."""

    def __init__(self, known: Knowledge, network: Network) -> None:
        super().__init__(known, network)
        self._simple = not (known.address.cluster or known.address.wait_replicas)

    def exchanging(self, requests: Sequence[Request]) -> Generator[Any, Any, list[Any]]:
        """A reply for each request: a list, or an exception object.

        Exceptions are Lost, Unreachable, Redirected, the server's refusal, or an error of samekey.
        """
        replies: list[Any] = [None] * len(requests)
        parts = yield from self._by_server(requests, replies)
        sent: list[tuple[Connection, list[int], int, Any]] = []
        for server, part in parts.items():
            try:
                connection = self.connections.get(server) or (yield from self.connecting(server))
            except SamekeyError as error:
                self._owners_stale = True  # a cluster may have elected another master meanwhile
                for at in part:
                    replies[at] = Unreachable(error)
                continue
            part = self._allowed(connection, requests, part, replies)
            if not part:
                continue
            commands = self._pipeline(connection, requests, part)
            try:
                ticket = yield partial(connection.wire.send, b"".join(commands), len(commands))
            except Lost as lost:
                self.drop(connection)
                for at in part:
                    replies[at] = lost
                continue
            sent.append((connection, part, len(commands), ticket))
        for connection, part, count, ticket in sent:
            try:
                answers = yield partial(connection.wire.receive, ticket)
            except Lost as lost:
                self.drop(connection)
                answers = [*lost.answers, *[lost] * (count - len(lost.answers))]
            yield from self._receiving(connection, requests, part, replies, answers)
        return replies

    def _receiving(
        self, connection: Connection, requests: Sequence[Request], part: list[int], replies: list[Any], answers: Any
    ) -> Steps:
        waits = self._waits(requests, part)
        replicated = not waits or (isinstance(answers[-1], int) and answers[-1] >= waits)
        hang_up = False
        arriving = iter(answers)
        for at in part:
            request, answer = requests[at], next(arriving)
            if answer.__class__ is list and replicated and request.script is not SELF_CHECK and not request.asking:
                replies[at] = answer  # nearly always
                continue
            if request.asking:
                request.asking, answer = "", next(arriving)
            if isinstance(answer, Refusal):
                answer = self._redirected(connection, request, answer)
                hang_up = hang_up or is_demoted(answer)
            elif request.script is SELF_CHECK and isinstance(answer, list):
                self._learn(connection, request.bucket, answer[1])
            elif not replicated and isinstance(answer, list) and _wrote(request, answer):
                answer = StoreUnavailable(
                    f"{self._address.name} wrote it, but not on {waits} replica(s) within {WAIT_MILLISECONDS} ms"
                )
            replies[at] = answer
        if hang_up:  # not a master any more: the next connection finds the new one
            self.drop(connection)
            yield connection.wire.close

    def _by_server(self, requests: Sequence[Request], replies: list[Any]) -> Generator[Any, Any, dict[str, list[int]]]:
        if not self._address.cluster:
            return {"": list(range(len(requests)))}
        if self._owners_stale:
            try:
                yield from self._finding_owners()
            except SamekeyError as error:
                replies[:] = [Unreachable(error)] * len(requests)
                return {}
        parts: dict[str, list[int]] = {}
        for at, request in enumerate(requests):
            server = request.asking or request.server or self._owners[request.bucket]
            parts.setdefault(server, []).append(at)
        return parts

    def _allowed(
        self, connection: Connection, requests: Sequence[Request], part: list[int], replies: list[Any]
    ) -> list[int]:
        """The requests that may be sent. A server that forgets gets no claim whose effect could then run twice."""
        if connection.takes_all:
            return part
        for at in part:
            if requests[at].risky:
                replies[at] = Misconfigured(
                    f"{self._address.name} cannot keep this claim: {connection.facts.volatile}. Only effects that may "
                    "run again (Keyed, Repeatable, Atomic) are safe on it. allow_volatile=1 in the address accepts "
                    "that an effect may happen twice"
                )
        return [at for at in part if replies[at] is None]

    def simple_connection(self) -> Connection | None:
        """The open connection to the only server, if requests need no special treatment there."""
        connection = self.connections.get("")
        return connection if self._simple and connection is not None and connection.takes_all else None

    def packed(self, connection: Connection, request: Request) -> bytes:
        script, keys, arguments = request.script, request.keys, request.arguments
        if script is None:
            return packed(arguments)
        if script is OPEN:
            arguments = (connection.markers[request.bucket], *arguments)
        elif script is SELF_CHECK:
            arguments = self._check_arguments(connection, (request.bucket,))
        if request.whole:
            return packed((b"EVAL", script.source, b"%d" % len(keys), *keys, *arguments))
        return script.call(keys, arguments)

    def _pipeline(self, connection: Connection, requests: Sequence[Request], part: list[int]) -> list[bytes]:
        """The commands to send; the server replies to each of them."""
        out = []
        for at in part:
            if requests[at].asking:
                out.append(_ASKING)
            out.append(self.packed(connection, requests[at]))
        waits = self._waits(requests, part)
        if waits:
            out.append(packed((b"WAIT", b"%d" % waits, b"%d" % WAIT_MILLISECONDS)))
        return out

    def _waits(self, requests: Sequence[Request], part: list[int]) -> int:
        """How many replicas must have what these requests write."""
        waits = self._address.wait_replicas
        return waits if waits and any(requests[at].script in (OPEN, WRITE) for at in part) else 0

    def _redirected(self, connection: Connection, request: Request, refusal: Exception) -> Exception:
        moved = moved_to(refusal)
        if moved is None:
            return refusal
        permanently, host, port = moved
        server = f"{host or connection.server.rpartition(':')[0]}:{port}"
        if not permanently:
            request.asking = request.guest = server
        elif self._owners:
            self._owners[request.bucket] = server
        return Redirected(server)


def _wrote(request: Request, answer: list[Any]) -> bool:
    return (request.script is OPEN and len(answer) == 1) or (request.script is WRITE and len(answer) == 3)
