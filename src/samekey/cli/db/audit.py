"""samekey db audit: the gaps in a schema that admit duplicate rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click

from samekey import __version__
from samekey.cli import _out as out
from samekey.cli.db._extras import Extras
from samekey.cli.db._options import Span, write_page
from samekey.cli.db._stories import stories_of
from samekey.cli.exits import Exit
from samekey.detect.audit import Audit, Result, Shown
from samekey.detect.audit import audit as run_audit
from samekey.detect.baseline import Baseline, load
from samekey.detect.confirm import described
from samekey.detect.findings import Severity
from samekey.detect.fix_plan import make, write
from samekey.detect.html import audit_page
from samekey.detect.migrations import locate, places
from samekey.detect.report import as_object, as_sarif
from samekey.detect.rules import TITLES

OBJECT_MAX, EVIDENCE_MAX = 32, 30  # columns of 80; the details and --json have the whole text
BASELINE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
FOLDER_OR_FILE = click.Path(path_type=Path)
BESIDE = click.Path(dir_okay=False, path_type=Path)
FAIL_ON = click.Choice(["never", "confirmed", "critical", "high", "medium", "low"])


@click.command()
@click.argument("dsn")
@click.option("--confirm", is_flag=True, help="Also count the duplicate rows.")
@click.option(
    "--budget", type=Span(), default="60s", metavar="TIME", help="With --confirm: time for all counts together."
)
@click.option("--tables", multiple=True, metavar="PATTERN", help="Only these tables, such as 'pay*'; repeatable.")
@click.option("--retry-test", is_flag=True, help="Also try a retried insert on an empty copy of each table.")
@click.option("--against", metavar="DSN2", help="Also compare the unique keys with those of another database.")
@click.option("--code", type=FOLDER_OR_FILE, metavar="DIR", help="Also find the call sites in this Python code.")
@click.option("--migrations", type=FOLDER_OR_FILE, metavar="DIR", help="Name the migration file and line of each gap.")
@click.option(
    "--lint", "lints", type=FOLDER_OR_FILE, multiple=True, metavar="FILE", help="Look at a migration before it runs."
)
@click.option("--fix-plan", type=FOLDER, metavar="DIR", help="Write SQL files that clean up and add the unique keys.")
@click.option("--html", type=BESIDE, metavar="FILE", help="Write a report with plots: one file.")
@click.option("--store", metavar="URL", envvar="SAMEKEY_STORE", help="Also keep the findings in this store.")
@click.option("--fail-on", type=FAIL_ON, default="critical", help="Exit with 1 from this latent severity on.")
@click.option("--baseline", type=BASELINE, metavar="FILE", help="Accepted findings, each with a reason and a last day.")
@click.option("--show-values", is_flag=True, help="With --json: show key values. Otherwise they are keyed hashes.")
@click.option("--sarif", is_flag=True, help="Print SARIF 2.1.0.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def audit(
    dsn: str,
    confirm: bool,
    budget: float,
    tables: tuple[str, ...],
    retry_test: bool,
    against: str | None,
    code: Path | None,
    migrations: Path | None,
    lints: tuple[Path, ...],
    fix_plan: Path | None,
    html: Path | None,
    store: str | None,
    fail_on: str,
    baseline: Path | None,
    show_values: bool,
    sarif: bool,
    as_json: bool,
) -> Exit:
    """Find the gaps in a schema that admit duplicate rows.

    DSN is postgresql://..., mysql://... or sqlite:///... It reads the catalog only, and with --confirm also the rows:
    in read-only transactions over one connection, with a time limit, and it never waits for a lock. A count that does
    not fit into --budget looks at one key of a hundred, or is skipped; the report shows which. A finding is confirmed
    when rows show it, and latent otherwise. A confirmed finding always gives exit code 1, unless --fail-on is never.

    \b
    Example:
      samekey db audit sqlite:///shop.db --confirm
      samekey db audit postgresql://monitor@db/shop --tables 'pay*' --confirm --budget 5m

    \b
    Exit codes: 0 nothing that fails, 1 found, 2 usage, 3 cannot connect, 4 not everything could be looked at.
    """
    if sarif and as_json:
        raise click.UsageError("give one of --json and --sarif, not both.")
    if show_values and not (as_json and confirm):
        raise click.UsageError("--show-values goes with --json and --confirm.")
    accepted = load(baseline, datetime.now(UTC).date()) if baseline else Baseline()
    made = places(migrations) if migrations else {}
    extras = Extras(against, code, lints, confirm=confirm, retry_test=retry_test)
    report = run_audit(dsn, confirm=confirm, budget_seconds=budget, tables=tables, more=extras.look)
    results = tuple(
        one if one.finding.file else replace(one, finding=locate(one.finding, made)) for one in report.results
    )
    report = replace(report, results=results, incomplete=(*report.incomplete, *extras.problems))
    with stories_of(store) as stories:
        stories.audit(report, accepted)
    if fix_plan is not None:
        _write_plan(report, accepted, fix_plan, confirm=confirm)
    if as_json:
        out.data(as_object(report, Shown(values=show_values), accepted) | extras.as_object())
    elif sarif:
        out.data(as_sarif(report, __version__, accepted))
    else:
        _print(report, accepted, confirm=confirm)
        extras.show()
    if html is not None:
        write_page(html, audit_page(report, accepted))
    for remark in accepted.remarks(report.results):
        out.note(f"baseline: {remark}")
    for reason in report.incomplete:
        out.note(f"incomplete: {reason}")
    if report.incomplete:
        return Exit.INCOMPLETE
    if fail_on == "never":
        return Exit.FINE
    least = None if fail_on == "confirmed" else Severity[fail_on.upper()]
    failing = [one for one in report.failing(least) if accepted.entry(one) is None]
    return Exit.FOUND if failing or extras.failing(least) else Exit.FINE


def _write_plan(report: Audit, accepted: Baseline, folder: Path, *, confirm: bool) -> None:
    """For what the rows show; without --confirm for all that is grave. What is accepted stays as it is."""
    wanted = [
        one.finding
        for one in report.results
        if accepted.entry(one) is None and (one.confirmed or (not confirm and one.severity >= Severity.HIGH))
    ]
    plan = make(report.catalog, wanted)
    write(plan, folder)
    for rule, named, why in plan.by_hand:
        out.note(f"no plan for {rule} {named}: {why}")
    out.note(f"{len(plan.files)} files in {folder}: read them, then run them as their first lines show")


def _print(report: Audit, accepted: Baseline, *, confirm: bool) -> None:
    """A table of everything, then why and how to close it for what is confirmed or grave."""
    rows = [
        (
            one.finding.rule,
            one.severity.label,
            _short(one.finding.object, OBJECT_MAX),
            _short(_seen(one, accepted), EVIDENCE_MAX),
        )
        for one in report.results
    ]
    out.table(("rule", "severity", "object", "rows"), rows)
    for one in report.results:
        if accepted.entry(one) is None and (one.confirmed or one.severity >= Severity.HIGH):
            _details(one)
    confirmed = sum(one.confirmed for one in report.results)
    counted = f"{confirmed} confirmed, " if confirm else ""
    out.line()
    out.line(f"{report.tables} tables: {counted}{len(report.results) - confirmed} latent")


def _seen(one: Result, accepted: Baseline) -> str:
    entry = accepted.entry(one)
    if entry is not None:
        return f"accepted until {entry.until}"
    return described(one.evidence) if one.evidence else "latent"


def _details(one: Result) -> None:
    found = one.finding
    out.line()
    out.line(f"{found.rule} {found.object}: {TITLES[found.rule]}")
    out.line(f"  {found.why}")
    if found.file:
        out.line(f"  made by {found.file}:{found.line}")
    if one.evidence is not None and one.confirmed:
        out.line(f"  {described(one.evidence)}")
    for statement in found.fix:
        out.line(f"  {statement}")


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
