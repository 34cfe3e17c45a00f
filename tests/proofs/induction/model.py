"""The protocol as formulas, for any number of attempts: what z3 proves inductive in `test_inductive.py`.

Theory. A `World` is the record's register and, for each of arbitrarily many attempts, how far it has come. A `Rule`
is what the store does with one command (`RULES`, held against `core.register.apply` case by case); a `Step` is a
rule together with what the core asks of whoever sends the command, or something that happens outside: a lease ends,
a request lands, an attempt dies. An invariant is inductive if it holds at the start and no step leads out of it;
then it holds after any number of steps of any number of attempts, in any order.

Time is reduced to "the lease may end at any moment". So what rests on a longer time - a belief in absence, the
provider's window, retention - is not proved here but explored in `tests/proofs/schedules`. Assumed: effects and
people tell the truth, nothing copies a request, the store forgets nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import z3

from samekey.core.states import Role, State

Formula = Any  # z3 has no types

ABSENT = "absent"
StateSort, _states = z3.EnumSort("State", [*(state.value for state in State), ABSENT])
STATES: dict[str, Formula] = dict(zip([*(state.value for state in State), ABSENT], _states, strict=True))
STARTED, COMPLETED, CLOSED = STATES["started"], STATES["completed"], STATES["closed"]
RELEASED, IN_DOUBT, NOTHING = STATES["released"], STATES["in_doubt"], STATES[ABSENT]

PHASES = ("idle", "holds", "ready", "sent", "done", "declined", "late", "told", "gone")
PhaseSort, _phases = z3.EnumSort("Phase", list(PHASES))
IDLE, HOLDS, READY, SENT, DONE, DECLINED, LATE, TOLD, GONE = _phases
#  idle      has not called yet, or waits          done      its effect returned
#  holds     has the key; its effect runs          declined  its effect knows that it did not happen
#  ready     wrote the mark                        late      its effect does not know (a timeout, a bug)
#  sent      waits for the answer                  told      its success is written down; gone: nothing more comes

Attempt = z3.DeclareSort("Attempt")


class Register(NamedTuple):
    """What a record is to the protocol."""

    state: Formula
    token: Formula
    holder: Formula  # with the token: the fence. An attempt holds once, so the holder says the token too
    live: Formula  # the lease
    begun: Formula
    unsure: Formula
    happened: Formula  # evidence
    round: Formula


class World(NamedTuple):
    register: Register
    phase: Formula  # of each attempt
    round: Formula  # under which each attempt sends
    flies: Formula  # its request is on the way
    charged: Formula  # its request was carried out
    known: Formula  # rounds under which the provider has a charge
    declined: Formula  # rounds under which the provider has declined


@dataclass(frozen=True)
class Kind:
    """A boundary, as far as its rules differ."""

    name: str
    marked: bool = False
    runs_again: bool = False  # out of doubt: Keyed, Repeatable
    dedups: bool = False
    asks: bool = False
    keeps_declines: bool = False
    one_effect: bool = True


KINDS = [
    Kind("opaque"),
    Kind("opaque marked", marked=True),
    Kind("asks", asks=True),
    Kind("asks marked", asks=True, marked=True),
    Kind("keyed", runs_again=True, dedups=True),
    Kind("keyed marked", runs_again=True, dedups=True, marked=True),
    Kind("keyed with lookup", runs_again=True, dedups=True, asks=True),
    Kind("keyed, kept declines", runs_again=True, dedups=True, keeps_declines=True),
    Kind("repeatable", runs_again=True, one_effect=False),
]


# -- the register's rules: may this command write, and what ----------------------------------------------------------


class Rule(NamedTuple):
    accepts: Formula
    after: Register


def opens(r: Register, *, attempt: Formula, token: Formula) -> Rule:
    fresh = Register(STARTED, token, attempt, _true, _false, _false, _false, z3.IntVal(0))
    return Rule(r.state == NOTHING, fresh)


def takes(r: Register, *, attempt: Formula, token: Formula, marked: bool) -> Rule:
    unbegun = z3.And(r.state == STARTED, z3.Not(r.live), z3.BoolVal(marked), z3.Not(r.begun), z3.Not(r.unsure))
    doubted = r.state == IN_DOUBT
    taken = r._replace(
        state=STARTED,
        token=token,
        holder=attempt,
        live=_true,
        begun=_false,
        unsure=z3.Or(r.unsure, doubted),
    )
    return Rule(z3.And(z3.Not(r.happened), z3.Or(r.state == RELEASED, doubted, unbegun)), taken)


def begins(r: Register, *, fence: Formula) -> Rule:
    return Rule(z3.And(fence, r.state == STARTED, r.live, z3.Not(r.begun), z3.Not(r.happened)), r._replace(begun=_true))


def settles(r: Register, *, fence: Formula, role: Role, state: State, next_round: Formula) -> Rule:
    to = STATES[state.value]
    ends = state is not State.IN_DOUBT
    match role:
        case Role.HOLDER if state is State.IN_DOUBT:
            before = r.state == STARTED
        case Role.HOLDER if state is State.RELEASED:
            before = z3.Or(r.state == STARTED, r.state == IN_DOUBT)
        case Role.HOLDER:
            before = z3.Or(r.state == STARTED, r.state == IN_DOUBT, r.state == RELEASED)
        case Role.PASSER_BY:
            before = z3.And(r.state == STARTED, z3.Not(r.live)) if state is State.IN_DOUBT else _false
        case _ if state is State.RELEASED:
            before = r.state == IN_DOUBT
        case _:
            before = z3.Or(r.state == IN_DOUBT, r.state == RELEASED) if ends else _false
    speaks_for_all = ends and role in (Role.LOOKUP, Role.OPERATOR)
    settled = r._replace(
        state=to,
        unsure=_false if speaks_for_all else r.unsure,
        round=z3.If(next_round, r.round + 1, r.round),
    )
    return Rule(z3.And(fence, before), settled)


def testifies(r: Register) -> Rule:
    return Rule(r.state != NOTHING, r._replace(happened=_true))


_true, _false = z3.BoolVal(True), z3.BoolVal(False)


# -- steps: who does what, when ------------------------------------------------------------------------------------


class Step(NamedTuple):
    name: str
    guard: Formula
    after: World
    role: Role | None = None  # of whoever writes to the record


a = z3.Const("a", Attempt)  # the attempt that acts; any
new_token = z3.Int("new_token")
other = z3.Const("b", Attempt)


def steps(w: World, kind: Kind) -> Iterator[Step]:
    """Everything that can happen in this world."""
    yield from claims(w, kind)
    yield from effects(w, kind)
    yield from endings(w, kind)
    yield from recovery(w, kind)


def claims(w: World, kind: Kind) -> Iterator[Step]:
    r, idle = w.register, w.phase[a] == IDLE
    grows = new_token > r.token

    def holds(rule: Rule) -> World:
        return w._replace(
            register=rule.after, phase=z3.Store(w.phase, a, HOLDS), round=z3.Store(w.round, a, rule.after.round)
        )

    opened = opens(r, attempt=a, token=new_token)
    yield Step("open", z3.And(idle, grows, opened.accepts), holds(opened))
    taken = takes(r, attempt=a, token=new_token, marked=kind.marked)
    able = z3.And(idle, grows, taken.accepts)
    yield Step("take what is released", z3.And(able, r.state == RELEASED), holds(taken), Role.PASSER_BY)
    yield Step("take what had not begun", z3.And(able, r.state == STARTED), holds(taken), Role.PASSER_BY)
    if kind.runs_again:
        yield Step("take out of doubt", z3.And(able, r.state == IN_DOUBT), holds(taken), Role.PASSER_BY)
    yield Step("the lease ends", r.live, w._replace(register=r._replace(live=_false)))


def effects(w: World, kind: Kind) -> Iterator[Step]:
    r, phase = w.register, w.phase
    if kind.marked:
        mark = begins(r, fence=r.holder == a)
        yield Step(
            "mark",
            z3.And(phase[a] == HOLDS, mark.accepts),
            w._replace(register=mark.after, phase=z3.Store(phase, a, READY)),
        )
    yield Step(
        "send",
        phase[a] == (READY if kind.marked else HOLDS),
        w._replace(phase=z3.Store(phase, a, SENT), flies=z3.Store(w.flies, a, True)),
    )
    landed = z3.Store(w.flies, a, False)
    known = w.known[w.round[a]]
    repeated = z3.And(known, z3.BoolVal(kind.dedups))  # the provider answers with what it has
    yield Step(
        "the request is carried out",
        w.flies[a],
        w._replace(
            flies=landed,
            charged=z3.If(repeated, w.charged, z3.Store(w.charged, a, True)),
            known=z3.Store(w.known, w.round[a], True),
            phase=z3.If(phase[a] == SENT, z3.Store(phase, a, DONE), phase),
        ),
    )
    yield Step(
        "the request is declined",
        z3.And(w.flies[a], z3.Not(repeated)),
        w._replace(
            flies=landed,
            declined=z3.Store(w.declined, w.round[a], True),
            phase=z3.If(phase[a] == SENT, z3.Store(phase, a, DECLINED), phase),
        ),
    )
    yield Step("the request is lost", w.flies[a], w._replace(flies=landed))
    yield Step("time out", phase[a] == SENT, w._replace(phase=z3.Store(phase, a, LATE)))
    yield Step("die", phase[a] != TOLD, w._replace(phase=z3.Store(phase, a, GONE)))


def endings(w: World, kind: Kind) -> Iterator[Step]:
    """The holder writes down what became of it."""
    r, phase = w.register, w.phase
    ours, gone = r.holder == a, z3.Store(phase, a, GONE)
    rises = z3.BoolVal(kind.asks or kind.keeps_declines)
    unsent = z3.Or(phase[a] == HOLDS, phase[a] == READY)
    not_done = z3.And(z3.Or(unsent, phase[a] == DECLINED), z3.Not(r.unsure))

    done = settles(r, fence=ours, role=Role.HOLDER, state=State.COMPLETED, next_round=_false)
    yield Step(
        "settle completed",
        z3.And(phase[a] == DONE, done.accepts),
        w._replace(register=done.after, phase=z3.Store(phase, a, TOLD)),
        Role.HOLDER,
    )
    said = testifies(r)
    yield Step(
        "testify",
        z3.And(phase[a] == DONE, said.accepts),
        w._replace(register=said.after, phase=z3.Store(phase, a, TOLD)),
    )
    # Where running twice is harmless, an attempt that timed out lets go, too.
    lets_go = not_done if kind.one_effect else z3.Or(not_done, z3.And(phase[a] == LATE, z3.Not(r.unsure)))
    # After a decline always; an attempt that never sent may also have said NotDone, or only have let go.
    up = z3.And(rises, z3.Or(phase[a] == DECLINED, z3.Bool("said_not_done")))
    for state, guard, next_round in ((State.RELEASED, lets_go, up), (State.CLOSED, not_done, _false)):
        ended = settles(r, fence=ours, role=Role.HOLDER, state=state, next_round=next_round)
        yield Step(
            f"settle {state}",
            z3.And(guard, ended.accepts),
            w._replace(register=ended.after, phase=gone),
            Role.HOLDER,
        )
    doubt = settles(r, fence=ours, role=Role.HOLDER, state=State.IN_DOUBT, next_round=_false)
    yield Step(
        "settle in_doubt",
        z3.And(z3.Or(unsent, phase[a] == LATE, phase[a] == DECLINED), doubt.accepts),
        w._replace(register=doubt.after, phase=gone),
        Role.HOLDER,
    )


def recovery(w: World, kind: Kind) -> Iterator[Step]:
    """Whoever passes by, whoever asked the provider, and people."""
    r = w.register

    def settle(role: Role, state: State, guard: Formula, next_round: Formula = _false) -> Step:
        rule = settles(r, fence=_true, role=role, state=state, next_round=next_round)
        name = f"{role} settles {state}"
        return Step(name, z3.And(guard, rule.accepts), w._replace(register=rule.after), role)

    yield settle(Role.PASSER_BY, State.IN_DOUBT, _true)
    # Evidence, or what the provider has under the record's own reference. What it said once it says for ever, so
    # it does not matter how long the answer was on its way.
    found = z3.Or(r.happened, w.known[r.round]) if kind.asks else r.happened
    yield settle(Role.LOOKUP, State.COMPLETED, found)
    refused_late = z3.And(w.phase[a] == DECLINED, r.state == RELEASED)
    yield settle(Role.LOOKUP, State.CLOSED, refused_late)._replace(name="a late refusal closes what is released")
    if kind.asks:
        declined = z3.And(w.declined[r.round], z3.Not(r.unsure), r.state == IN_DOUBT)
        yield settle(Role.LOOKUP, State.RELEASED, declined, _true)
        yield settle(Role.LOOKUP, State.CLOSED, declined)
    happened = z3.Exists([other], w.charged[other])
    cannot = z3.And(z3.Not(r.happened), z3.Not(happened), z3.ForAll([other], z3.Not(may_send(w, other, kind))))
    yield settle(Role.OPERATOR, State.COMPLETED, happened)
    yield settle(Role.OPERATOR, State.RELEASED, cannot, z3.BoolVal(kind.asks or kind.keeps_declines))
    yield settle(Role.OPERATOR, State.CLOSED, cannot)


def may_send(w: World, attempt: Formula, kind: Kind) -> Formula:
    """Its request is on the way, or nothing can stop it any more from sending one."""
    return z3.Or(w.flies[attempt], w.phase[attempt] == (READY if kind.marked else HOLDS))


# -- what holds -----------------------------------------------------------------------------------------------------

b, c = z3.Consts("b c", Attempt)
n = z3.Int("n")

Claim = Callable[[World, Kind], Formula]


def one_effect(w: World, kind: Kind) -> Formula:
    """At most one request is ever carried out."""
    return z3.ForAll([b, c], z3.Implies(z3.And(w.charged[b], w.charged[c]), b == c))


def settled_is_true(w: World, kind: Kind) -> Formula:
    """Completed, and evidence, only if it happened; released and closed only if it neither did nor can."""
    r = w.register
    none = z3.ForAll([b], z3.And(z3.Not(w.charged[b]), z3.Not(may_send(w, b, kind))))
    happened = z3.Exists([b], w.charged[b])
    return z3.And(
        z3.Implies(z3.Or(r.state == COMPLETED, r.happened), happened),
        z3.Implies(z3.Or(r.state == RELEASED, r.state == CLOSED, r.state == NOTHING), none),
    )


def completed_is_true(w: World, kind: Kind) -> Formula:
    """Completed, and evidence, only if it happened."""
    r = w.register
    return z3.Implies(z3.Or(r.state == COMPLETED, r.happened), z3.Exists([b], w.charged[b]))


def word_is_kept(w: World, kind: Kind) -> Formula:
    """Whoever told its success finds it in the record: as its result, or as evidence."""
    r = w.register
    return z3.ForAll([b], z3.Implies(w.phase[b] == TOLD, z3.Or(r.state == COMPLETED, r.happened)))


def nobody_before_the_first(w: World, kind: Kind) -> Formula:
    """Without a record nobody has ever held."""
    idle = z3.ForAll(
        [b], z3.And(z3.Or(w.phase[b] == IDLE, w.phase[b] == GONE), z3.Not(w.flies[b]), z3.Not(w.charged[b]))
    )
    blank = z3.ForAll([n], z3.And(z3.Not(w.known[n]), z3.Not(w.declined[n])))
    return z3.Implies(w.register.state == NOTHING, z3.And(idle, blank, z3.Not(w.register.happened)))


def done_is_true(w: World, kind: Kind) -> Formula:
    """An effect that returned was carried out: by its own request, or the provider had it."""
    return z3.ForAll([b], z3.Implies(z3.Or(w.phase[b] == DONE, w.phase[b] == TOLD), z3.Exists([c], w.charged[c])))


def waits_for_its_own(w: World, kind: Kind) -> Formula:
    """A request flies only for one that sent it, and was carried out only for one that sent it."""
    early = z3.Or(w.phase[b] == IDLE, w.phase[b] == HOLDS, w.phase[b] == READY)
    settled = z3.Or(w.phase[b] == DONE, w.phase[b] == DECLINED)
    return z3.ForAll(
        [b],
        z3.And(
            z3.Implies(early, z3.And(z3.Not(w.flies[b]), z3.Not(w.charged[b]))),
            z3.Implies(settled, z3.Not(w.flies[b])),
            z3.Implies(w.phase[b] == DECLINED, z3.Not(w.charged[b])),
            z3.Implies(w.charged[b], z3.Not(w.flies[b])),
            z3.Implies(w.charged[b], w.known[w.round[b]]),
        ),
    )


def known_is_charged(w: World, kind: Kind) -> Formula:
    """What the provider has under a round was carried out for somebody who sent it under that round."""
    return z3.ForAll([n], z3.Implies(w.known[n], z3.Exists([b], z3.And(w.charged[b], w.round[b] == n))))


def only_the_holder(w: World, kind: Kind) -> Formula:
    """Where nothing runs again out of doubt: whoever may send, or has, is the holder - and, if marked, has begun."""
    r = w.register
    concerns = z3.Or(may_send(w, b, kind), w.charged[b])
    return z3.ForAll([b], z3.Implies(concerns, z3.And(r.holder == b, z3.Or(r.begun, z3.BoolVal(not kind.marked)))))


def one_round(w: World, kind: Kind) -> Formula:
    """Where it runs again: whoever may send, or has been charged, does so under the record's round."""
    concerns = z3.Or(may_send(w, b, kind), w.charged[b], z3.And(w.phase[b] == HOLDS, w.register.holder == b))
    return z3.ForAll([b], z3.Implies(concerns, w.round[b] == w.register.round))


def sure_is_alone(w: World, kind: Kind) -> Formula:
    """While the record is not unsure, nobody but its holder may send or has; and a marked one has begun."""
    r = w.register
    concerns = z3.Or(may_send(w, b, kind), w.charged[b])
    alone = z3.And(r.holder == b, z3.Or(r.begun, z3.BoolVal(not kind.marked)))
    live = z3.Or(r.state == STARTED, r.state == IN_DOUBT)
    return z3.Implies(z3.And(live, z3.Not(r.unsure)), z3.ForAll([b], z3.Implies(concerns, alone)))


def a_decline_speaks_for_one(w: World, kind: Kind) -> Formula:
    """A decline on the books under the record's round, and nothing unsure: then nothing of this round can happen."""
    r = w.register
    held = z3.Or(r.state == STARTED, r.state == IN_DOUBT)
    over = z3.And(w.declined[r.round], z3.Not(r.unsure), held)
    nothing_more = z3.ForAll([b], z3.And(z3.Not(may_send(w, b, kind)), z3.Not(w.charged[b])))
    holder = w.phase[r.holder]
    return z3.And(
        z3.Implies(over, z3.And(nothing_more, holder != HOLDS, holder != READY)),
        z3.Implies(r.state == RELEASED, z3.Not(w.declined[r.round])),
        z3.Implies(
            z3.And(held, z3.Not(r.unsure), z3.BoolVal(kind.marked), z3.Not(r.begun)), z3.Not(w.declined[r.round])
        ),
        z3.ForAll([n], z3.Implies(n > r.round, z3.And(z3.Not(w.declined[n]), z3.Not(w.known[n])))),
        z3.ForAll([b], z3.Implies(may_send(w, b, kind), w.round[b] == r.round)),
        z3.Implies(z3.And(r.state == STARTED, holder == HOLDS), w.round[r.holder] == r.round),
    )


def invariants(kind: Kind) -> list[Claim]:
    """What holds for ever in a world of this kind; together they are inductive."""
    always = [word_is_kept, done_is_true, nobody_before_the_first, waits_for_its_own]
    if not kind.one_effect:
        return [*always, completed_is_true, known_is_charged]
    asked = [a_decline_speaks_for_one] if kind.asks else []
    if not kind.runs_again:
        return [one_effect, settled_is_true, *always, known_is_charged, only_the_holder, *asked]
    return [one_effect, settled_is_true, *always, known_is_charged, one_round, sure_is_alone, *asked]


def only_grows(before: World, after: World) -> Formula:
    """In one step: tokens grow with each new holder, the end is the end, evidence stays."""
    was, now = before.register, after.register
    settled = z3.Or(was.state == COMPLETED, was.state == CLOSED)
    same = z3.And(now.state == was.state, now.token == was.token, now.holder == was.holder)
    return z3.And(
        now.token >= was.token,
        z3.Implies(z3.And(was.state != NOTHING, now.holder != was.holder), now.token > was.token),
        z3.Implies(settled, same),
        z3.Implies(was.happened, now.happened),
        z3.Implies(z3.And(was.happened, was.state != STARTED), now.state != STARTED),
    )


def any_world() -> World:
    register = Register(
        z3.Const("state", StateSort),
        z3.Int("token"),
        z3.Const("holder", Attempt),
        z3.Bool("live"),
        z3.Bool("begun"),
        z3.Bool("unsure"),
        z3.Bool("happened"),
        z3.Int("round"),
    )
    of_attempt, of_round = (Attempt, z3.BoolSort()), (z3.IntSort(), z3.BoolSort())
    return World(
        register,
        z3.Array("phase", Attempt, PhaseSort),
        z3.Array("rounds", Attempt, z3.IntSort()),
        z3.Array("flies", *of_attempt),
        z3.Array("charged", *of_attempt),
        z3.Array("known", *of_round),
        z3.Array("declined", *of_round),
    )


def first_world() -> World:
    w = any_world()
    nobody = z3.K(Attempt, False)
    nothing = Register(NOTHING, z3.IntVal(0), w.register.holder, _false, _false, _false, _false, z3.IntVal(0))
    return w._replace(
        register=nothing,
        phase=z3.K(Attempt, IDLE),
        flies=nobody,
        charged=nobody,
        known=z3.K(z3.IntSort(), False),
        declined=z3.K(z3.IntSort(), False),
    )


def unproved(kind: Kind, changed: Callable[[World, Kind], Iterator[Step]] = steps) -> list[str]:
    """The obligations that z3 does not prove: none, or the names of the steps that lead out of the invariant."""
    return [name for name, broken in obligations(kind, changed) if not _impossible(broken)]


def obligations(
    kind: Kind, play: Callable[[World, Kind], Iterator[Step]] = steps
) -> Iterator[tuple[str, list[Formula]]]:
    """Each with what would have to be possible if it did not hold."""
    claims, w = invariants(kind), any_world()
    first = first_world()
    yield "the start", [z3.Not(z3.And([claim(first, kind) for claim in claims]))]
    held = [claim(w, kind) for claim in claims]
    for step in play(w, kind):
        holds = z3.And([claim(step.after, kind) for claim in claims] + [only_grows(w, step.after)])
        yield step.name, [*held, step.guard, z3.Not(holds)]


def _impossible(formulas: list[Formula]) -> bool:
    solver = z3.Solver()
    solver.set("timeout", 10_000)
    solver.add(*formulas)
    return bool(solver.check() == z3.unsat)
