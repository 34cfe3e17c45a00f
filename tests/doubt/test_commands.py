"""What workers leave, for people: `ls` and `resolve` by what a worker wrote, and `samekey reconcile`."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from samekey import Absent, Asks, Guard, Happened, Opaque, Policy, StillUnknown, current
from samekey.core.states import State
from samekey.doubt import Worker
from samekey.doubt.duckdb import Case, Outcome
from samekey.doubt.html_report import as_html
from samekey.ops import Ops
from samekey.stores.sqlite import SqliteStore
from tests.cli.conftest import Shell
from tests.doubt.helpers import Clock

STRIPE = (
    *("balance_transaction_id", "charge_id", "payment_metadata[samekey]", "customer_facing_amount"),
    *("customer_facing_currency", "created_utc", "reporting_category"),
)
VERDICTS = {"o-absent": Absent(), "o-unknown": StillUnknown(), "o-found": Happened("r")}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "keys.db")


@pytest.fixture
def guard(shell: Shell) -> Iterator[Guard]:
    """Doubts that a worker has looked at: some are parked, and each has its verdict."""
    clock = Clock()
    clock.now = time.time() - 60
    store: Any = SqliteStore(shell.path)
    store._wall = store._tick = clock
    with Guard(store, policy=Policy(lease=10)) as guard:
        guard.declare("charge", boundary=Asks(lambda record: VERDICTS[record.key.text]))
        guard.declare("mail", boundary=Opaque())
        for key in VERDICTS:
            doubt(guard, "charge", key, Asks(lambda record: VERDICTS[record.key.text]))
        for key in ("m-1", "m-2"):
            doubt(guard, "mail", key, Opaque())
        clock.passes(11)
        Worker(guard).run_once()
        clock.now = time.time()
        doubt(guard, "mail", "m-new", Opaque())  # no worker has seen it yet
        yield guard


def doubt(guard: Guard, name: str, key: str, boundary: Any) -> None:
    def effect() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        guard.run(name, effect, key=key, payload={}, boundary=boundary)


def keys_of(result: Any) -> list[str]:
    return sorted(json.loads(line)["key"] for line in result.stdout.splitlines())


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (("--verdict", "absent"), ["o-absent"]),
        (("--verdict", "StillUnknown"), ["o-unknown"]),
        (("--verdict", "happened"), []),
        (("--parked",), ["m-1", "m-2"]),
        (("--parked", "--verdict", "absent"), []),
    ],
)
def test_ls_finds_what_a_worker_wrote(shell, guard, words, keys):
    result = shell("ls", *words, "--json")

    assert keys_of(result) == keys


def test_resolve_writes_all_parked_doubts_and_no_other(shell, guard):
    sure = ("--not-done", "--why", "no mail left the server", "--who", "ann", "--yes")
    refused = shell("resolve", "--parked", *sure, "3")
    result = shell("resolve", "--parked", *sure, "2")

    assert refused.exit_code == 5
    assert (result.exit_code, result.stdout) == (0, "2 of 2 records are now released, says ann\n")
    assert [guard.peek("mail", key).state for key in ("m-1", "m-2", "m-new")] == [
        *(State.RELEASED, State.RELEASED),
        State.IN_DOUBT,
    ]
    assert guard.peek("charge", "o-absent").state is State.IN_DOUBT


# -- reconcile ----------------------------------------------------------------------------------------------------


@pytest.fixture
def statement(shell: Shell, tmp_path: Path) -> Path:
    """Three charges of ours; the second was charged twice, and the third is not on the books."""
    lines = []
    with Guard(SqliteStore(shell.path)) as guard:
        for number in range(3):

            def charge(number: int = number) -> str:
                held = current()
                held.note(provider_ref=f"ch_{number}", amount_minor=20000, currency="EUR")
                lines.append((f"ch_{number}", held.provider_key()))
                return f"ch_{number}"

            guard.run("charge", charge, key=f"o-{number}", payload={}, boundary=Opaque())
    lines[2] = ("ch_again", lines[1][1])
    path = tmp_path / "may.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(STRIPE)
        now = datetime.now(UTC)
        for number, (ref, key) in enumerate(lines):
            at = f"{now + timedelta(seconds=number):%Y-%m-%d %H:%M:%S}"
            writer.writerow((f"txn_{number}", ref, key, "200.00", "eur", at, "charge"))
        writer.writerow(("txn_end", "", "", "0.50", "eur", f"{now + timedelta(days=10):%Y-%m-%d %H:%M:%S}", "fee"))
    return path


def test_reconcile_finds_the_double_and_writes_a_plan_a_page_and_findings(shell, statement, tmp_path):
    plan, page = tmp_path / "plan.jsonl", tmp_path / "may.html"
    words = ("reconcile", "--statement", str(statement), "--map", "stripe", "--operation", "charge")
    result = shell(*words, "--plan", str(plan), "--html", str(page), "--json")

    printed = json.loads(result.stdout)
    assert (result.exit_code, printed["clean"], printed["steps"]) == (1, False, 1)
    assert (printed["counts"]["matched"], printed["counts"]["doubled"], printed["counts"]["missing_there"]) == (1, 1, 1)
    steps = [json.loads(line) for line in plan.read_text().splitlines()][1:]
    assert [step["charge"] for step in steps if step["action"] == "refund"] == ["ch_again"]
    with Guard(SqliteStore(shell.path)) as guard:
        kinds = {finding.kind for finding in Ops(guard.store).findings.list()}
    assert "reconcile-doubled" in kinds
    text = page.read_text()
    assert "Some cases need an action." in text
    assert "<td>doubled<td>refund<td>charge o-1<td>ch_again<td>20000 EUR" in text
    assert "o-0" not in text  # matched: only counted


def test_a_statement_that_fits_is_fine(shell, statement, tmp_path):
    rows = statement.read_text().splitlines()
    rows = [row.replace("ch_again", "ch_2") if "ch_again" in row else row for row in rows]
    with Guard(SqliteStore(shell.path)) as guard:
        record = guard.peek("charge", "o-2")
        wrong = guard.peek("charge", "o-1")
        assert record is not None
        assert wrong is not None
        rows = [row.replace(wrong.provider_key(), record.provider_key()) if "ch_2" in row else row for row in rows]
    statement.write_text("\n".join(rows) + "\n")
    result = shell("reconcile", "--statement", str(statement), "--map", "stripe", "--operation", "charge")

    assert result.exit_code == 0
    assert result.stdout.split() == ["matched", "3"]


@pytest.mark.parametrize(
    "words",
    [(), ("--statement", "x.csv"), ("--statement", "x.csv", "--map", "stripe", "--operation", "c", "--ledger", "l")],
)
def test_reconcile_says_what_it_needs(shell, words):
    result = shell("reconcile", *words)

    assert result.exit_code == 2
    assert "give" in result.stderr


def test_the_page_escapes_what_it_shows_and_is_bounded():
    cases = [
        Case("doubled", "refund", ("<b>", "k&1", None), head="<script>", minor=5, currency="EUR", evidence=("<i>",))
    ]
    text = as_html(Outcome({"doubled": 1001}, cases * 1001, 0.0), title="<title>")

    assert "<script>" not in text
    assert "&lt;b&gt; k&amp;1" in text
    assert "<title>&lt;title&gt;</title>" in text
    assert text.count("<td>refund") == 1000
    assert "1 more are in the plan" in text
    assert "Nothing needs an action." in as_html(Outcome(), title="may")
