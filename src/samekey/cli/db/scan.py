"""samekey db scan: every duplicate row, by a rule file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from samekey.cli import _out as out
from samekey.cli.db._options import LongSpan, Span, write_page
from samekey.cli.db._stories import Stories, stories_of
from samekey.cli.exits import Exit
from samekey.core.errors import Misconfigured
from samekey.detect.audit import Shown
from samekey.detect.html import scan_page
from samekey.detect.pairs import Pair
from samekey.detect.rule_file import Rule, load
from samekey.detect.scan import SECONDS_MAX, Scan, Scanned, Wanted, scan
from samekey.detect.scan_report import as_lines, pair_object

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("scan")
@click.argument("dsn")
@click.option("--rule", "rules", type=FILE, required=True, metavar="FILE", help="The rule file.")
@click.option("--only", multiple=True, metavar="NAME", help="Only this rule of the file; repeatable.")
@click.option("--since", type=LongSpan(), metavar="TIME", help="Only duplicates of the last TIME, such as 24h.")
@click.option("--state", type=FILE, metavar="FILE", help="Continue where the last scan with this file ended.")
@click.option("--slice", "slice_", type=LongSpan(), metavar="TIME", help="Work in spans of this length.")
@click.option("--lateness", type=Span(), metavar="TIME", help="With --state: how late a row may come, at most.")
@click.option("--engine", type=click.Choice(["sql", "duckdb"]), default="sql", help="Where rows are compared.")
@click.option("--timeout", type=Span(), metavar="TIME", help="For one statement; 6h unless given.")
@click.option("--out", "target", type=FILE, metavar="FILE", help="Write every pair to FILE, one JSON object per line.")
@click.option("--html", type=FILE, metavar="FILE", help="Write a report with plots: one file.")
@click.option("--store", metavar="URL", envvar="SAMEKEY_STORE", help="Join pairs with their requests; keep findings.")
@click.option("--show-values", is_flag=True, help="Show keys and request ids. Otherwise they are keyed hashes.")
@click.option("--json", "as_json", is_flag=True, help="Print every pair and the sums, one JSON object per line.")
def scan_command(
    dsn: str,
    rules: Path,
    only: tuple[str, ...],
    since: float | None,
    state: Path | None,
    slice_: float | None,
    lateness: float | None,
    engine: str,
    timeout: float | None,
    target: Path | None,
    html: Path | None,
    store: str | None,
    show_values: bool,
    as_json: bool,
) -> Exit:
    """Find every duplicate row, by the rules of a file.

    A rule names a table and how two of its rows are the same. The rows are compared in the database; with --engine
    duckdb only row ids, hashes and times leave it, and DuckDB compares them here. All pairs are written, not a sample.
    With --state the next scan continues where this one ended, and misses no row of a transaction that is open now.

    \b
    Example:
      samekey db scan postgresql://monitor@db/shop --rule rules.toml --out pairs.jsonl
      samekey db scan postgresql://monitor@db/shop --rule rules.toml --state scan.json --out pairs.jsonl

    \b
    Exit codes: 0 no duplicates, 1 found, 2 usage, 3 cannot connect, 4 not everything could be read.
    """
    if lateness and not state:
        raise click.UsageError("--lateness goes with --state.")
    wanted = Wanted(
        dsn, _chosen(load(rules), only), since, slice_, state, lateness or 0.0, timeout or SECONDS_MAX,
        duckdb=engine == "duckdb",
    )  # fmt: skip
    shown = Shown(values=show_values)
    with stories_of(store) as stories, _sink(target, shown, stories, as_json=as_json) as sink, _bar() as progress:
        report = scan(wanted, sink, progress)
    _print(report, as_json=as_json)
    if html is not None:
        write_page(html, scan_page(report))
    for reason in report.incomplete:
        out.note(f"incomplete: {reason}")
    if report.incomplete:
        return Exit.INCOMPLETE
    return Exit.FOUND if report.duplicates else Exit.FINE


def _chosen(rules: tuple[Rule, ...], only: tuple[str, ...]) -> tuple[Rule, ...]:
    missing = sorted(set(only) - {rule.name for rule in rules})
    if missing:
        raise Misconfigured(f"the file has no rule {', '.join(missing)}")
    return tuple(rule for rule in rules if not only or rule.name in only)


class Lines:
    """Pairs as JSON lines: to a file, to stdout, or nowhere."""

    def __init__(self, file: Any, shown: Shown, stories: Stories, *, as_json: bool) -> None:
        self._file, self._shown, self._stories, self._as_json = file, shown, stories, as_json

    def pair(self, rule: Rule, pair: Pair) -> None:
        found = pair_object(rule, pair, self._shown) | self._stories.of(rule, pair)
        if self._file is not None:
            self._file.write(json.dumps(found, ensure_ascii=True) + "\n")
        if self._as_json:
            out.data(found)

    def place(self) -> int:
        if self._file is None:
            return 0
        self._file.flush()
        os.fsync(self._file.fileno())
        return int(os.fstat(self._file.fileno()).st_size)

    def cut(self, place: int) -> None:
        """Back to what the state file knows: a killed scan may have written more."""
        if self._file is None:
            return
        length = os.fstat(self._file.fileno()).st_size
        if length < place:
            raise Misconfigured(
                f"the output has {length} bytes and the state file knows of {place}: give the --out of the last scan, "
                "or a new --state"
            )
        self._file.truncate(place)
        self._file.seek(0, os.SEEK_END)


@contextmanager
def _sink(target: Path | None, shown: Shown, stories: Stories, *, as_json: bool) -> Iterator[Lines]:
    if target is None:
        yield Lines(None, shown, stories, as_json=as_json)
        return
    with target.open("a", encoding="utf-8") as file:
        yield Lines(file, shown, stories, as_json=as_json)


@contextmanager
def _bar() -> Iterator[Callable[[Rule, int, int], None]]:
    """On a terminal: which rule, and how many of its spans are done."""

    def show(rule: Rule, done: int, spans: int) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{rule.name}: {done} of {spans} spans\x1b[K", err=True, nl=done == spans)

    yield show


def _print(report: Scan, *, as_json: bool) -> None:
    if as_json:
        for line in as_lines(report):
            out.data(line)
        return
    out.table(
        ("rule", "severity", "table", "rows", "duplicates", "rate", "last"), [_row(one) for one in report.results]
    )
    for one in report.results:
        for source, number in one.tally.by_source.most_common(5):
            seen = one.tally.rows_by_source[source]
            out.line(f"  {one.rule.name}: {' / '.join(source)}: {number} of {seen} rows")
        if one.tally.above:
            out.line(f"  {one.rule.name}: {one.tally.rate:.3g} is above alert_above = {one.rule.alert_above:g}")


def _row(one: Scanned) -> tuple[str, ...]:
    tally = one.tally
    last = "" if tally.last is None else datetime.fromtimestamp(tally.last, UTC).strftime("%Y-%m-%d %H:%M")
    return (
        one.rule.name, one.rule.severity.label, one.table, str(tally.rows), str(tally.duplicates), f"{tally.rate:.2g}",
        last,
    )  # fmt: skip
