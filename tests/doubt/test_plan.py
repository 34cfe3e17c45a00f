"""A plan: reviewed by a person, carried out once for each charge, whoever applies it and however often."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from samekey import Guard, Policy
from samekey.core.errors import Misconfigured
from samekey.core.states import State
from samekey.doubt.duckdb import Case, Outcome
from samekey.doubt.plan import apply_plan, read_plan, review, write_plan
from samekey.ops.story import mark
from samekey.stores.memory import MemoryStore
from tests.cli.conftest import Shell

APP = """
import os
import time
from pathlib import Path
from samekey import Absent, Asks, Guard, Happened, Policy

LEDGER = Path({ledger!r})
guard = Guard({store!r}, policy=Policy(lease=1, patience=0.2))

def lines():
    return LEDGER.read_text().split("\\n") if LEDGER.exists() else []

def refund(step):
    with open(LEDGER, "a") as file:
        file.write(f"{{step.charge}} {{step.provider_key}}\\n")
    time.sleep(0.02)

def books(reference):
    by_hand = any(line == reference + " by-hand" for line in lines())
    return (0 if by_hand else 20000, False)

def find(record):
    found = any(line.endswith(record.provider_key()) for line in lines())
    return Happened({{"refunded": True, "why": ""}}) if found else Absent()

boundary = Asks(find, believe_absent_after=1)
"""


def doubled(number: int) -> Case:
    return Case("doubled", "refund", ("charge", f"o-{number}", None), "", f"ch_{number}b", f"ch_{number}", 20000, "EUR")


def planned(tmp_path: Path, cases: list[Case]) -> Path:
    statement, plan = tmp_path / "s.csv", tmp_path / "plan.jsonl"
    statement.write_text("a\n")
    write_plan(plan, Outcome(cases=cases), pack="stripe", statement=[str(statement)], made_at=1.0)
    return plan


def test_only_reviewed_steps_are_carried_out(tmp_path):
    plan, sent = planned(tmp_path, [doubled(1), doubled(2)]), list[str]()
    with Guard(MemoryStore()) as guard:
        first = apply_plan(guard, plan, refund=lambda step: sent.append(step.charge))
        assert first.counts == {"not reviewed": 2}
        assert review(plan, "ann", [1]) == 1
        second = apply_plan(guard, plan, refund=lambda step: sent.append(step.charge))

    assert second.counts == {"refunded": 1, "not reviewed": 1}
    assert sent == ["ch_1b"]


def test_another_plan_for_the_same_charge_refunds_nothing(tmp_path):
    """The key is the charge, never the step or the plan."""
    sent: list[str] = []
    with Guard(MemoryStore()) as guard:
        for number in range(2):
            folder = tmp_path / str(number)
            folder.mkdir()
            plan = planned(folder, [*[doubled(9)] * number, doubled(1)])
            review(plan, "ann")
            applied = apply_plan(guard, plan, refund=lambda step: sent.append(step.charge))

    assert sorted(sent) == ["ch_1b", "ch_9b"]
    assert applied.counts["refunded before"] == 1


def test_a_refund_by_hand_is_recognised(tmp_path):
    plan, sent = planned(tmp_path, [doubled(1), doubled(2)]), list[str]()
    review(plan, "ann")
    with Guard(MemoryStore()) as guard:
        applied = apply_plan(
            guard,
            plan,
            refund=lambda step: sent.append(step.charge),
            books=lambda reference: (0 if reference == "ch_1b" else 20000, False),
        )

    assert applied.counts == {"by_hand": 1, "refunded": 1}
    assert sent == ["ch_2b"]


def test_adopt_and_release_write_the_record_under_the_reviewers_name(tmp_path):
    with Guard(MemoryStore(), policy=Policy(lease=0.01)) as guard:

        def time_out() -> None:
            raise TimeoutError

        for key in ("o-1", "o-2", "o-3"):
            with pytest.raises(TimeoutError):
                guard.run("charge", time_out, key=key, payload={})
        marks: dict[str, Any] = {key: mark(_there(guard, key)) for key in ("o-1", "o-2", "o-3")}
        plan = planned(
            tmp_path,
            [
                Case("adopt", "adopt", ("charge", "o-1", None), marks["o-1"], "ch_1"),
                Case("not_landed", "release", ("charge", "o-2", None), marks["o-2"]),
                Case("adopt", "adopt", ("charge", "o-3", None), "another mark", "ch_3"),
            ],
        )
        review(plan, "ann")
        applied = apply_plan(guard, plan)

        assert applied.counts == {"adopted": 1, "released": 1, "problem": 1}
        assert _there(guard, "o-1").state is State.COMPLETED
        assert _there(guard, "o-2").state is State.RELEASED
        assert _there(guard, "o-3").state is State.IN_DOUBT
        assert [entry.who for entry in guard.store.audit(10)] == ["ann", "ann"]


def _there(guard: Guard, key: str) -> Any:
    record = guard.peek("charge", key)
    assert record is not None
    return record


@pytest.mark.parametrize("text", ["", "{}", '{"plan": 2}\n', "no json\n"])
def test_what_is_no_plan_is_refused(tmp_path, text):
    path = tmp_path / "plan"
    path.write_text(text)
    with pytest.raises(Misconfigured, match="no plan"):
        read_plan(path)


@pytest.mark.slow
def test_killed_in_the_middle_twice_and_by_two_at_once_it_refunds_once(tmp_path):
    """Two appliers at a time, killed at random moments, until one of them comes to the end."""
    shell, charges = Shell(tmp_path / "keys.db"), 24
    ledger = tmp_path / "ledger"
    (tmp_path / "shop.py").write_text(APP.format(ledger=str(ledger), store=shell.store))
    ledger.write_text("ch_3b by-hand\n")
    plan = planned(tmp_path, [doubled(number) for number in range(charges)])
    review(plan, "ann")
    words = ("reconcile", "apply", str(plan), "--app", "shop:guard", "--refund", "shop:refund")
    command = [
        sys.executable,
        "-m",
        "samekey",
        *words,
        "--books",
        "shop:books",
        "--boundary",
        "shop:boundary",
        "--json",
    ]
    environment = {**shell.environment, "PYTHONPATH": f"{shell.environment['PYTHONPATH']}{os.pathsep}{tmp_path}"}
    chance, kills, ends = random.Random(7), 0, list[dict[str, Any]]()
    for round_ in range(40):
        appliers = [
            subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            for _ in range(2)
        ]
        if round_ < 4:
            before = len(ledger.read_text())
            deadline = time.monotonic() + 30
            while len(ledger.read_text()) == before and time.monotonic() < deadline:
                time.sleep(0.005)  # until the first of them refunds
            time.sleep(chance.random() * 0.2)
            for applier in appliers:
                applier.kill()
                kills += 1
        ends = [json.loads(stdout) for applier in appliers if (stdout := applier.communicate(timeout=120)[0])]
        left = [one for one in ends if not one["problems"] and set(one["counts"]) <= {"done before"}]
        if left:
            break
        time.sleep(1.1)  # the leases of those that were killed

    refunds = Counter(line.split()[0] for line in ledger.read_text().splitlines())
    assert kills >= 8
    assert refunds == {f"ch_{number}b": 1 for number in range(charges)}
    assert ends
