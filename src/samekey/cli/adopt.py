"""samekey adopt: take over the keys of another table or file."""

from __future__ import annotations

from itertools import islice

import click

from samekey.cli import _out as out
from samekey.cli._asking import common, opened
from samekey.cli._decision import NOT_COUNTED, confirmed, login
from samekey.cli._foreign import FIELDS, SKIP, Reader
from samekey.cli._times import length
from samekey.cli.exits import Exit
from samekey.core.key import make_key
from samekey.core.record import Audit
from samekey.core.states import State
from samekey.guard.store_urls import public
from samekey.ops import Ops
from samekey.ops.adopting import PIECE, Adopted
from samekey.ops.deciding import RESOLVED_RETAIN_SECONDS

SHOWN_MAX = 5
MEANINGS = ("completed", "closed", "in_doubt", SKIP)


def _mapped(ctx: click.Context, param: click.Parameter, value: str) -> dict[str, str]:
    columns: dict[str, str] = {}
    for pair in value.split(","):
        name, equals, column = (part.strip() for part in pair.partition("="))
        if not (name and equals and column) or name in columns:
            raise click.BadParameter(f"{pair!r}: write key=COLUMN,response=COLUMN,..., each once.")
        if name not in FIELDS:
            raise click.BadParameter(f"{name!r} is no field; there are {', '.join(FIELDS)}.")
        columns[name] = column
    if "key" not in columns:
        raise click.BadParameter("the key has no column: key=COLUMN.")
    return columns


def _meanings(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    meanings = {}
    for value in values:
        status, equals, meaning = value.rpartition("=")
        if not equals or meaning not in MEANINGS:
            raise click.BadParameter(f"{value!r}: write VALUE=STATE, with a STATE of {', '.join(MEANINGS)}.")
        meanings[status] = meaning
    return meanings


@click.command()
@click.argument("source", metavar="FILE|DSN")
@click.option("--table", metavar="T", help="With a DSN: the table of the keys.")
@click.option("--map", "columns", callback=_mapped, required=True, metavar="key=COL,...", help="Which column is what.")
@click.option("--operation", required=True, metavar="NAME", help="The operation that these keys belong to.")
@click.option("--tenant", metavar="T", help="Their tenant; or map tenant=COL.")
@click.option("--status", "statuses", callback=_meanings, multiple=True, metavar="VALUE=STATE", help="What it means.")
@click.option(
    "--retention",
    type=length,
    default=RESOLVED_RETAIN_SECONDS,
    metavar="LENGTH",
    show_default="30d",
    help="How long they are remembered, from now on.",
)
@click.option("--who", metavar="NAME", help="Your name.  [default: your login name]")
@click.option("--yes", is_flag=False, flag_value=NOT_COUNTED, type=confirmed, metavar="N", help="Write these N rows.")
@common
def adopt(
    source: str,
    table: str | None,
    columns: dict[str, str],
    operation: str,
    tenant: str | None,
    statuses: dict[str, str],
    retention: float,
    who: str | None,
    yes: int | None,
    store: str | None,
    as_json: bool,
) -> Exit:
    """Take over the keys of another table or file, so that the day of the switch is no day without keys.

    FILE is CSV with a heading, or JSON lines (.jsonl); DSN is sqlite:// or postgresql:// with --table. The fields
    of --map are key, tenant, request_hash, response, status, http_status and created_at. What is in progress becomes in
    doubt. A status that is not known is listed and left out, and the exit code is 1: say what it means with --status.

    Without --yes nothing is written: the command prints what it would do, and the number to confirm. A key that has a
    record already keeps it, so it may be stopped and run again. A foreign request hash cannot be compared with ours: an
    adopted record answers every payload under its key, and `samekey explain` says so.

    \b
    Example:
      samekey adopt keys.csv --map key=idempotency_key,response=body,status=state --operation charge
      samekey adopt sqlite:///shop.db --table idempotency_keys --map key=key,http_status=code,response=body
        --operation 'POST /charges' --yes 1200
    """
    make_key(operation, "any", tenant)
    if tenant is not None and "tenant" in columns:
        raise click.UsageError("give --tenant or map tenant=COL, not both.")
    reader = Reader(source, table, columns, operation, tenant, statuses)
    name = public(source) if "://" in source else source
    with opened(store) as ops:
        number = _preview(reader)
        left_out = bool(reader.unknown or reader.wrong)
        adopted = Adopted()
        if yes is None:
            out.note(f"dry run: nothing was written; --yes {number} writes {number} records")
        elif yes != number:
            given = "--yes" if yes == NOT_COUNTED else f"--yes {yes}"
            out.note(f"refused: {given} was given, and there are {number} rows to adopt; nothing was written")
        else:
            by = login() if who is None else who
            why = f"adopted from {name} by {by}"
            # Before the first row, so that a run that is killed is in the audit log too.
            noted = Audit(0.0, by, "adopt", operation, tenant, name, "", "", f"{number} rows of {name}")
            ops.store.note_action(noted)
            adopted = _write(ops, Reader(source, table, columns, operation, tenant, statuses), number, why, retention)
        store_name = ops.store.name
    states = {meaning: reader.states[meaning] for meaning in MEANINGS}
    complete = adopted.written + adopted.there >= number
    if as_json:
        out.data(
            {
                "store": store_name,
                "dry_run": yes is None,
                "rows": states,
                "unknown": dict(reader.unknown),
                "without_key": reader.wrong,
                "written": adopted.written,
                "there": adopted.there,
            }
        )
    elif yes == number:
        out.line(f"adopted {adopted.written} keys; {adopted.there} had a record already")
    if yes is not None and yes != number:
        return Exit.MOVED_ON
    if yes is not None and not complete:
        out.note("stopped; run the same command again to go on: what is adopted is left out")
        return Exit.INCOMPLETE
    return Exit.FOUND if left_out else Exit.FINE


def _preview(reader: Reader) -> int:
    """Read every row once, print what it means, and return how many would be written."""
    number = 0
    for row in reader.rows():
        number += 1
        if number <= SHOWN_MAX:
            out.note(f"  {row.key} -> {row.state}")
    if number > SHOWN_MAX:
        out.note(f"  and {number - SHOWN_MAX} more")
    out.note("rows: " + ", ".join(f"{reader.states[meaning]} {meaning}" for meaning in MEANINGS))
    for status, rows in reader.unknown.most_common():
        out.note(f"left out: {rows} rows with the status {status!r}; --status '{status}=STATE' says what it means")
    for problem in reader.problems:
        out.note(f"left out: {problem}")
    if reader.wrong:
        out.note(f"left out: {reader.wrong} rows have no usable key")
    if reader.states[State.IN_DOUBT]:
        out.note("what is in progress becomes in doubt: a person decides about it (samekey ls --waiting)")
    return number


def _write(ops: Ops, reader: Reader, number: int, why: str, retention: float) -> Adopted:
    """Piece by piece; Ctrl-C ends it between two pieces, and a next run goes on."""
    total = Adopted()
    rows = islice(reader.rows(), number)
    with out.progress(number, "adopting") as move:
        try:
            while piece := list(islice(rows, PIECE)):
                one = ops.adopt(piece, why=why, retain_seconds=retention)
                total.written += one.written
                total.there += one.there
                move(len(piece))
        except KeyboardInterrupt:
            pass
    return total
