"""Finding the servers of a store, connecting to them, and the self-check of each.

Sans-IO: the generators yield calls of a connection and are sent the outcome, so that they exist once for threads and
for tasks. A thread makes the call; a task awaits what the call returns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from samekey.core.drive import Steps
from samekey.core.errors import Misconfigured, SamekeyError, StoreUnavailable
from samekey.drivers.redis.connect import Place
from samekey.drivers.redis.errors import DriverError, is_silence, moved_to, store_error
from samekey.drivers.redis.self_check import Facts, facts_of, info_of
from samekey.drivers.redis.wire import Lost, packed
from samekey.stores.redis._knowledge import Knowledge
from samekey.stores.redis._requests import BUCKETS, MARKERS, SELF_CHECK, SLOTS

SILENT_SECONDS = 2.0  # how long a silent server of a cluster is avoided: keys of the others wait for each try


class Network(NamedTuple):
    """How a thread connects and pauses, or a task: then both return awaitables."""

    connect: Callable[[Place], Any]
    sleep: Callable[[float], Any]


class Closed(StoreUnavailable):
    """The store was closed: there is nothing to wait for."""


@dataclass(slots=True)
class Connection:
    """A connection to one server, and what its self-check found."""

    server: str
    wire: Any
    facts: Facts
    markers: list[bytes] = field(default_factory=lambda: [b""] * BUCKETS)
    takes_all: bool = False  # every request may be sent: the server keeps all claims, or the user accepts a loss


class Discovery:
    """The servers of one store, and the open connections to them. One thread or one event loop uses it at a time."""

    def __init__(self, known: Knowledge, network: Network) -> None:
        self._known, self._address, self.network = known, known.address, network
        self.closed = False  # no new connection is made
        self._owners: list[str] = []  # the server of each bucket, in a cluster
        self._owners_stale = True  # ask for them again; until then requests still go by the old ones
        self.connections: dict[str, Connection] = {}

    @property
    def owners(self) -> tuple[str, ...]:
        """The server of each bucket, as far as known; empty where there is one server."""
        return tuple(self._owners)

    def servers(self) -> list[str]:
        """Every server that has keys, by name."""
        return list(dict.fromkeys(self._owners or [""]))

    def drop(self, connection: Connection) -> None:
        if self.connections.get(connection.server) is connection:
            del self.connections[connection.server]
            self._owners_stale = True

    # -- connecting ------------------------------------------------------------------------------------------

    def connecting(self, server: str) -> Generator[Any, Any, Connection]:
        """A new connection, after its self-check."""
        place = yield from self._placing(server)
        if self._address.cluster and self._known.is_silent(place):
            raise StoreUnavailable(f"{self._address.name}: {server} did not answer a moment ago")
        wire = yield from self._connecting_to(place)
        try:
            connection = Connection(server, wire, (yield from self._asking_facts(wire)))
            yield from self._checking_markers(connection)
        except Lost as lost:
            raise StoreUnavailable(f"{self._address.name}: {lost}") from lost.cause
        except SamekeyError:
            yield wire.close
            raise
        self.connections[server] = connection
        return connection

    def checking_all(self) -> Steps:
        """Run the self-check of every server again, for `health()`; `Knowledge` has the facts then."""
        if self._address.cluster:
            yield from self._finding_owners()
            facts = self._known.facts  # also of servers that have no keys any more
            self._known.facts = {server: facts[server] for server in self.servers() if server in facts}
        for server in self.servers():
            connection = self.connections.get(server)
            if connection is None:
                yield from self.connecting(server)
                continue
            try:
                connection.facts = yield from self._asking_facts(connection.wire)
                yield from self._checking_markers(connection)
            except Lost as lost:
                self.drop(connection)
                raise StoreUnavailable(f"{self._address.name}: {lost}") from lost.cause

    def connecting_subscriber(self) -> Steps:
        """A connection for published messages. In a cluster every server gets all of them."""
        address = self._address
        places = self._reachable() if address.cluster else [(yield from self._placing(""))]
        trouble: Exception | None = None
        for place in sorted(places, key=self._known.is_silent):
            try:
                return (yield from self._connecting_to(place))
            except StoreUnavailable as error:
                trouble = error
        raise trouble or StoreUnavailable(f"{address.name} names no server")

    def _connecting_to(self, place: Place) -> Steps:
        if self.closed:
            raise Closed(f"{self._address.name} was closed")
        try:
            wire = yield partial(self.network.connect, place)
        except (DriverError, OSError) as error:
            if is_silence(error):
                self._known.silent[place.node] = time.monotonic() + SILENT_SECONDS
            raise store_error(self._address.name, error) from error
        return wire

    # -- the self-check --------------------------------------------------------------------------------------

    def _asking_facts(self, wire: Any) -> Generator[Any, Any, Facts]:
        address = self._address
        # A user that may not WAIT must learn it before a claim is written: that claim would block its key.
        waits = packed((b"WAIT", b"0", b"0")) if address.wait_replicas else b""
        questions = packed((b"INFO",)) + packed((b"CONFIG", b"GET", b"appendfsync")) + waits
        sent = yield partial(wire.send, questions, 3 if waits else 2)
        info, settings, *waited = yield partial(wire.receive, sent)
        for refused in (info, *waited):
            if isinstance(refused, Exception):
                raise store_error(address.name, refused) from refused
        # Empty for a user that may not read the configuration, and for a managed server that hides it.
        shown = {} if isinstance(settings, Exception) or not settings else {"appendfsync": settings[1].decode()}
        return facts_of(address.name, info_of(info), shown)

    def _checking_markers(self, connection: Connection) -> Steps:
        self._known.facts[connection.server] = connection.facts
        connection.takes_all = self._address.allow_volatile or not connection.facts.volatile
        if not self._address.cluster:
            groups: list[tuple[int, ...]] = [tuple(range(BUCKETS))]
        else:  # one script may touch one slot
            groups = [(bucket,) for bucket in range(BUCKETS) if self._owners[bucket] == connection.server]
            if not groups:  # a server without slots: nothing to send, and no reply to wait for
                return
        data = [
            packed(
                (
                    *(b"EVAL", SELF_CHECK.source, b"%d" % len(group)),
                    *(MARKERS[bucket] for bucket in group),
                    *self._check_arguments(connection, group),
                )
            )
            for group in groups
        ]
        sent = yield partial(connection.wire.send, b"".join(data), len(groups))
        for group, answer in zip(groups, (yield partial(connection.wire.receive, sent)), strict=True):
            if isinstance(answer, Exception):
                if moved_to(answer) is not None:
                    continue  # another server has the bucket by now; a request for it is redirected
                raise store_error(self._address.name, answer) from answer
            self._known.set_clock(int(answer[0]))
            for bucket, marker in zip(group, answer[1:], strict=True):
                self._learn(connection, bucket, marker)

    def _check_arguments(self, connection: Connection, buckets: Sequence[int]) -> list[bytes]:
        keeps_all = b"1" if connection.facts.keeps_all else b""
        return [connection.facts.run_id.encode(), keeps_all, *(self._known.born[bucket] for bucket in buckets)]

    def _learn(self, connection: Connection, bucket: int, marker: bytes) -> None:
        connection.markers[bucket] = marker
        self._known.learn(bucket, marker)

    # -- where the servers are -------------------------------------------------------------------------------

    def _placing(self, server: str) -> Generator[Any, Any, Place]:
        address = self._address
        if address.cluster:
            return self._named(server)
        if address.sentinel is None:
            return address.places[0]
        question = (b"SENTINEL", b"get-master-addr-by-name", address.sentinel.encode())
        host, port = yield from self._asking_any(address.places, question, self._master_of)
        return (address.master or address.places[0]).at(host.decode(), int(port))

    def _named(self, server: str) -> Place:
        host, _, port = server.rpartition(":")
        return self._address.places[0].at(host, int(port))

    def _master_of(self, _: Place, answer: Any) -> Any:
        if not answer:
            raise Misconfigured(f"the sentinels of {self._address.name} know no {self._address.sentinel!r}")
        return answer

    def _finding_owners(self) -> Steps:
        """Ask any server of the cluster which server has which bucket."""
        self._owners = yield from self._asking_any(self._reachable(), (b"CLUSTER", b"SLOTS"), self._owners_of)
        self._owners_stale = False

    def _reachable(self) -> list[Place]:
        """The servers of a cluster: those of its address, and those connected to since. The former may all be gone."""
        places = {place.node: place for place in self._address.places}
        for server in (*self.connections, *self._known.facts):
            if server not in places:
                places[server] = self._named(server)
        return list(places.values())

    def _owners_of(self, place: Place, answer: Any) -> list[str]:
        owners = [""] * BUCKETS
        for first, last, (host, port, *_), *_ in answer:
            # A server without a host does not know its own, or hides it: it is where the question was sent.
            server = f"{host.decode() if host else place.host}:{port}"
            for bucket, slot in enumerate(SLOTS):
                if first <= slot <= last:
                    owners[bucket] = server
        if "" in owners:
            raise StoreUnavailable(f"{self._address.name}: not every slot of the cluster has a master")
        return owners

    def _asking_any(
        self, places: Sequence[Place], question: Sequence[bytes], answer_of: Callable[[Place, Any], Any]
    ) -> Generator[Any, Any, Any]:
        """The answer of the first server that has one. A server that is new, or lost its configuration, has none."""
        trouble: SamekeyError | None = None
        for place in sorted(places, key=self._known.is_silent):
            try:
                wire = yield from self._connecting_to(place)
            except StoreUnavailable as error:
                trouble = error
                continue
            try:
                (answer,) = yield partial(wire.receive, (yield partial(wire.send, packed(question), 1)))
            except Lost as lost:
                trouble = StoreUnavailable(f"{self._address.name}: {lost}")
                continue
            yield wire.close
            try:
                if isinstance(answer, Exception):
                    raise store_error(self._address.name, answer)
                return answer_of(place, answer)
            except SamekeyError as error:
                if not isinstance(trouble, StoreUnavailable):  # a server that did not answer may know better
                    trouble = error
        raise trouble or StoreUnavailable(f"{self._address.name} names no server")
