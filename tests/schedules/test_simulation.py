"""Real guards in a world of faults: one seed, one run.

The budget: SAMEKEY_RUNS, or a million with SAMEKEY_BUDGET=full (`make proof`), else what fits into a few seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from samekey import held, performing
from samekey.core import attempt as core_attempt
from samekey.core import register
from samekey.testing._simulation import BOUNDARIES, Simulation
from samekey.testing.simulate import play, shrink, simulate
from tests.schedules import test_mutants as mutants

PROOF = os.environ.get("SAMEKEY_BUDGET") == "full"
RUNS = int(os.environ.get("SAMEKEY_RUNS", "1000000" if PROOF else "5000"))
SEEDS_TO_KILL_MAX = 100_000 if PROOF else 6_000

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
    "provider: Absent",
    "provider: Declined",
    "provider: Happened",
)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_no_promise_is_broken_in_any_run():
    """And what makes a run worth playing happened often enough."""
    *_, total = simulate(range(RUNS), jobs=2 if PROOF else 1)
    print(total)

    assert not total.broken, shrink(min(total.broken)).explain()
    assert total.runs == RUNS
    rare = [what for what in SOMETIMES if total.reached[what] < RUNS / 1000]
    assert not rare


def test_a_seed_is_a_run():
    """In every process, whatever the seed of its hashes: the same story, to the last word."""
    code = "from samekey.testing.simulate import play; print([play(seed, told=True).story for seed in range(40)])"
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


def test_a_broken_promise_shrinks_to_a_short_story(monkeypatch):
    """The shrunk story still breaks it, is shorter, and says how to see it again."""
    mutants.release_on_any_error(monkeypatch)
    seed = next(seed for seed in range(2000) if play(seed, boundary="opaque").broken)
    whole, short = play(seed, boundary="opaque", told=True), shrink(seed, boundary="opaque")

    assert short.broken == whole.broken
    assert len(short.story) <= min(len(whole.story), 25)
    assert "BROKEN" in short.explain()
    assert short.explain().endswith(f"--seed {seed}" if seed % len(BOUNDARIES) == 0 else "--boundary 'opaque'")


# -- the simulation has teeth ------------------------------------------------------------------------------------------


def leases_by_the_clients_clock(patch):
    def moment(stage) -> register.Moment:
        return register.Moment(stage.monotonic(), stage.monotonic(), "", stage.scene.token + 1)

    patch.setattr(Simulation, "moment", moment)


def interrupted_is_forgotten(patch):
    patch.setattr(performing, "last_word", lambda call, command: iter(()))


def marks_by_the_lease(patch):
    mutants.look_at_the_lease_instead_of_marking(patch)
    patch.setattr(held, "sending", core_attempt.sending)


def marks_after_the_lease(patch):
    mutants.mark_after_the_lease(patch)
    patch.setattr(held, "sending", core_attempt.sending)


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
]


@pytest.mark.slow
@pytest.mark.parametrize(("mutate", "boundary"), KILLED, ids=[mutate.__name__ for mutate, _ in KILLED])
def test_the_simulation_kills(mutate, boundary, monkeypatch):
    """With the rule taken out some seed tells; `-s` prints how many it took."""
    mutate(monkeypatch)
    for seed in range(SEEDS_TO_KILL_MAX):
        run = play(seed, boundary=boundary)
        if run.broken:
            print(f"{mutate.__name__.replace('_', ' '):44} {run.broken:18} {seed + 1:6} seeds ({boundary})")
            return
    pytest.fail(f"survives {SEEDS_TO_KILL_MAX} seeds of {boundary}")
