"""An audit or a scan as one HTML page: tables, and bars as SVG. No script, no font and no image from elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from samekey.detect.audit import Audit
from samekey.detect.baseline import Baseline
from samekey.detect.confirm import described
from samekey.detect.rules import TITLES
from samekey.detect.scan import Scan, Scanned
from samekey.detect.tally import DAY_SECONDS, GAP_LABELS

BARS_MAX = 40  # of one plot: the largest ones, or the newest days
STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1a1a1a; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .3rem; vertical-align: top; }
tr + tr { border-top: 1px solid #ddd; } code, pre { font: 12px ui-monospace, monospace; white-space: pre-wrap; }
.critical, .high { color: #a40000; font-weight: 600; } .medium { color: #8a5a00; }
.incomplete { background: #fff3cd; padding: .6rem; }
svg text { font: 12px system-ui, sans-serif; } svg rect { fill: #35618f; }
"""


def audit_page(report: Audit, baseline: Baseline) -> str:
    by_table = Counter(one.finding.table or "the server" for one in report.results)
    rows = [
        (
            f'<span class="{one.severity.label}">{one.severity.label}</span>',
            escape(one.finding.rule),
            f"<code>{escape(one.finding.object)}</code><br>{escape(TITLES[one.finding.rule])}: "
            + escape(one.finding.why)
            + (f"<br>made by {escape(one.finding.file)}:{one.finding.line}" if one.finding.file else ""),
            "accepted" if baseline.entry(one) else escape(described(one.evidence)) if one.evidence else "latent",
            "<pre>" + escape("\n".join(one.finding.fix)) + "</pre>",
        )
        for one in report.results
    ]
    body = [
        f"<p>{report.tables} tables, {sum(one.confirmed for one in report.results)} findings confirmed by rows, "
        f"{sum(not one.confirmed for one in report.results)} latent.</p>",
        _plot("Findings by table", by_table.most_common(BARS_MAX)),
        _table(("severity", "rule", "object", "rows", "fix"), rows),
    ]
    return _page(f"Audit of {report.database}", report.incomplete, body)


def scan_page(report: Scan) -> str:
    body = [_table(("rule", "table", "rows", "duplicates", "rate"), [_row(one) for one in report.results])]
    for one in report.results:
        tally = one.tally
        days = sorted(tally.by_day.items())[-BARS_MAX:]
        body += [
            f"<h2>{escape(one.rule.name)}</h2>",
            _plot("Duplicates by day", [(_day(day), number) for day, number in days]),
            _plot("Distance to the row before", [(GAP_LABELS[place], n) for place, n in sorted(tally.by_gap.items())]),
            _plot("By source", [(" / ".join(s), n) for s, n in tally.by_source.most_common(BARS_MAX)]),
        ]
    return _page(f"Scan of {report.database}", report.incomplete, body)


def _row(one: Scanned) -> tuple[str, ...]:
    tally = one.tally
    rate = f"{tally.rate:.3g}" + (" (above its limit)" if tally.above else "")
    return escape(one.rule.name), escape(one.table), str(tally.rows), str(tally.duplicates), rate


def _day(day: int) -> str:
    return datetime.fromtimestamp(day * DAY_SECONDS, UTC).strftime("%Y-%m-%d")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{lines}</table>"


def _plot(title: str, bars: Sequence[tuple[str, int]]) -> str:
    """Horizontal bars, each with its label and its number."""
    if not bars:
        return ""
    most, height = max(number for _, number in bars), 20 * len(bars)
    lines = [
        f'<text x="0" y="{20 * at + 14}">{escape(label[:36])}</text>'
        f'<rect x="260" y="{20 * at + 3}" width="{max(1.0, 400 * number / most):.1f}" height="14"/>'
        f'<text x="{265 + max(1.0, 400 * number / most):.1f}" y="{20 * at + 14}">{number}</text>'
        for at, (label, number) in enumerate(bars)
    ]
    return (
        f'<h3>{escape(title)}</h3><svg role="img" aria-label="{escape(title)}" width="760" height="{height}" '
        f'viewBox="0 0 760 {height}">{"".join(lines)}</svg>'
    )


def _page(title: str, incomplete: Sequence[str], body: Sequence[str]) -> str:
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in incomplete)
    warning = f'<div class="incomplete">Not everything was looked at:<ul>{reasons}</ul></div>' if incomplete else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{warning}{''.join(body)}</body></html>\n"
    )
