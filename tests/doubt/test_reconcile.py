"""Reconciliation: every planted fault is found under its category, and nothing is invented."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from samekey.core.errors import Misconfigured
from samekey.doubt.duckdb import Books, Ours, Outcome
from samekey.doubt.pack import StatementMap, load_pack, statement_map

DAY = 86400.0
START = 1_700_000_000.0
MAP = statement_map(
    "test",
    {
        **{name: name for name in ("line", "ref", "prior", "our_key", "party", "payout", "auth", "type")},
        **{"amount": "amount", "currency": "currency", "at": "when"},
        "types": {one: one for one in ("charge", "capture", "refund", "chargeback", "void", "fee", "payout")},
    },
    {"ISK": 2},
)
COLUMNS = ("line", "ref", "prior", "our_key", "party", "amount", "currency", "when", "type", "payout", "auth")


class Plant:
    """Both sides: records, and lines of a statement."""

    def __init__(self) -> None:
        self.records: list[Ours] = []
        self.lines: list[dict[str, Any]] = []

    def record(self, number: int, **facts: Any) -> Ours:
        usual = {
            **{"operation": "charge", "key": f"o-{number}", "tenant": None, "state": "completed"},
            **{"ref": f"ch_{number}", "our_key": f"k_{number}", "party": f"p_{number}", "minor": 20000},
            **{"currency": "EUR", "at": START + number, "mark": f"m-{number}"},
        }
        one = Ours(**{**usual, **facts})
        self.records.append(one)
        return one

    def line(self, number: int, **facts: Any) -> None:
        usual = {
            **{"line": f"t_{len(self.lines)}", "ref": f"ch_{number}", "our_key": f"k_{number}", "party": f"p_{number}"},
            **{"amount": "200.00", "currency": "EUR", "when": START + number + 3, "type": "charge"},
        }
        self.lines.append({**usual, **facts})

    def compare(self, tmp_path: Path, *, map: StatementMap = MAP, **options: Any) -> Outcome:
        path = tmp_path / "statement.csv"
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="")
            writer.writeheader()
            writer.writerows(self.lines)
        with Books() as books:
            books.load_statement([str(path)], map)
            books.load_records(self.records)
            return books.compare(**{"horizon": 2 * DAY, "cut": START + 30 * DAY, **options})


@pytest.fixture
def plant() -> Plant:
    return Plant()


def categories(outcome: Outcome) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for case in outcome.cases:
        found.setdefault(f"{case.category}:{case.action}", []).append(case.record[1] if case.record else str(case.head))
    return found


def test_all_categories_and_no_other(plant, tmp_path):
    for number in range(50):
        plant.record(number)
        plant.line(number)
    for number, state in ((50, "completed"), (51, "in_doubt")):
        plant.record(number, state=state)  # missing there, not landed
    plant.record(52, at=START + 29.5 * DAY)  # late
    plant.record(53, state="in_doubt", ref=None)
    plant.line(53)  # adopt, by our key
    plant.record(54)
    plant.line(54)
    plant.line(54, ref="ch_54b")  # doubled by our key: refund
    plant.record(55)
    plant.line(55)
    plant.line(55, ref="ch_55b")
    plant.line(55, ref="ch_55b", type="refund", our_key="")  # doubled, and the surplus went back
    plant.record(56)
    plant.line(56, amount="199.00")
    plant.record(57)
    plant.line(57, currency="USD")
    plant.record(58, state="closed")
    plant.line(58)  # conflicting state
    plant.record(59, state="released")  # agreed
    plant.record(60)
    plant.line(60)
    plant.line(60, type="refund")  # refunded
    plant.line(61)  # missing here
    plant.record(62, ref="ch_pending")
    plant.line(62, prior="ch_pending")  # the reference changed
    plant.record(63)
    plant.line(63, type="capture", amount="150.00", auth="a")
    plant.line(63, type="capture", amount="50.00", auth="a")  # one charge, captured in two parts
    plant.record(64)
    plant.line(64)
    plant.line(64, ref="ch_64b", amount="100.00")  # doubled with another amount: no refund
    plant.record(65)
    plant.line(65)
    plant.line(65, ref="ch_65b")
    plant.line(65, ref="ch_65b", type="chargeback", our_key="", amount="50.00")  # disputed: no refund

    outcome = plant.compare(tmp_path)

    assert categories(outcome) == {
        "missing_there:investigate": ["o-50"],
        "not_landed:release": ["o-51"],
        "late:wait": ["o-52"],
        "adopt:adopt": ["o-53"],
        "doubled:refund": ["o-54"],
        "doubled:investigate": ["o-64", "o-65"],
        "amount_differs:investigate": ["o-56"],
        "currency_differs:investigate": ["o-57"],
        "conflicting_state:investigate": ["o-58"],
        "missing_here:investigate": ["ch_61"],
    }
    assert outcome.counts["matched"] == 52
    assert (outcome.counts["doubled_settled"], outcome.counts["refunded"], outcome.counts["agreed"]) == (1, 1, 1)
    (refund,) = [case for case in outcome.cases if case.action == "refund"]
    assert (refund.head, refund.keep, refund.minor, refund.currency) == ("ch_54b", "ch_54", 20000, "EUR")


def test_a_line_that_comes_twice_is_no_double(plant, tmp_path):
    plant.record(1)
    for _ in range(2):
        plant.line(1, line="t_same", when=START)
    outcome = plant.compare(tmp_path)

    assert outcome.cases == []
    assert outcome.counts == {"matched": 1}


def test_a_line_with_two_contents_is_odd_and_stops_refunds(plant, tmp_path):
    plant.record(1)
    plant.line(1)
    plant.line(1, ref="ch_1b")
    for amount in ("1.00", "2.00"):
        plant.line(2, line="t_odd", amount=amount)
    found = categories(plant.compare(tmp_path))

    assert "odd:investigate" in found
    assert found["doubled:investigate"] == ["o-1"]


@pytest.mark.parametrize(
    ("currency", "amount", "minor"), [("JPY", "500", 500), ("KWD", "1.234", 1234), ("ISK", "10.00", 1000)]
)
def test_each_currency_has_its_own_decimals(plant, tmp_path, currency, amount, minor):
    plant.record(1, currency=currency, minor=minor)
    plant.line(1, currency=currency, amount=amount)

    assert plant.compare(tmp_path).counts == {"matched": 1}


@pytest.mark.parametrize("broken", [{"amount": "x"}, {"amount": "1.005"}, {"currency": "XYZ"}, {"when": "yesterday"}])
def test_what_cannot_be_read_is_reported_and_never_guessed(plant, tmp_path, broken):
    plant.record(1)
    plant.line(1)
    plant.line(2, **broken)

    assert [case.category for case in plant.compare(tmp_path).cases] == ["unreadable"]


def test_a_reference_of_one_record_with_the_key_of_another_is_crossed(plant, tmp_path):
    plant.record(1)
    plant.record(2)
    plant.line(1, our_key="k_2")
    plant.line(2)
    found = categories(plant.compare(tmp_path))

    assert found == {"crossed:investigate": ["o-1"]}


def test_an_amount_alone_only_suggests(plant, tmp_path):
    plant.record(1, ref=None, our_key=None)
    plant.line(7, our_key="", party="p_1", when=START + 2)
    plant.record(2)
    plant.line(2)
    plant.line(8, our_key="", party="p_2", when=START + 3)  # a second one, without a reference of ours
    outcome = plant.compare(tmp_path)

    assert Counter(case.category for case in outcome.cases) == {"matched_suggested": 1, "doubled_suggested": 1}
    assert not any(case.action == "refund" for case in outcome.cases)


def test_a_payout_is_the_sum_of_its_lines(plant, tmp_path):
    for number in range(3):
        plant.record(number)
        plant.line(number, payout="po_1")
    plant.line(9, ref="", our_key="", type="fee", amount="6.00", payout="po_1")
    plant.line(9, ref="", our_key="", type="payout", amount="594.00", payout="po_1")
    assert plant.compare(tmp_path).cases == []
    plant.line(9, ref="", our_key="", type="payout", amount="10.00", payout="po_2")

    assert categories(plant.compare(tmp_path)) == {"payout:investigate": ["po_2"]}


def test_a_young_double_waits_for_the_horizon(plant, tmp_path):
    """A refund by hand is slow to appear in a statement."""
    plant.record(1)
    plant.line(1)
    plant.line(1, ref="ch_1b")

    assert categories(plant.compare(tmp_path, cut=START + DAY)) == {"doubled:investigate": ["o-1"]}


def test_a_ledger_of_your_own_is_our_side(tmp_path):
    statement, ledger = tmp_path / "s.csv", tmp_path / "ledger.csv"
    statement.write_text(
        "balance_transaction_id,charge_id,payment_metadata[samekey],customer_facing_amount,customer_facing_currency,"
        "created_utc,reporting_category\ntxn_1,ch_1,k,200.00,eur,2026-01-02 10:00:00,charge\n"
        "txn_2,ch_2,,5.00,eur,2026-01-02 11:00:00,charge\n"
    )
    ledger.write_text("key,ref,minor,currency,at\no-1,ch_1,20000,EUR,2026-01-02 10:00:00\n")
    with Books() as books:
        books.load_statement([str(statement)], load_pack("stripe").statement())
        books.load_ledger(str(ledger))
        outcome = books.compare(horizon=DAY)

    assert outcome.counts == {"matched": 1, "missing_here": 1}


def test_a_missing_column_or_file_is_one_sentence(tmp_path):
    (tmp_path / "s.csv").write_text("a,b\n1,2\n")
    with Books() as books:
        with pytest.raises(Misconfigured, match="no column"):
            books.load_statement([str(tmp_path / "s.csv")], MAP)
        with pytest.raises(Misconfigured, match="no file"):
            books.load_statement([str(tmp_path / "none.csv")], MAP)
