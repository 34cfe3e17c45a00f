"""Links to the servers of one store: who has which key, what is said when we meet, and many requests at once.

Sans-IO: the generators here yield what is to be done with a connection (`Dial`, `Send`, `Receive`, `Hang`) and
are sent the outcome, so that they exist once for threads and for tasks.

Theory. Keys are spread over 256 buckets, by the first byte of their digest; all that belongs to a bucket carries
its hash tag, so that one script may touch it in a cluster. Each bucket has a marker that says since when it
exists, on which server it lives, and when it last may have lost something. We learn the markers when we connect,
and a claim carries the one we know: a store that was wiped or failed over under our hands refuses the claim, and
we meet it anew before we go on. So nothing is ever claimed in a store whose history we do not know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from importlib import resources
from typing import Any, NamedTuple

from samekey.core.errors import Misconfigured, SamekeyError, StoreUnavailable
from samekey.drivers.redis import connect as driver
from samekey.drivers.redis.self_check import Facts, facts_of, info_of

BUCKETS = 256
TAGS = [b"samekey:{%02x}:" % number for number in range(BUCKETS)]
MARKERS = [tag + b"marker" for tag in TAGS]
UNSETTLED = [tag + b"unsettled" for tag in TAGS]
AUDITS = [tag + b"audit" for tag in TAGS]
_SLOTS = [driver.slot_of(tag) for tag in TAGS]

SILENT_SECONDS = 2.0  # how long a server of a cluster that let nobody in is left alone: the others' keys need the lane
WAIT_MILLISECONDS = 1000  # how long a write may take to reach its replicas before it counts as not there


class Script:
    """A script, called by its digest; sent whole to a server that does not know it (flushed, restarted, promoted)."""

    def __init__(self, name: str) -> None:
        path = resources.files("samekey.stores.redis") / "lua" / f"{name}.lua"
        self.source = path.read_bytes()
        self.digest = sha1(self.source).hexdigest().encode()  # noqa: S324 - Redis' own name for a script
        self._shapes: dict[tuple[int, int], bytes] = {}

    def call(self, keys: Sequence[bytes], words: Sequence[bytes]) -> bytes:
        """The command that runs it, as it travels."""
        shape = self._shapes.get((len(keys), len(words)))
        if shape is None:
            shape = self._shapes[len(keys), len(words)] = driver.shape(
                (b"EVALSHA", self.digest, b"%d" % len(keys)), len(keys) + len(words)
            )
        if len(keys) == 3 and len(words) == 3:  # a claim
            (one, two, three), (four, five, six) = keys, words
            lengths = (len(one), one, len(two), two, len(three), three)
            return shape % (*lengths, len(four), four, len(five), five, len(six), six)
        if len(keys) == 2 and len(words) == 2:  # a settle
            (one, two), (three, four) = keys, words
            return shape % (len(one), one, len(two), two, len(three), three, len(four), four)
        return shape % tuple([part for word in (*keys, *words) for part in (len(word), word)])


OPEN, WRITE, READ, GREET = Script("open"), Script("write"), Script("read"), Script("greet")


class Request:
    """One command for the server that has this bucket (or, without one, for a server by name)."""

    asking = ""  # the server that has the key just now, while its bucket moves there
    whole = False  # the server does not know the script by its digest
    lost = False  # a reply to it was lost: it may have been carried out already
    tried = False  # the server asked us to come again
    redirects = 0
    guest = ""  # the server that it was last sent to as `asking`: one that is being given the bucket

    def __init__(
        self,
        bucket: int,
        script: Script | None,
        keys: Sequence[bytes],
        words: Sequence[bytes],
        risky: bool = False,
        *,
        server: str = "",
    ) -> None:
        self.bucket, self.script, self.keys, self.words = bucket, script, keys, words
        self.risky = risky  # an effect that may run twice if this server forgets
        self.server = server


class Memory:
    """What this process knows of its store: shared by all connections of all threads and loops."""

    def __init__(self, address: driver.Address, born: Sequence[bytes] = ()) -> None:
        self.address = address
        self.born: list[bytes] = [*born] or [b""] * BUCKETS  # when each marker was made, as we first saw it
        self.lost: list[int] = [0] * BUCKETS  # when each bucket may have lost something, in microseconds
        self.facts: dict[str, Facts] = {}  # by server
        self.silent: dict[str, float] = {}  # servers that took a call and said nothing: until when they are left alone
        self.told_in = b"@%d" % address.database  # a server's messages know no databases: their channels name them
        self._ahead = time.time() - time.monotonic()

    def channel(self, digest: bytes) -> bytes:
        """Where those are told who wait for this key."""
        return TAGS[digest[0]] + digest.hex().encode() + self.told_in

    def met(self, bucket: int, marker: bytes) -> None:
        born, _, lost = marker.split(b" ")
        self.born[bucket], self.lost[bucket] = born, int(lost)

    def heard(self, now: int) -> None:
        """The server's clock, as just told."""
        self._ahead = now / 1e6 - time.monotonic()

    def now(self) -> int:
        """About what the server's clock says: a guess that every script checks before it counts."""
        return round((time.monotonic() + self._ahead) * 1e6)

    def is_silent(self, place: driver.Place) -> bool:
        return time.monotonic() < self.silent.get(place.node, 0.0)

    @property
    def incarnation(self) -> str:
        runs = "+".join(sorted({one.run_id[:12] for one in self.facts.values()}))
        return f"{runs}/{self.born[0].decode()}"


@dataclass(slots=True)
class Link:
    """A connection to one server, and what we learned when we met."""

    server: str
    wire: Any
    facts: Facts
    markers: list[bytes] = field(default_factory=lambda: [b""] * BUCKETS)
    takes_all: bool = False  # any request may be sent here: this server forgets nothing, or may


class Unreachable(Exception):
    """Nothing was sent; `error` says why."""

    def __init__(self, error: SamekeyError) -> None:
        super().__init__(str(error))
        self.error = error


class Redirected(Exception):
    """Another server has the key: ask again, and it is asked there."""


# -- what is to be done with a connection --------------------------------------------------------------------


class Dial(NamedTuple):
    place: driver.Place


class Send(NamedTuple):
    wire: Any
    data: bytes
    replies: int


class Receive(NamedTuple):
    wire: Any
    sent: Any  # what sending it returned


class Hang(NamedTuple):
    wire: Any


Wiring = Generator[Dial | Send | Receive | Hang, Any, Any]


class Links:
    """The connections of one thread-safe lane or one event loop."""

    def __init__(self, memory: Memory) -> None:
        self._memory, self._address = memory, memory.address
        self._simple = not (memory.address.cluster or memory.address.wait_replicas)
        self._owners: list[str] = []  # of each bucket, in a cluster
        self._doubtful = True  # whether they are to be asked for again: kept meanwhile, for whoever still goes by them
        self.links: dict[str, Link] = {}

    def exchanging(self, requests: Sequence[Request]) -> Generator[Any, Any, list[Any]]:
        """A reply for each request: an answer, or what became of it instead.

        That is a Lost, Unreachable or Redirected, a refusal of the server, or an error of ours.
        """
        replies: list[Any] = [None] * len(requests)
        parts = yield from self._parted(requests, replies)
        sent: list[tuple[Link, list[int], Any]] = []
        for server, part in parts.items():
            try:
                link = self.links.get(server) or (yield from self._meeting(server))
            except SamekeyError as error:
                self._doubtful = True  # a cluster may have chosen another master meanwhile
                for at in part:
                    replies[at] = Unreachable(error)
                continue
            part = self._allowed(link, requests, part, replies)
            if not part:
                continue
            try:
                slip = yield Send(link.wire, self._packed(link, requests, part), self._count(requests, part))
            except driver.Lost as lost:
                self.drop(link)
                for at in part:
                    replies[at] = lost
                continue
            sent.append((link, part, slip))
        for link, part, slip in sent:
            yield from self._answered(link, requests, part, replies, slip)
        return replies

    def _answered(
        self, link: Link, requests: Sequence[Request], part: list[int], replies: list[Any], slip: Any
    ) -> Wiring:
        waits, count = self._waits(requests, part), self._count(requests, part)
        try:
            answers = yield Receive(link.wire, slip)
        except driver.Lost as lost:
            self.drop(link)
            answers = [*lost.answers, *[lost] * (count - len(lost.answers))]
        replicated = not waits or (isinstance(answers[-1], int) and answers[-1] >= waits)
        hang = False
        arriving = iter(answers)
        for at in part:
            request, answer = requests[at], next(arriving)
            if answer.__class__ is list and replicated and request.script is not GREET and not request.asking:
                replies[at] = answer  # nearly always
                continue
            if request.asking:
                request.asking, answer = "", next(arriving)
            if isinstance(answer, driver.Refusal):
                answer = self._redirected(link, request, answer)
                hang = hang or driver.is_demoted(answer)
            elif request.script is GREET and isinstance(answer, list):
                self._met(link, request.bucket, answer[1])
            elif not replicated and isinstance(answer, list) and _wrote(request, answer):
                answer = StoreUnavailable(
                    f"{self._address.name} wrote it, but not on {waits} replica(s) within {WAIT_MILLISECONDS} ms"
                )
            replies[at] = answer
        if hang:  # no master any more: the next connection finds the new one
            self.drop(link)
            yield Hang(link.wire)

    def _parted(self, requests: Sequence[Request], replies: list[Any]) -> Generator[Any, Any, dict[str, list[int]]]:
        if not self._address.cluster:
            return {"": list(range(len(requests)))}
        if self._doubtful:
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

    def _allowed(self, link: Link, requests: Sequence[Request], part: list[int], replies: list[Any]) -> list[int]:
        """The requests that this server may be asked; one that forgets must not hold what would then run twice."""
        if link.takes_all:
            return part
        for at in part:
            if requests[at].risky:
                replies[at] = Misconfigured(
                    f"{self._address.name} cannot keep this claim: {link.facts.volatile}. Only effects that may run "
                    "again (Keyed, Repeatable, Atomic) are safe on it; or say allow_volatile=1 and accept that "
                    "an effect may happen twice"
                )
        return [at for at in part if replies[at] is None]

    def plain(self) -> Link | None:
        """The one connection, where nothing about it is special."""
        link = self.links.get("")
        return link if self._simple and link is not None and link.takes_all else None

    def packed(self, link: Link, request: Request) -> bytes:
        script, keys, words = request.script, request.keys, request.words
        if script is None:
            return driver.packed(words)
        if script is OPEN:
            words = (link.markers[request.bucket], *words)
        elif script is GREET:
            words = self._introduction(link, (request.bucket,))
        if request.whole:
            return driver.packed((b"EVAL", script.source, b"%d" % len(keys), *keys, *words))
        return script.call(keys, words)

    def _packed(self, link: Link, requests: Sequence[Request], part: list[int]) -> bytes:
        out = []
        for at in part:
            if requests[at].asking:
                out.append(_ASKING)
            out.append(self.packed(link, requests[at]))
        waits = self._waits(requests, part)
        if waits:
            out.append(driver.packed((b"WAIT", b"%d" % waits, b"%d" % WAIT_MILLISECONDS)))
        return b"".join(out)

    def _count(self, requests: Sequence[Request], part: list[int]) -> int:
        """How many replies there will be."""
        return len(part) + sum(1 for at in part if requests[at].asking) + bool(self._waits(requests, part))

    def _waits(self, requests: Sequence[Request], part: list[int]) -> int:
        """How many replicas must have what these write."""
        waits = self._address.wait_replicas
        return waits if waits and any(requests[at].script in (OPEN, WRITE) for at in part) else 0

    def _redirected(self, link: Link, request: Request, refusal: Exception) -> Exception:
        moved = driver.moved_to(refusal)
        if moved is None:
            return refusal
        for_good, host, port = moved
        server = f"{host or link.server.rpartition(':')[0]}:{port}"
        if not for_good:
            request.asking = request.guest = server
        elif self._owners:
            self._owners[request.bucket] = server
        return Redirected(server)

    def drop(self, link: Link) -> None:
        if self.links.get(link.server) is link:
            del self.links[link.server]
            self._doubtful = True

    # -- meeting ---------------------------------------------------------------------------------------------

    def _meeting(self, server: str) -> Generator[Any, Any, Link]:
        """A new connection, and what its server says about itself."""
        place = yield from self._placing(server)
        if self._address.cluster and self._memory.is_silent(place):
            raise StoreUnavailable(f"{self._address.name}: {server} did not answer a moment ago")
        wire = yield from self._dialling(place)
        try:
            link = Link(server, wire, (yield from self._asking_facts(wire)))
            yield from self._greeting(link)
        except driver.Lost as lost:
            raise StoreUnavailable(f"{self._address.name}: {lost}") from lost.cause
        except SamekeyError:
            yield Hang(wire)
            raise
        self.links[server] = link
        return link

    def looking(self) -> Wiring:
        """Ask every server again who it is; the facts are in memory then."""
        if self._address.cluster:
            yield from self._finding_owners()
            known = self._memory.facts  # of others too that have none of our keys any more
            self._memory.facts = {server: known[server] for server in self.servers() if server in known}
        for server in self.servers():
            link = self.links.get(server)
            if link is None:
                yield from self._meeting(server)
                continue
            try:
                link.facts = yield from self._asking_facts(link.wire)
                yield from self._greeting(link)
            except driver.Lost as lost:
                self.drop(link)
                raise StoreUnavailable(f"{self._address.name}: {lost}") from lost.cause

    def listening(self) -> Wiring:
        """A connection that hears what is told; in a cluster every server hears everything."""
        address = self._address
        places = self._known() if address.cluster else [(yield from self._placing(""))]
        trouble: Exception | None = None
        for place in sorted(places, key=self._memory.is_silent):
            try:
                return (yield from self._dialling(place))
            except StoreUnavailable as error:
                trouble = error
        raise trouble or StoreUnavailable(f"{address.name} names no server")

    @property
    def owners(self) -> tuple[str, ...]:
        """Who has which bucket, as far as we know; nobody by name where there is one server."""
        return tuple(self._owners)

    def servers(self) -> list[str]:
        """Every server that has keys, by name."""
        return list(dict.fromkeys(self._owners or [""]))

    def _asking_facts(self, wire: Any) -> Generator[Any, Any, Facts]:
        address = self._address
        # Whoever may not wait for replicas shall hear of it before a claim is written, not by a claim that is stuck.
        waits = driver.packed((b"WAIT", b"0", b"0")) if address.wait_replicas else b""
        asked = driver.packed((b"INFO",)) + driver.packed((b"CONFIG", b"GET", b"appendfsync")) + waits
        slip = yield Send(wire, asked, 3 if waits else 2)
        info, settings, *waited = yield Receive(wire, slip)
        for refused in (info, *waited):
            if isinstance(refused, Exception):
                raise driver.store_error(address.name, refused) from refused
        # A user that may not see the configuration, or a managed server that has none to show.
        told = {} if isinstance(settings, Exception) else {"appendfsync": settings[1].decode()} if settings else {}
        return facts_of(address.name, info_of(info), told)

    def _greeting(self, link: Link) -> Wiring:
        self._memory.facts[link.server] = link.facts
        link.takes_all = self._address.allow_volatile or not link.facts.volatile
        if not self._address.cluster:
            groups: list[tuple[int, ...]] = [tuple(range(BUCKETS))]
        else:  # one script, one slot
            groups = [(bucket,) for bucket in range(BUCKETS) if self._owners[bucket] == link.server]
            if not groups:  # a server that has no slots yet, or no longer: nothing to say, and no reply to wait for
                return
        data = [
            driver.packed(
                (
                    *(b"EVAL", GREET.source, b"%d" % len(group)),
                    *(MARKERS[bucket] for bucket in group),
                    *self._introduction(link, group),
                )
            )
            for group in groups
        ]
        slip = yield Send(link.wire, b"".join(data), len(groups))
        for group, answer in zip(groups, (yield Receive(link.wire, slip)), strict=True):
            if isinstance(answer, Exception):
                if driver.moved_to(answer) is not None:
                    continue  # that bucket lives elsewhere by now; whoever wants it is told so
                raise driver.store_error(self._address.name, answer) from answer
            self._memory.heard(int(answer[0]))
            for bucket, marker in zip(group, answer[1:], strict=True):
                self._met(link, bucket, marker)

    def _introduction(self, link: Link, buckets: Sequence[int]) -> list[bytes]:
        keeps_all = b"1" if link.facts.keeps_all else b""
        return [link.facts.run_id.encode(), keeps_all, *(self._memory.born[bucket] for bucket in buckets)]

    def _met(self, link: Link, bucket: int, marker: bytes) -> None:
        link.markers[bucket] = marker
        self._memory.met(bucket, marker)

    def _placing(self, server: str) -> Generator[Any, Any, driver.Place]:
        address = self._address
        if address.cluster:
            host, _, port = server.rpartition(":")
            return address.places[0].at(host, int(port))
        if address.sentinel is None:
            return address.places[0]
        words = (b"SENTINEL", b"get-master-addr-by-name", address.sentinel.encode())
        host, port = yield from self._asking_any(address.places, words, self._named_master)
        return (address.master or address.places[0]).at(host.decode(), int(port))

    def _named_master(self, _: driver.Place, answer: Any) -> Any:
        if not answer:
            raise Misconfigured(f"the sentinels of {self._address.name} know no {self._address.sentinel!r}")
        return answer

    def _finding_owners(self) -> Wiring:
        """Who has which bucket: asked of any server of the cluster."""
        self._owners = yield from self._asking_any(self._known(), (b"CLUSTER", b"SLOTS"), self._told_owners)
        self._doubtful = False

    def _known(self) -> list[driver.Place]:
        """The servers of a cluster that its address names, and those that we have met: the others may all be gone."""
        address = self._address
        named = [place.node for place in address.places]
        places = [*address.places]
        for server in dict.fromkeys((*self.links, *self._memory.facts)):
            if server not in named:
                host, _, port = server.rpartition(":")
                places.append(address.places[0].at(host, int(port)))
        return places

    def _told_owners(self, asked: driver.Place, answer: Any) -> list[str]:
        owners = [""] * BUCKETS
        for first, last, (host, port, *_), *_ in answer:
            # No host: a server that was never told its own, or does not tell it. Where it was asked, that is.
            server = f"{host.decode() if host else asked.host}:{port}"
            for bucket, slot in enumerate(_SLOTS):
                if first <= slot <= last:
                    owners[bucket] = server
        if "" in owners:
            raise StoreUnavailable(f"{self._address.name}: not every slot of the cluster has a master")
        return owners

    def _asking_any(
        self, places: Sequence[driver.Place], words: Sequence[bytes], told: Callable[[driver.Place, Any], Any]
    ) -> Generator[Any, Any, Any]:
        """What the first of these tells that knows: one that has just come, or was told to forget, may not."""
        trouble: SamekeyError | None = None
        for place in sorted(places, key=self._memory.is_silent):
            try:
                wire = yield from self._dialling(place)
            except StoreUnavailable as error:
                trouble = error
                continue
            try:
                (answer,) = yield Receive(wire, (yield Send(wire, driver.packed(words), 1)))
            except driver.Lost as lost:
                trouble = StoreUnavailable(f"{self._address.name}: {lost}")
                continue
            yield Hang(wire)
            try:
                if isinstance(answer, Exception):
                    raise driver.store_error(self._address.name, answer)
                return told(place, answer)
            except SamekeyError as error:
                if not isinstance(trouble, StoreUnavailable):  # whoever did not answer may know better
                    trouble = error
        raise trouble or StoreUnavailable(f"{self._address.name} names no server")

    def _dialling(self, place: driver.Place) -> Wiring:
        try:
            wire = yield Dial(place)
        except (driver.DriverError, OSError) as error:
            if driver.is_silence(error):
                self._memory.silent[place.node] = time.monotonic() + SILENT_SECONDS
            raise driver.store_error(self._address.name, error) from error
        return wire


def _wrote(request: Request, answer: list[Any]) -> bool:
    return (request.script is OPEN and len(answer) == 1) or (request.script is WRITE and len(answer) == 3)


_ASKING = driver.packed((b"ASKING",))
