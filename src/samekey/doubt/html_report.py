"""The outcome of a reconciliation as one HTML page without scripts, for people who do not read JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape

from samekey.doubt.duckdb import Outcome

SHOWN_MAX = 1000  # cases in the page; the plan has all of them


def as_html(outcome: Outcome, *, title: str) -> str:
    counts = "".join(f"<tr><td>{escape(name)}<td>{number:,}" for name, number in sorted(outcome.counts.items()))
    rows = []
    for case in outcome.cases[:SHOWN_MAX]:
        record = "" if case.record is None else f"{case.record[0]} {case.record[1]}"
        money = "" if case.minor is None else f"{case.minor} {case.currency or ''}"
        cells = (case.category, case.action, record, case.head or "", money, ", ".join(case.evidence))
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}" for cell in cells))
    left = len(outcome.cases) - len(rows)
    more = f"<p>{left:,} more are in the plan.</p>" if left > 0 else ""
    cut = datetime.fromtimestamp(outcome.cut, UTC).isoformat(timespec="minutes") if outcome.cut else "unknown"
    return (
        "<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{escape(title)}</title><style>body{{font:15px/1.5 system-ui;margin:2rem;max-width:70rem}}"
        "table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.2rem .6rem;text-align:left}</style>"
        f"<h1>{escape(title)}</h1><p>The statement ends at {escape(cut)}. "
        f"{'Nothing needs an action.' if outcome.clean else 'Some cases need an action.'}</p>"
        f"<h2>Categories</h2><table><tr><th>category<th>number{counts}</table>"
        "<h2>Cases</h2><table><tr><th>category<th>action<th>record<th>charge<th>amount<th>evidence"
        f"{''.join(rows)}</table>{more}\n"
    )
