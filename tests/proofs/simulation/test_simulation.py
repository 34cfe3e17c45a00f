"""Real guards in a world of faults: one seed, one run.

The budget: SAMEKEY_RUNS, or a million with SAMEKEY_BUDGET=full (`make proof`), else what fits into a few seconds.
"""

from __future__ import annotations

import importlib
import itertools
import math
import os
import pkgutil
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import samekey.guard
from samekey import loops
from samekey.core import attempt as core_attempt
from samekey.core import register
from samekey.core.layers import FRONT_TTL_SECONDS, Front, Look
from samekey.core.states import State
from samekey.guard import claiming, hold
from tests.figures import figure
from tests.proofs.schedules import test_mutants as mutants
from tests.proofs.simulate import boundary_of, layered_of, play, shrink, simulate
from tests.proofs.simulation.durable import Durable
from tests.proofs.simulation.stepping import stepped
from tests.stores.memory_front import MemoryFront

PROOF = os.environ.get("SAMEKEY_BUDGET") == "full"
RUNS = int(os.environ.get("SAMEKEY_RUNS", "1000000" if PROOF else "5000"))
SEEDS_TO_KILL_MAX = 100_000 if PROOF else 8_000

SOMETIMES = (
    "Z: InDoubt",
    "Z: NotDone",
    "Z: Refused",
    "Z: completed",
    "a caller is cancelled",
    "a caller: Fenced",
    "a caller: InDoubt",
    "a caller: InProgress",
    "a caller: StoreUnavailable",
    "a caller: TimeoutError",
    "a client crashes",
    "a failover loses writes",
    "a worker: adopted",
    "a worker: asked",
    "a worker: completed",
    "a worker: parked",
    "a worker: released",
    "provider: Absent",
    "provider: Declined",
    "provider: Happened",
    "freed, and the front was told",
    "the front could not be told",
    "the front forgets everything",
    "the front goes back in time",
    "the front is away",
)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_no_promise_is_broken_in_any_run():
    """And what makes a run worth playing happened often enough."""
    *_, total = simulate(range(RUNS), jobs=2 if PROOF else 1)
    figure("simulation", total)

    assert not total.broken, shrink(min(total.broken)).explain()
    assert total.runs == RUNS
    rare = [what for what in SOMETIMES if total.reached[what] < RUNS / 1000]
    assert not rare


def test_a_seed_is_a_run():
    """In every process, whatever the seed of its hashes: the same story, to the last word."""
    code = "from tests.proofs.simulate import play; print([play(seed, told=True).story for seed in range(40)])"
    told = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            env=os.environ | {"PYTHONHASHSEED": str(number)},
            capture_output=True,
            check=True,
        ).stdout
        for number in (1, 2)
    ]

    assert told[0] == told[1]
    assert len(told[0]) > 1000


# Of samekey.guard: transactions, batches, counts, and callers that give up on the store. The search plays what such a
# caller leaves: a command that is carried out at any later time, and a claim that is withdrawn meanwhile.
NOT_PLAYED = {"adapter_batches", "asking", "atomic", "batch", "bookkeeping", "deadline", "settling"}


def test_every_loop_and_clock_of_the_guard_is_stepped():
    """A module that takes the real loop or the real clock would not be played at all."""
    steps: Any = SimpleNamespace(new_attempt=None)
    replaced = {(module.__name__, name) for module, name, _ in stepped(steps)}
    found = set()
    for one in pkgutil.iter_modules(samekey.guard.__path__, "samekey.guard."):
        module = importlib.import_module(one.name)
        used = {"running": loops.running, "time": time}
        found |= {(one.name, name) for name, real in used.items() if getattr(module, name, None) is real}

    assert {(name, what) for name, what in found - replaced if name.rpartition(".")[2] not in NOT_PLAYED} == set()


def test_a_broken_promise_shrinks_to_a_short_story(monkeypatch):
    """The shrunk story still breaks it, is shorter, and says how to see it again."""
    mutants.release_on_any_error(monkeypatch)
    seed = next(seed for seed in range(2000) if play(seed, boundary="opaque", layered=False).broken)
    whole = play(seed, boundary="opaque", layered=False, told=True)
    short = shrink(seed, boundary="opaque", layered=False)

    assert short.broken == whole.broken
    assert len(short.story) <= min(len(whole.story), 25)
    assert "BROKEN" in short.explain()
    again = f"--seed {seed}"
    again += "" if boundary_of(seed) == "opaque" else " --boundary 'opaque'"
    again += " --no-layered" if layered_of(seed) else ""
    assert short.explain().endswith(again)


# -- the simulation has teeth ------------------------------------------------------------------------------------------


def leases_by_the_clients_clock(patch):
    def moment(durable) -> register.Moment:
        now = durable._stage.monotonic()
        return register.Moment(now, now, "", durable.token + 1)

    patch.setattr(Durable, "moment", moment)


def interrupted_is_forgotten(patch):
    patch.setattr(claiming, "last_word", lambda call, command: iter(()))


def marks_by_the_lease(patch):
    mutants.look_at_the_lease_instead_of_marking(patch)
    patch.setattr(hold, "sending", core_attempt.sending)


def marks_after_the_lease(patch):
    mutants.mark_after_the_lease(patch)
    patch.setattr(hold, "sending", core_attempt.sending)


def run_after_a_failover_without_asking(patch):
    patch.setattr(core_attempt, "ask_before_first_run", lambda call, held: iter(()))


# -- with a front


def a_fast_path_that_skips_the_durable_store(patch):
    """The front says go: whoever finds nothing there, or a hold, takes it for its own."""
    real = Front._open

    def says_go(front, command):
        sight = yield Look(command.key.digest)
        record = None if sight is None else front.answer(command.key, sight)
        if record is not None and record.state is State.STARTED:
            return record.changed(attempt=command.attempt)
        return (yield from real(front, command))

    patch.setattr(Front, "_open", says_go)


def a_free_that_tells_the_front_nothing(patch):
    def forgets_to_tell(front, command):
        return (yield from command)

    patch.setattr(Front, "_take_back", forgets_to_tell)


def a_word_dated_when_it_is_told(patch):
    """A time to live, as caches have it: counted from the moment of writing, and no date in the word itself."""
    real, read = MemoryFront.put, Front.answer

    def put(memory, digest, word, until):
        real(memory, digest, word, memory._clock() + FRONT_TTL_SECONDS)

    def answer(front, key, sight):
        with pytest.MonkeyPatch.context() as undated:
            undated.setattr(front, "front_ttl", math.inf)
            return read(front, key, sight)

    patch.setattr(MemoryFront, "put", put)
    patch.setattr(Front, "answer", answer)


def a_late_word_over_a_newer_one(patch):
    def put(memory, digest, word, until):
        if until > memory._clock():
            memory.words[digest] = (word, until)

    patch.setattr(MemoryFront, "put", put)


def a_seal_that_outlives_a_failover(patch):
    real = Front.__init__
    patch.setattr(Front, "__init__", lambda front, incarnation, ttl: real(front, "any", ttl))


KILLED: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (mutants.run_again_whatever_the_boundary_says, "opaque"),
    (mutants.believe_absent_at_once, "asks, believes"),
    (mutants.believe_absent_where_nobody_agreed, "asks"),
    (mutants.fence_by_token_alone, "opaque"),
    (mutants.no_fence, "keyed"),
    (marks_by_the_lease, "opaque marked"),
    (marks_after_the_lease, "asks, believes, marked"),
    (mutants.release_although_unsure, "keyed"),
    (mutants.let_go_although_unsure, "keyed"),
    (mutants.release_on_any_error, "opaque"),
    (mutants.answer_with_our_own_result, "repeatable"),
    (mutants.throw_a_late_success_away, "keyed"),
    (mutants.take_although_evidence_says_it_happened, "keyed"),
    (mutants.rotate_the_provider_key_on_takeover, "keyed"),
    (mutants.rotate_although_unsure, "keyed, kept declines"),
    (mutants.take_the_begun, "opaque marked"),
    (mutants.settle_what_is_settled, "repeatable"),
    (mutants.leave_a_dead_lease_alone, "opaque"),
    (mutants.forget_the_doubt_on_takeover, "keyed"),
    (mutants.close_in_doubt_as_a_refusal, "opaque"),
    (mutants.close_although_unsure, "keyed"),
    (mutants.look_for_every_try_under_one_reference, "asks"),
    (mutants.a_ttl_on_a_live_claim, "opaque"),
    (mutants.a_claim_committed_together_with_its_effect, "opaque"),
    (leases_by_the_clients_clock, "asks, believes"),
    (interrupted_is_forgotten, "repeatable"),
    (mutants.an_inner_not_done_releases_the_outer_key, "opaque"),
    (run_after_a_failover_without_asking, "asks"),
    (run_after_a_failover_without_asking, "asks, believes, marked"),
]
KILLED_LAYERED: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (a_fast_path_that_skips_the_durable_store, "opaque"),
    (a_free_that_tells_the_front_nothing, "keyed"),
    (a_word_dated_when_it_is_told, "opaque"),
    (a_late_word_over_a_newer_one, "opaque"),
    (a_seal_that_outlives_a_failover, "asks"),
]


# Where the seed that kills a rare one was found last: a short run starts a little before it, and then at zero.
FOUND = {
    "a_seal_that_outlives_a_failover": 37077,
    "a_word_dated_when_it_is_told": 2555,
    "interrupted_is_forgotten": 20571,
    "settle_what_is_settled": 7907,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutate", "boundary", "layered"),
    [
        pytest.param(mutate, boundary, layered, id=f"{mutate.__name__}-{boundary}")
        for mutants, layered in ((KILLED, False), (KILLED_LAYERED, True))
        for mutate, boundary in mutants
    ],
)
def test_the_simulation_kills(mutate, boundary, layered, monkeypatch):
    """With the rule taken out some seed tells; `-s` prints how many it took."""
    mutate(monkeypatch)
    near = 0 if PROOF else max(0, FOUND.get(mutate.__name__, 0) - 50)
    for seed in itertools.chain(range(near, near + SEEDS_TO_KILL_MAX), range(near)):
        run = play(seed, boundary=boundary, layered=layered)
        if run.broken:
            world = f"{boundary}, layered" if layered else boundary
            name = mutate.__name__.replace("_", " ")
            figure(f"mutant, by simulation: {name}", f"{seed + 1} seeds, {run.broken} ({world})")
            return
    pytest.fail(f"survives {SEEDS_TO_KILL_MAX} seeds of {boundary}")
