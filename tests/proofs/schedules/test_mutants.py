"""The search has teeth: each rule of the protocol is taken out, one at a time, and the search must notice.

A mutant is a change to a function of core. The world it lives in is one in which the unchanged core keeps every
promise, which is checked first. `-s` prints the scenes looked at before the mutant was killed, and the length of the
story that kills it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from samekey.core import attempt as core_attempt
from samekey.core import next_step, recovery, register
from samekey.core.boundary import Absent, Asks, Boundary, Keyed, Kind, Opaque, Repeatable, parse_terms
from samekey.core.call import Answer, take
from samekey.core.commands import Begin, CallLookup, Open, Raised, Read, Settle, StoreCommand, Take, Testify
from samekey.core.envelope import decode
from samekey.core.errors import Fenced, InProgress
from samekey.core.policy import Policy
from samekey.core.record import Record
from samekey.core.states import Role, State
from tests.figures import figure
from tests.proofs.schedules.search import (
    PROMISES,
    Promise,
    Provider,
    closed_is_true,
    explore,
    fenced,
    one_answer,
    one_effect,
    released_is_true,
)
from tests.proofs.schedules.test_others import operator
from tests.proofs.schedules.world import look_in_the_books

attempt: Any = core_attempt  # whose imported names are patched too
Patch = Callable[[pytest.MonkeyPatch], None]
Steps = Generator[Any, Any, Any]
DEDUPS = Provider(dedups=True)
BELIEF = 60.0
SOUND: set[str] = set()  # the worlds in which the unchanged core was seen to keep its promises


@dataclass(frozen=True)
class Mutant:
    mutate: Patch
    breaks: str  # the promise that breaks first
    boundary: Boundary | tuple[Boundary, ...]
    provider: Provider = field(default_factory=Provider)
    effect: str | tuple[str, ...] = "charge"
    options: dict[str, Any] = field(default_factory=dict)
    unless: tuple[Promise, ...] = ()

    def play(self) -> Any:
        return explore(self.boundary, provider=self.provider, effect=self.effect, unless=self.unless, **self.options)


def rule(patch: pytest.MonkeyPatch, kind: type[StoreCommand], changed: Callable[..., Any]) -> None:
    """The register with another rule for this kind of command; `changed` is given what is there and the real rule."""
    real = register.apply

    def apply(record, command, moment) -> Any:
        if record is None or not isinstance(command, kind):
            return real(record, command, moment)
        return changed(record, command, moment, real)

    patch.setattr(register, "apply", apply)


def run_again_whatever_the_boundary_says(patch):
    real = attempt.recover

    def recover(call, record, look=None) -> Steps:
        if record.state is State.IN_DOUBT and parse_terms(record.boundary).kind is Kind.OPAQUE:
            return (yield from take(call, record))
        return (yield from real(call, record, look))

    patch.setattr(attempt, "recover", recover)


def believe_absent_at_once(patch):
    patch.setattr(recovery, "believed", lambda terms, *since: terms.believe_absent_after is not None)


def believe_absent_where_nobody_agreed(patch):
    patch.setattr(recovery, "believed", lambda *_: True)


def count_the_belief_from_the_answer(patch):
    real = recovery.ask

    def ask(call, record, terms, look=None) -> Steps:
        steps = real(call, record, terms, look)
        command = next(steps)
        while True:
            reply = yield command
            if isinstance(command, CallLookup) and isinstance(reply, Absent):
                now = yield from Read(record.key)
                if now is not None and recovery.believed(terms, -now.lease_left):
                    steps.close()
                    return (yield from recovery.run_again(call, now))
            try:
                command = steps.send(reply)
            except StopIteration as stop:
                return stop.value

    patch.setattr(recovery, "ask", ask)


def fence_by_token_alone(patch):
    patch.setattr(register, "same_fence", lambda record, seen: record.token == seen.token)


def no_fence(patch):
    patch.setattr(register, "same_fence", lambda *_: True)


def look_at_the_lease_instead_of_marking(patch):
    def sending(call, held) -> Steps:
        record = yield from Read(held.key)
        if record is None or record.fence != held.fence or not record.lease_live:
            raise Fenced("the hold is lost")
        return record

    patch.setattr(attempt, "sending", sending)


def mark_after_the_lease(patch):
    def begin(record, command, moment, real) -> Any:
        alive = record._replace(lease_until=moment.tick + 1)
        after = real(alive, command, moment)
        return record if after is alive else after._replace(lease_until=record.lease_until)

    def sending(call, held) -> Steps:
        return (yield from Begin(held))

    rule(patch, Begin, begin)
    patch.setattr(attempt, "sending", sending)


def obey_todays_boundary(patch):
    real = attempt.recover
    patch.setattr(attempt, "recover", lambda call, record: real(call, record._replace(boundary=call.terms_text)))


def release_although_unsure(patch):
    real = attempt.release
    patch.setattr(
        attempt, "release", lambda call, held, outcome, **how: real(call, held._replace(unsure=False), outcome)
    )


def let_go_although_unsure(patch):
    real = attempt.let_go
    patch.setattr(attempt, "let_go", lambda call, record: real(call, record._replace(unsure=False)))


def release_on_any_error(patch):
    patch.setattr(attempt, "doubt", lambda call, held, error: attempt.release(call, held, Raised(error)))


def answer_with_our_own_result(patch):
    real = attempt.too_late

    def too_late(call, held, record, state, result, outcome) -> Steps:
        if state is not State.COMPLETED or result is None:
            return (yield from real(call, held, record, state, result, outcome))
        yield from Testify(held.key, call.attempt, held.token, state, result, "")
        return Answer(decode(result), state, False, call.key.text, held.token, 1)

    patch.setattr(attempt, "too_late", too_late)


def throw_a_late_success_away(patch):
    def too_late(call, held, record, state, result, outcome) -> Steps:
        raise Fenced("too late")
        yield

    patch.setattr(attempt, "too_late", too_late)


def take_although_evidence_says_it_happened(patch):
    patch.setattr(Record, "happened", property(lambda record: None))


def rotate_the_provider_key_on_takeover(patch):
    def taken(record, command, moment, real) -> Any:
        after = real(record, command, moment)
        return after if after is record else after._replace(round=record.round + 1)

    rule(patch, Take, taken)


def rotate_although_unsure(patch):
    def settle(record, command, moment, real) -> Any:
        said_not_done = command.role is Role.HOLDER and command.error == "NotDone"
        return real(record, replace(command, next_round=True) if said_not_done else command, moment)

    rule(patch, Settle, settle)


def take_the_unbegun_although_unsure(patch):
    recover = attempt.recover

    def taken(record, command, moment, real) -> Any:
        sure = record._replace(unsure=False)
        after = real(sure, command, moment)
        return record if after is sure else after._replace(unsure=record.unsure or after.unsure)

    rule(patch, Take, taken)
    patch.setattr(attempt, "recover", lambda call, record: recover(call, record._replace(unsure=False)))


def take_the_begun(patch):
    recover = attempt.recover

    def taken(record, command, moment, real) -> Any:
        unbegun = record._replace(begun_at=None)
        after = real(unbegun, command, moment)
        return record if after is unbegun else after

    rule(patch, Take, taken)
    patch.setattr(attempt, "recover", lambda call, record: recover(call, record._replace(begun_at=None)))


def settle_what_is_settled(patch):
    patch.setattr(register, "may", lambda *_: True)


def leave_a_dead_lease_alone(patch):
    def recover(call, record) -> Steps:
        raise InProgress("held by another", key="", token=0, retry_after=1.0)
        yield

    patch.setattr(attempt, "recover", recover)


def forget_the_doubt_on_takeover(patch):
    def taken(record, command, moment, real) -> Any:
        after = real(record, command, moment)
        return after if after is record else after._replace(unsure=False)

    rule(patch, Take, taken)


def close_in_doubt_as_a_refusal(patch):
    def doubt(call, held, error) -> Steps:
        yield Settle(held, Role.HOLDER, State.CLOSED, by=call.attempt, error="TimeoutError")

    patch.setattr(attempt, "doubt", doubt)


def close_although_unsure(patch):
    real = attempt.close
    patch.setattr(attempt, "close", lambda call, held, error: real(call, held._replace(unsure=False), error))


def look_for_every_try_under_one_reference(patch):
    def settle(record, command, moment, real) -> Any:
        return real(record, replace(command, next_round=False), moment)

    rule(patch, Settle, settle)


def let_a_decline_speak_for_all(patch):
    real = recovery.write_down

    def write_down(call, record, verdict, role) -> Steps:
        return (yield from real(call, record._replace(unsure=False), verdict, role))

    patch.setattr(recovery, "write_down", write_down)


def run_again_up_to_the_last_second(patch):
    real = next_step.within_window
    for module in (next_step, recovery):
        patch.setattr(module, "within_window", lambda terms, record, _: real(terms, record, 0.0))


def look_at_the_window_only_before_the_take(patch):
    patch.setattr(recovery, "run_again_in_time", lambda call, terms, record: recovery.run_again(call, record))


def count_the_window_from_the_takeover(patch):
    def taken(record, command, moment, real) -> Any:
        after = real(record, command, moment)
        return after if after is record else after._replace(first_sent_at=moment.wall if command.sends else None)

    rule(patch, Take, taken)


def say_it_once(patch):
    def insist(call, command) -> Steps:
        return (yield from command)

    patch.setattr(attempt, "insist", insist)


def take_what_evidence_forbids_again_and_again(patch):
    real = attempt.recover
    patch.setattr(attempt, "recover", lambda call, record: real(call, record._replace(evidence=())))


def a_ttl_on_a_live_claim(patch):
    real = register.expired

    def expired(record, moment) -> bool:
        return real(record, moment) or (record.state is State.STARTED and not register.lease_live(record, moment))

    patch.setattr(register, "expired", expired)


def a_claim_committed_together_with_its_effect(patch):
    def opened(record, command, moment, real) -> Any:
        return real(None if record.state is State.STARTED else record, command, moment)

    rule(patch, Open, opened)


def keep_the_reference_after_an_operators_word(patch):
    def settle(record, command, moment, real) -> Any:
        return real(record, replace(command, next_round=False) if command.role is Role.OPERATOR else command, moment)

    rule(patch, Settle, settle)


def an_inner_not_done_releases_the_outer_key(patch):
    real = Policy.meaning
    patch.setattr(Policy, "meaning", lambda policy, error, *, inner: real(policy, error, inner=False))


ASKS, BELIEVES = Asks(look_in_the_books), Asks(look_in_the_books, believe_absent_after=BELIEF)
FORGETS, FORGETS_LATER = Provider(dedups=True, retention=45.0), Provider(dedups=True, retention=75.0)
BELIEVES_MARKED = Asks(look_in_the_books, believe_absent_after=BELIEF, marked=True)

MUTANTS = [
    Mutant(run_again_whatever_the_boundary_says, "one_effect", Opaque()),
    Mutant(believe_absent_at_once, "one_effect", BELIEVES),
    Mutant(believe_absent_where_nobody_agreed, "one_effect", ASKS),
    Mutant(count_the_belief_from_the_answer, "one_effect", BELIEVES),
    Mutant(
        fence_by_token_alone,
        "fenced",
        Opaque(),
        options={"crashes": 0, "expiries": 0, "losses": 1},
        unless=tuple(one for one in PROMISES if one is not fenced),
    ),
    Mutant(no_fence, "fenced", Keyed(), DEDUPS),
    Mutant(look_at_the_lease_instead_of_marking, "one_effect", Opaque(marked=True)),
    Mutant(mark_after_the_lease, "one_effect", BELIEVES_MARKED),
    Mutant(obey_todays_boundary, "one_effect", (Opaque(), Keyed()), DEDUPS),
    Mutant(release_although_unsure, "released_is_true", Keyed(), DEDUPS, ("charge", "give up")),
    Mutant(let_go_although_unsure, "released_is_true", Keyed(), DEDUPS, options={"cancels": 1, "crashes": 0}),
    Mutant(release_on_any_error, "released_is_true", Opaque()),
    Mutant(answer_with_our_own_result, "one_answer", Repeatable()),
    Mutant(throw_a_late_success_away, "evidence_kept", Keyed(), DEDUPS),
    Mutant(take_although_evidence_says_it_happened, "evidence_heard", Keyed(), DEDUPS),
    Mutant(rotate_the_provider_key_on_takeover, "one_effect", Keyed(), DEDUPS),
    Mutant(
        rotate_although_unsure,
        "one_effect",
        Keyed(keeps_declines=True),
        Provider(dedups=True, keeps_declines=True),
        ("charge", "give up", "charge"),
    ),
    Mutant(take_the_unbegun_although_unsure, "one_effect", (Keyed(marked=True), Keyed(marked=True), Opaque()), DEDUPS),
    Mutant(take_the_begun, "one_effect", Opaque(marked=True)),
    Mutant(settle_what_is_settled, "settled_is_final", Repeatable()),
    Mutant(leave_a_dead_lease_alone, "heals", Opaque()),
    Mutant(forget_the_doubt_on_takeover, "released_is_true", Keyed(), DEDUPS, ("charge", "give up")),
    Mutant(close_in_doubt_as_a_refusal, "closed_is_true", Opaque()),
    Mutant(close_although_unsure, "closed_is_true", Keyed(), DEDUPS, ("charge", "refuse")),
    Mutant(look_for_every_try_under_one_reference, "released_is_true", ASKS, Provider(broke=True)),
    Mutant(
        let_a_decline_speak_for_all,
        "released_is_true",
        (Keyed(lookup=look_in_the_books), Keyed(lookup=look_in_the_books), ASKS),
        Provider(dedups=True, broke=True),
        options={"crashes": 0},
    ),
    Mutant(run_again_up_to_the_last_second, "one_effect", Keyed(window=45.0), FORGETS),
    Mutant(look_at_the_window_only_before_the_take, "one_effect", Keyed(window=75.0), FORGETS_LATER),
    Mutant(count_the_window_from_the_takeover, "one_effect", Keyed(window=75.0), FORGETS_LATER),
    Mutant(say_it_once, "evidence_kept", Keyed(), DEDUPS, options={"crashes": 0, "outages": 1}),
    Mutant(a_ttl_on_a_live_claim, "one_effect", Opaque()),
    Mutant(a_claim_committed_together_with_its_effect, "one_effect", Opaque()),
    Mutant(
        keep_the_reference_after_an_operators_word,
        "released_is_true",
        ASKS,
        Provider(broke=True),
        options={"others": (("O", operator),), "crashes": 1, "expiries": 0, "ages": 0},
    ),
    Mutant(an_inner_not_done_releases_the_outer_key, "released_is_true", Opaque(), effect="nest"),
    Mutant(
        take_what_evidence_forbids_again_and_again,
        "heals",
        Opaque(marked=True),
        options={"crashes": 1, "expiries": 0, "timeouts": 0, "losses": 1},
        unless=(one_effect, one_answer, released_is_true, closed_is_true),
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.mutate.__name__)
def test_the_search_kills_every_mutant(mutant, monkeypatch):
    """Nothing is found before the rule is taken out, and something after."""
    world = replace(mutant, mutate=str, breaks="")
    if repr(world) not in SOUND:
        SOUND.add(repr(world))
        mutant.play().check()
    mutant.mutate(monkeypatch)
    report = mutant.play()

    assert report.violations, "this mutant survives: is the rule needed?"
    violation = report.violations[0]
    name = mutant.mutate.__name__.replace("_", " ")
    figure(f"mutant, by search: {name}", f"{report.scenes} scenes, {len(violation.choices)} moves, {violation.promise}")
    assert violation.promise == mutant.breaks, violation.explain()
    assert violation.explain().count("\n") == len(violation.choices)
