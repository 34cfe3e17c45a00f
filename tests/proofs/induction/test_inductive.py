"""A proof for any number of attempts - and that its model is the real protocol, and that it can fail.

The obligations are proved by z3, for each boundary whose promises do not rest on time. `-s` prints how many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import z3

from samekey.core import register
from samekey.core.boundary import Asks, Keyed, Opaque
from samekey.core.commands import Begin, Open, Settle, Take, Testify
from samekey.core.fingerprint import Intent
from samekey.core.key import make_key
from samekey.core.record import Evidence, Record
from samekey.core.states import NEXT, Role, State
from tests.figures import figure
from tests.proofs.induction import model
from tests.proofs.induction.model import (
    DECLINED,
    DONE,
    GONE,
    HOLDS,
    IN_DOUBT,
    KINDS,
    LATE,
    READY,
    RELEASED,
    STARTED,
    STATES,
    TOLD,
    Kind,
    Register,
    Step,
    World,
    a,
    new_token,
)

BY_NAME = {kind.name: kind for kind in KINDS}


@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_promise_is_inductive(kind):
    """At most one effect, tokens only grow, settled is the end, evidence stays: after any number of steps."""
    obligations, invariants = len(list(model.obligations(kind))), len(model.invariants(kind))
    figure(f"proof: {kind.name}", f"{obligations} obligations, {invariants} invariants")

    assert model.unproved(kind) == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_obligation_is_empty(kind):
    """Each step can happen in a world where the invariants hold: nothing is proved of what never happens."""
    world = model.any_world()
    held = [claim(world, kind) for claim in model.invariants(kind)]
    # Marked is what makes an unbegun record free; and with honest people nobody contradicts a sure holder.
    never = set() if kind.marked else {"take what had not begun"}

    for step in model.steps(world, kind):
        solver = z3.Solver()
        solver.add(*held, step.guard)
        assert (solver.check() == z3.unsat) == (step.name in never), step.name


# -- the model is the real protocol -----------------------------------------------------------------------------------


def test_the_moves_of_the_model_are_those_of_next():
    """Every move that NEXT allows a role is made by some step of the model, and no other."""
    moves = set()
    world = model.any_world()
    for kind in KINDS:
        for step in model.steps(world, kind):
            if step.role is not None:
                moves |= {(step.role, *pair) for pair in changes(world, step)}

    assert moves == {(role, s, t) for role, table in NEXT.items() for s, after in table.items() for t in after}


def changes(world: World, step: Step) -> Iterator[tuple[State, State]]:
    for before, after in product(State, State):
        solver = z3.Solver()
        solver.add(step.guard, world.register.state == STATES[before.value])
        solver.add(step.after.register.state == STATES[after.value])
        if solver.check() == z3.sat:
            yield before, after


KEY, MOMENT = make_key("charge", "o-1"), register.Moment(wall=100.0, tick=100.0, clock="", token=8)
BOUNDARIES = {False: Opaque().terms.text(), True: Opaque(marked=True).terms.text()}
ATTEMPTS = {name: z3.Const(name, model.Attempt) for name in ("ours", "theirs")}


def records() -> Iterator[tuple[Record, bool]]:
    """Every record, as far as the protocol can tell them apart, unmarked and marked."""
    flags = product((False, True), repeat=5)
    for state, (live, begun, unsure, happened, marked) in product(State, flags):
        said = (Evidence(1.0, 7, "late", State.COMPLETED, b"", ""),) if happened else ()
        record = Record(
            KEY, state, 7, "ours", b"", "", (), BOUNDARIES[marked], 1, 1, 0.0, 0.0, 130.0 if live else 70.0, ""
        )
        yield record._replace(begun_at=50.0 if begun else None, unsure=unsure, evidence=said, round=3), marked


def as_register(record: Record) -> Register:
    return Register(
        STATES[record.state.value],
        z3.IntVal(record.token),
        ATTEMPTS[record.attempt],
        z3.BoolVal(record.lease_until > MOMENT.tick),
        z3.BoolVal(record.begun_at is not None),
        z3.BoolVal(record.unsure),
        z3.BoolVal(record.happened is not None),
        z3.IntVal(record.round),
    )


def agree(rule: model.Rule, record: Record, command: Any) -> bool:
    """Whether the model's rule and the register do the same with this command."""
    after = register.apply(record, command, MOMENT)
    assert after is not None
    if after is record:
        return bool(z3.is_false(z3.simplify(rule.accepts)))
    same = [z3.simplify(ours == theirs) for ours, theirs in zip(rule.after, as_register(after), strict=True)]
    return z3.is_true(z3.simplify(rule.accepts)) and all(map(z3.is_true, same))


def test_the_rules_of_the_model_are_those_of_the_register():
    """Every record and every command, side by side."""
    compared = 0
    for record, marked in records():
        r, theirs = as_register(record), ATTEMPTS["theirs"]
        take = Take(record, "theirs", record.boundary, 30.0, sends=False)
        assert agree(model.takes(r, attempt=theirs, token=z3.IntVal(8), marked=marked), record, take)
        for holds in (True, False):
            seen, fence = record if holds else record._replace(attempt="other"), z3.BoolVal(holds)
            assert agree(model.begins(r, fence=fence), record, Begin(seen))
            for role, state, up in product(Role, State, (False, True)):
                if state is not State.STARTED:
                    command = Settle(seen, role, state, by="x", next_round=up)
                    rule = model.settles(r, fence=fence, role=role, state=state, next_round=z3.BoolVal(up))
                    assert agree(rule, record, command), (record, role, state)
                    compared += 1
        if record.happened is None and not record.settled:
            assert agree(model.testifies(r), record, Testify(KEY, "x", 1, State.COMPLETED, b"", ""))
    opened = register.apply(None, Open(KEY, "ours", Intent(1), "opaque", 30.0, sends=False), replace(MOMENT, token=7))
    assert opened is not None
    rule = model.opens(model.first_world().register, attempt=ATTEMPTS["ours"], token=z3.IntVal(7))
    assert all(z3.is_true(z3.simplify(x == y)) for x, y in zip(rule.after, as_register(opened), strict=True))
    figure("proof: settles of the model, compared with the register", compared)


def test_the_kinds_of_the_model_are_those_of_the_boundaries():
    """A round rises after a decline where it can be asked or declines are kept, and nowhere else."""
    lookup: Any = print
    real = {
        "opaque": Opaque(),
        "asks": Asks(lookup),
        "keyed": Keyed(),
        "keyed with lookup": Keyed(lookup=lookup),
        "keyed, kept declines": Keyed(keeps_declines=True),
    }
    for name, boundary in real.items():
        kind = BY_NAME[name]
        assert boundary.terms.new_round_after_decline == (kind.asks or kind.keeps_declines)
        assert boundary.terms.asks == kind.asks


# -- the proof can fail ----------------------------------------------------------------------------------------------


Mutation = Callable[[World, Kind], Iterator[Step]]


def instead(name: str, change: Callable[[World, Kind, Step], Step]) -> Mutation:
    """The same steps, but this one."""

    def mutated(w: World, kind: Kind) -> Iterator[Step]:
        for step in model.steps(w, kind):
            yield change(w, kind, step) if step.name == name else step

    return mutated


def besides(step: Callable[[World], Step]) -> Mutation:
    """The same steps, and one more."""

    def mutated(w: World, kind: Kind) -> Iterator[Step]:
        yield from model.steps(w, kind)
        yield step(w)

    return mutated


def taken(w: World, **changes: Any) -> World:
    after = w.register._replace(state=STARTED, token=new_token, holder=a, live=z3.BoolVal(True), **changes)
    return w._replace(register=after, phase=z3.Store(w.phase, a, HOLDS), round=z3.Store(w.round, a, after.round))


def could_take(w: World) -> Any:
    return z3.And(w.phase[a] == model.IDLE, new_token > w.register.token, z3.Not(w.register.happened))


def run_again_out_of_doubt(w: World) -> Step:
    return Step("mutant", z3.And(could_take(w), w.register.state == IN_DOUBT), taken(w, unsure=z3.BoolVal(True)))


def take_a_dead_lease(w: World) -> Step:
    dead = z3.And(w.register.state == STARTED, z3.Not(w.register.live))
    return Step("mutant", z3.And(could_take(w), dead), taken(w, begun=z3.BoolVal(False)))


def forget_the_doubt_on_takeover(w: World) -> Step:
    return Step("mutant", z3.And(could_take(w), w.register.state == IN_DOUBT), taken(w, begun=z3.BoolVal(False)))


def rotate_on_takeover(w: World) -> Step:
    doubted = z3.And(could_take(w), w.register.state == IN_DOUBT)
    return Step("mutant", doubted, taken(w, round=w.register.round + 1, unsure=z3.BoolVal(True)))


def take_with_the_same_token(w: World) -> Step:
    able = z3.And(w.phase[a] == model.IDLE, w.register.state == RELEASED, z3.Not(w.register.happened))
    return Step("mutant", z3.And(able, new_token == w.register.token), taken(w))


def take_although_it_happened(w: World) -> Step:
    able = z3.And(w.phase[a] == model.IDLE, new_token > w.register.token, w.register.state == IN_DOUBT)
    return Step("mutant", able, taken(w, unsure=z3.BoolVal(True)))


def settled(w: World, state: Any) -> World:
    return w._replace(register=w.register._replace(state=state), phase=z3.Store(w.phase, a, GONE))


def release_what_timed_out(w: World) -> Step:
    return Step(
        "mutant", z3.And(w.phase[a] == LATE, w.register.holder == a, w.register.state == STARTED), settled(w, RELEASED)
    )


def close_what_timed_out(w: World) -> Step:
    return Step(
        "mutant",
        z3.And(w.phase[a] == LATE, w.register.holder == a, w.register.state == STARTED),
        settled(w, model.CLOSED),
    )


def release_although_unsure(w: World) -> Step:
    held = z3.And(w.register.holder == a, w.register.state == STARTED)
    return Step("mutant", z3.And(w.phase[a] == DECLINED, held), settled(w, RELEASED))


def release_without_the_fence(w: World) -> Step:
    sure = z3.And(w.register.state == STARTED, z3.Not(w.register.unsure))
    return Step("mutant", z3.And(z3.Or(w.phase[a] == HOLDS, w.phase[a] == DECLINED), sure), settled(w, RELEASED))


def mark_without_the_fence(w: World) -> Step:
    after = w._replace(register=w.register._replace(begun=z3.BoolVal(True)), phase=z3.Store(w.phase, a, READY))
    return Step("mutant", z3.And(w.phase[a] == HOLDS, w.register.state == STARTED), after)


def throw_a_late_success_away(w: World) -> Step:
    return Step("mutant", w.phase[a] == DONE, w._replace(phase=z3.Store(w.phase, a, TOLD)))


def settle_what_is_settled(w: World) -> Step:
    return Step("mutant", w.register.state == model.COMPLETED, settled(w, model.CLOSED))


def let_a_decline_speak_for_all(w: World) -> Step:
    asked = z3.And(w.declined[w.register.round], w.register.state == IN_DOUBT)
    return Step("mutant", asked, w._replace(register=w.register._replace(state=RELEASED, round=w.register.round + 1)))


def keep_the_round_after_an_operators_word(w: World, kind: Kind, step: Step) -> Step:
    return step._replace(after=step.after._replace(register=step.after.register._replace(round=w.register.round)))


MUTANTS: list[tuple[str, Mutation, str]] = [
    ("opaque", besides(run_again_out_of_doubt), "run again out of doubt"),
    ("asks", besides(run_again_out_of_doubt), "absent is believed at once"),
    ("opaque", besides(take_a_dead_lease), "take on a dead lease"),
    ("opaque marked", besides(take_a_dead_lease), "take the begun"),
    ("keyed marked", besides(take_a_dead_lease), "take the unbegun although unsure"),
    ("keyed", besides(forget_the_doubt_on_takeover), "forget the doubt on takeover"),
    ("keyed", besides(rotate_on_takeover), "rotate the provider key on takeover"),
    ("repeatable", besides(take_with_the_same_token), "a token twice"),
    ("repeatable", besides(take_although_it_happened), "take although evidence says it happened"),
    ("opaque", besides(release_what_timed_out), "a timeout is not done"),
    ("opaque", besides(close_what_timed_out), "a timeout is a refusal"),
    ("keyed", besides(release_although_unsure), "release although unsure"),
    ("opaque marked", besides(release_without_the_fence), "no fence on a release"),
    ("opaque marked", besides(mark_without_the_fence), "no fence on the mark"),
    ("repeatable", besides(throw_a_late_success_away), "throw a late success away"),
    ("repeatable", besides(settle_what_is_settled), "settle what is settled"),
    ("keyed with lookup", besides(let_a_decline_speak_for_all), "let a decline speak for all"),
    (
        "asks",
        instead("operator settles released", keep_the_round_after_an_operators_word),
        "an operator keeps the round",
    ),
]


@pytest.mark.parametrize(("name", "mutated", "what"), MUTANTS, ids=[what for *_, what in MUTANTS])
def test_a_broken_move_breaks_the_proof(name, mutated, what):
    """Exactly the step that was changed leads out of the invariant."""
    broken = {"mutant"} if what != "an operator keeps the round" else {"operator settles released"}

    assert set(model.unproved(BY_NAME[name], mutated)) == broken
