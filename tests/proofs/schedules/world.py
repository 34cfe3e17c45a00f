"""A world with one key in it, small enough to be played out completely.

Theory. What runs here is the real thing: `core.attempt.attempt` decides, `core.register.apply` is the store.
Only what surrounds them is made up: a clock, a provider with its books, requests on their way, and callers that
crash, pause and time out. A `Scene` is the whole world at one moment and never changes; `World.moves` lists
everything that can happen next. Which moves are played is no business of this file (`search.py` plays them all).

One move is one atomic thing:

    a store command    the write and its reply. Being slow needs no move of its own: whoever is not chosen for a
                       while is a paused holder, or holds a reply that has become stale
    an effect          the fenced mark, where the boundary has one | the request leaves | it lands and is answered.
                       Between any two of them time may pass and the caller may die. A request whose sender is gone
                       still lands - later than anyone would like - or is lost
    a lookup           the provider is asked, and says what its books show at that moment | the answer arrives. By then
                       the books, the record and the clock may be others. A question that reaches the provider late
                       needs no move of its own: it is a caller that is not chosen for a while
    a fault            a crash, a timeout, a cancellation, a lease that ends, a store that does not answer (and may
                       carry the command out much later) or that loses its memory
    others             an operator, a recovery worker, a sweeper: `others=` are scripts of their own that speak to the
                       same store, one command at a time, and may ask the world what is true (`FindOut`)
    faults stop        when every caller is gone, a last one comes to a world without faults: it must get through

A crash before a command and a crash after the one before it are the same, as nothing lies between them. A request
or a command that is lost is the same as one that arrives when everything else is over.

Time. A holder may oversleep its lease anywhere: no promise rests on a lease. Two promises do rest on a longer time:
an absence is believed `believe_absent_after` its lease, and a provider knows a key for its `window`. A `punctual`
world keeps to what these ask of the user: whoever can no longer be stopped from sending has sent, and what is on
its way has landed, by then. Without it, the double effects that these windows allow are found as well.

Scenes that differ only in what a record tells people (`wiped`) are one scene; `exact=True` keeps them apart, to
check that nothing is decided by it. After retention a settled key is forgotten and may run again, as promised; what
was charged before counts no more. Not modelled: renewals (they only push a lease out), Atomic (its world is one
transaction).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

from samekey.core import attempt as core_attempt
from samekey.core import register
from samekey.core.boundary import Absent, Boundary, Declined, Happened, Kind, StillUnknown, Verdict, parse_terms
from samekey.core.call import Call
from samekey.core.commands import CallLookup, Command, Open, Read, RunEffect, StoreCommand, Take, Wait
from samekey.core.envelope import encode
from samekey.core.errors import Fenced
from samekey.core.fingerprint import Intent
from samekey.core.policy import SECONDS_MAX, Policy
from samekey.core.record import Record
from samekey.core.states import State
from tests.proofs.schedules.books import Books, Ending, Provider, Request
from tests.proofs.schedules.points import NO_ANSWER, RESULT_MAX_BYTES, Points, facts
from tests.proofs.schedules.scene import (
    FRESH,
    KEY,
    LEASE_SECONDS,
    NO_FAULTS,
    Caller,
    Faults,
    FindOut,
    Move,
    Scene,
    Stray,
    Sweep,
    due_of,
    marked,
    nth,
    point_of,
    put,
    spend,
    verb_of,
    watched,
    wiped,
    with_request,
)

INTENT = Intent({"amount": 200})


def look_in_the_books(record: Any) -> Verdict:
    """The lookup to declare for a boundary of this world, which answers it from its own books."""
    raise NotImplementedError("only the world can look in its books")


Other = Callable[[Call], Generator[Command, Any, Any]]


@dataclass(eq=False)
class World:
    """The rules of one game: who calls, what stands behind the key, and how many faults there may be.

    `boundary` and `effect` may be tuples, one for each caller; the last one serves all later callers. Effects:

        charge      send the request and believe the answer: a decline is NotDone, a refusal Refused
        give up     raise NotDone before anything is sent
        refuse      raise Refused before anything is sent
        break       raise something else before anything is sent
        nest        as charge; then a guarded call inside the effect says NotDone, of itself, and it comes through
        presume     as charge, but call a timeout NotDone: what no effect may do
        forget      as charge, but without the mark that the boundary declares: what no effect may do
    """

    boundary: Boundary | tuple[Boundary, ...]
    provider: Provider = field(default_factory=Provider)
    effect: str | tuple[str, ...] = "charge"
    callers: int = 2
    crashes: int = 2
    expiries: int = 2  # ends of a lease, or of an asking, with callers about
    timeouts: int = 1
    ages: int = 1  # times that a belief or a window comes to its end
    outages: int = 0  # commands that the store does not answer
    cancels: int = 0  # callers cancelled in the middle of a claim
    losses: int = 0  # times that the store forgets everything, and counts its tokens from the start again
    retention: float = SECONDS_MAX
    others: tuple[tuple[str, Other], ...] = ()  # who else is about: a name, and its script for a call of its own
    punctual: bool = True
    exact: bool = False
    points: Points = field(default_factory=Points, repr=False)

    def first(self) -> Scene:
        """Nobody has called yet."""
        return Scene(
            callers=(
                *(self._caller(index, "ABCDEFGH"[index]) for index in range(self.callers)),
                *(self._caller(self.callers, name, script) for name, script in self.others),
            ),
            left=Faults(
                crashes=self.crashes,
                expiries=self.expiries,
                timeouts=self.timeouts,
                ages=self.ages,
                outages=self.outages,
                cancels=self.cancels,
                losses=self.losses,
                copies=self.provider.copies,
            ),
            books=Books(broke=self.provider.broke),
        )

    def moves(self, scene: Scene) -> Iterator[Move]:
        """Everything that can happen next; nothing, when all is over."""
        called = True  # callers that have not called yet are alike: the first of them is next
        for index, caller in enumerate(scene.callers):
            if caller.point is not None and (called or index >= self.callers):
                came = bool(caller.point.heard or caller.stage)
                called = called and came
                yield from self._steps(scene, index, caller)
                if came and scene.left.crashes:
                    gone = put(spend(scene, "crashes"), index, Caller(caller.name, None))
                    yield Move(f"{caller.name} crashes", gone, caller.name)
        yield from self._arrivals(scene)
        if not scene.healed:
            yield from self._faults(scene)

    def declared(self, index: int) -> Boundary:
        boundary: Boundary = nth(self.boundary, index)
        return boundary

    # -- callers

    def _caller(self, index: int, name: str, script: Other | None = None) -> Caller:
        boundary = self.declared(index)
        call = Call(
            key=KEY,
            intent=INTENT,
            attempt=name,
            boundary=boundary,
            terms=boundary.terms,
            terms_text=boundary.terms.text(),
            policy=Policy(lease=LEASE_SECONDS, retention=self.retention),
        )
        return Caller(name, self.points.start(call, lambda: (script or core_attempt.attempt)(call)))

    def _leaving(self, name: str, call: Call, claim: Open | Take) -> Caller:
        return Caller(name, self.points.start(call, lambda: core_attempt.withdraw(call, claim)), stage="leaving")

    def _steps(self, scene: Scene, index: int, caller: Caller) -> Iterator[Move]:
        """What this caller can do next."""
        name, point = caller.name, point_of(caller)
        match point.asks:
            case RunEffect(held) if held is not None:
                yield from self._effect(scene, index, caller, point.call, held)
            case CallLookup() if caller.verdict is not None:
                yield self._hears(scene, index, f"{name} is answered", caller.verdict)
                if scene.left.timeouts:  # as a performer tells the core of a lookup that raises
                    unheard = spend(scene, "timeouts")
                    yield self._hears(unheard, index, f"{name} waits for the answer in vain", StillUnknown())
            case CallLookup(record):
                verdict = self.provider.look(scene.books, record.provider_key())
                asked = put(scene, index, caller._replace(verdict=verdict))
                yield Move(f"{name} asks the provider", asked, name, events=(f"provider: {type(verdict).__name__}",))
            case FindOut():
                yield self._hears(scene, index, f"{name} finds out", self._truth(scene))
            case Sweep():
                yield self._hears(self._swept(scene), index, f"{name} sweeps", None)
            case Wait(seen):
                now = self._seen(scene)
                over = now is None or not (now.lease_live or now.being_asked) or watched(now) != watched(seen)
                yield self._hears(scene, index, f"{name} {'is woken' if over else 'loses patience'}", now)
            case StoreCommand() as command:
                label, done = f"{name} {verb_of(command)}", self._write(scene, command)
                yield self._hears(done, index, label, self._seen(done), command)
                stray = scene._replace(strays=(*scene.strays, Stray(name, facts(command))))
                if scene.left.outages:
                    unheard = spend(stray, "outages")
                    yield self._hears(unheard, index, f"{label} and hears nothing", NO_ANSWER)
                if scene.left.cancels and isinstance(command, (Open, Take)):
                    leaving = put(spend(stray, "cancels"), index, self._leaving(name, point.call, command))
                    yield Move(f"{label} and is cancelled", leaving, name)
            case _:
                raise TypeError(f"{name} asks for something that this world does not have: {point.asks}")

    def _effect(self, scene: Scene, index: int, caller: Caller, call: Call, held: Record) -> Iterator[Move]:
        name, script = caller.name, nth(self.effect, index)
        match caller.stage, script:
            case "sent", _:
                if scene.left.timeouts:
                    ending = Ending("NotDone" if script == "presume" else "TimeoutError", begun=marked(caller, script))
                    yield self._hears(spend(scene, "timeouts"), index, f"{name} times out", ending)
            case "", "give up":
                yield self._hears(scene, index, f"{name} gives up", Ending("NotDone"))
            case "", "refuse":
                yield self._hears(scene, index, f"{name} refuses", Ending("Refused"))
            case "", "break":
                yield self._hears(scene, index, f"{name} breaks", Ending("RuntimeError"))
            case "", _ if marked(caller, script):
                yield from self._mark(scene, index, caller, call, held)
            case _:
                reference = held.provider_key()
                request = Request(name, reference, reference if call.terms.kind is Kind.KEYED else "", caller.due)
                sent = put(scene, index, caller._replace(stage="sent"))
                yield Move(f"{name} sends", sent._replace(requests=with_request(scene.requests, request)), name)

    def _mark(self, scene: Scene, index: int, caller: Caller, call: Call, held: Record) -> Iterator[Move]:
        """`held.sending()`: the real steps of it, in one move, as they are a single store command."""
        label, steps = f"{caller.name} marks", core_attempt.sending(call, held)
        after, command = scene, None
        try:
            command = steps.send(None)
            if isinstance(command, StoreCommand):
                after = self._write(scene, command)
            steps.send(self._seen(after))
        except StopIteration:
            ready = put(after, index, caller._replace(stage="ready", due=due_of(after.record or held)))
            yield Move(label, ready, caller.name, command)
        except Fenced:
            yield self._hears(after, index, label, Ending("Fenced"), command)
        if scene.left.outages and isinstance(command, StoreCommand):
            stray = scene._replace(strays=(*scene.strays, Stray(caller.name, facts(command))))
            unheard = spend(stray, "outages")
            yield self._hears(unheard, index, f"{label} and hears nothing", Ending("StoreUnavailable"))

    def _hears(self, scene: Scene, index: int, label: str, reply: Any, command: Command | None = None) -> Move:
        """The caller gets its reply and goes on, up to what it asks next or to its end."""
        caller = scene.callers[index]
        point, events = self.points.hear(point_of(caller), reply)
        word = caller.word
        if isinstance(reply, Ending) and reply.how == "returned":
            word = encode(reply.value, max_bytes=RESULT_MAX_BYTES)
        if isinstance(point.asks, Command):
            caller = Caller(caller.name, point, word=word)
            if isinstance(point.asks, RunEffect) and point.asks.held and not marked(caller, nth(self.effect, index)):
                caller = caller._replace(due=due_of(point.asks.held))  # nothing stops it from sending any more
            return Move(label, put(scene, index, caller), caller.name, command, events)
        end = point.asks
        closed = scene.record is not None and scene.record.state is State.CLOSED
        if end.how == "answer" or (end.what == "Refused" and closed):
            answer = b"%b %b" % (end.what.encode(), end.result or b"")
            if answer not in scene.answers:
                scene = scene._replace(answers=(*scene.answers, answer))
        return Move(label, put(scene, index, Caller(caller.name, None)), caller.name, command, events, end, word)

    # -- the store

    def _write(self, scene: Scene, command: StoreCommand) -> Scene:
        if isinstance(command, Read):
            return scene
        moment = register.Moment(wall=scene.now, tick=scene.now, clock="", token=scene.token + 1)
        record = register.apply(scene.record, command, moment)
        if record is None or record is scene.record:
            return scene._replace(record=record)
        record = (
            record
            if self.exact
            else wiped(record, retained=self.retention < SECONDS_MAX, moves=1 if self.others else 0)
        )
        return scene._replace(record=record, token=max(scene.token, record.token))

    def _seen(self, scene: Scene) -> Record | None:
        if scene.record is None:
            return None
        moment = register.Moment(scene.now, scene.now, "", scene.token)
        if register.expired(scene.record, moment):
            return None
        seen = register.seen_at(scene.record, moment)
        return seen._replace(after_loss=True) if scene.lost else seen

    def _swept(self, scene: Scene) -> Scene:
        moment = register.Moment(scene.now, scene.now, "", scene.token)
        gone = scene.record is not None and register.expired(scene.record, moment)
        return scene._replace(record=None) if gone else scene

    # -- everything else

    def _truth(self, scene: Scene) -> Verdict:
        """What an honest person can know: that it happened, that it no longer can, or nothing yet."""
        charges = scene.books.charges[scene.forgotten :]
        if charges:
            return Happened(charges[0].result)
        if scene.requests or any(self._may_still_send(scene, index) for index in range(len(scene.callers))):
            return StillUnknown()
        if scene.books.declined and self.provider.refuses:
            return Declined(final=True, reason="stolen card")
        return Absent()

    def _may_still_send(self, scene: Scene, index: int) -> bool:
        """Whether nothing stops this caller from sending: its effect runs, and no mark is in its way."""
        caller = scene.callers[index]
        if caller.point is None or not isinstance(caller.point.asks, RunEffect):
            return False
        return bool(caller.stage) or not marked(caller, nth(self.effect, index))

    def _arrivals(self, scene: Scene) -> Iterator[Move]:
        """Requests on their way land, before or after the customer topped up; so do commands to the store."""
        for at, request in enumerate(scene.requests):
            name = "a copy" if request.copy else f"{request.by}'s request"
            rest = scene._replace(requests=scene.requests[:at] + scene.requests[at + 1 :])
            yield self._lands(rest, request, f"{name} lands")
            if scene.books.broke:
                topped_up = rest._replace(books=scene.books._replace(broke=False))
                yield self._lands(topped_up, request, f"{name} lands after a top-up")
            if scene.left.copies and not request.copy:
                both = with_request(scene.requests, request._replace(copy=True))
                yield Move(f"{name} is copied", spend(scene, "copies")._replace(requests=both))
            if request.due < inf and self._sender(scene, request) is None:
                yield Move(f"{name} is lost", rest)  # so that nothing is late any more
        for at, stray in enumerate(scene.strays):
            rest, command = scene._replace(strays=scene.strays[:at] + scene.strays[at + 1 :]), stray.command()
            yield Move(f"{stray.by}'s {command.verb} arrives", self._write(rest, command), stray.by, command)

    def _lands(self, scene: Scene, request: Request, label: str) -> Move:
        books, ending = self.provider.arrive(scene.books, request, scene.now)
        scene = scene._replace(books=books)
        index = self._sender(scene, request)
        if index is None:
            return Move(label, scene)
        script = nth(self.effect, index)
        if script == "nest" and ending.how == "returned":
            ending = Ending("NotDone", inner=True)
        return self._hears(scene, index, label, ending._replace(begun=marked(scene.callers[index], script)))

    def _sender(self, scene: Scene, request: Request) -> int | None:
        """Who still waits for the answer to it."""
        for index, caller in enumerate(scene.callers):
            if caller.name == request.by and caller.stage == "sent" and not request.copy:
                return index
        return None

    def _faults(self, scene: Scene) -> Iterator[Move]:
        """Time that passes, a store that forgets - and at last the end of all faults."""
        record, about = scene.record, any(caller.point for caller in scene.callers)
        if record is not None and about and scene.left.expiries:
            over = spend(scene, "expiries")
            if record.state is State.STARTED:
                yield from self._passes(over, "the lease ends", record.lease_until)
            if record.state is State.IN_DOUBT:
                yield from self._passes(over, "the asking ends", record.ask_until)
        if record is not None and not record.settled and scene.left.ages:
            over, terms = spend(scene, "ages"), parse_terms(record.boundary)
            if terms.believe_absent_after is not None:
                yield from self._passes(over, "the belief is of age", record.lease_until + terms.believe_absent_after)
            if terms.window is not None and record.first_sent_at is not None:
                yield from self._passes(over, "the window ends", record.first_sent_at + terms.window)
            for one in scene.books.known:
                yield from self._passes(over, f"the provider forgets {one.key[:4]}", one.until)
        if record is not None and record.retain_until is not None and scene.left.ages and self._forgets(scene):
            forgets = spend(scene, "ages")
            if record.settled:
                forgets = forgets._replace(forgotten=len(scene.books.charges), answers=())
            yield from self._passes(forgets, "the retention ends", record.retain_until)
        if record is not None and about and scene.left.losses:
            gone = spend(scene, "losses")._replace(record=None, token=0, lost=True)
            yield Move("the store loses its memory", gone)
        if not about:
            callers = (*scene.callers, self._caller(self.callers, FRESH))
            healed = scene._replace(callers=callers, strays=(), left=NO_FAULTS, healed=True)
            until = max(record.lease_until, record.ask_until) if record is not None else 0.0
            yield from self._passes(healed, f"faults stop, {FRESH} comes", max(until, scene.now + 1))

    def _forgets(self, scene: Scene) -> bool:
        """Retention is longer than any attempt: it ends when nobody who came is still about, and nothing under way."""
        came = any(caller.point is not None and (caller.point.heard or caller.stage) for caller in scene.callers)
        return self.retention < SECONDS_MAX and not (came or scene.requests or scene.strays)

    def _passes(self, scene: Scene, label: str, until: float) -> Iterator[Move]:
        """Time goes on until then; in a punctual world only if nobody would be late by it."""
        due = min([caller.due for caller in scene.callers] + [request.due for request in scene.requests])
        if scene.now < until < (due if self.punctual else inf):
            yield Move(label, scene._replace(now=until))
