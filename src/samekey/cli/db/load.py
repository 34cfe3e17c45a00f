"""samekey db load: an import that can be run again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from samekey.cli import _out as out
from samekey.cli.exits import Exit
from samekey.detect.loading import Loaded, LoadStopped
from samekey.detect.loading import load as run_load
from samekey.drivers.reading import StatementStopped

SHOWN = 20
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("dsn")
@click.argument("file", type=FILE)
@click.option("--into", "table", required=True, metavar="TABLE", help="The table that gets the rows.")
@click.option("--key", "key", multiple=True, required=True, metavar="COLUMN", help="A column of the key; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def load(dsn: str, file: Path, table: str, key: tuple[str, ...], as_json: bool) -> Exit:
    """Import a .csv or .parquet file so that a second run changes nothing.

    The table needs a unique key over the columns of --key. Rows go into a staging table, and from there into the table
    in one statement. A row whose key is in the table, or twice in the file, is not stored and is reported. A run that
    was stopped continues.

    \b
    Example:
      samekey db load postgresql://app@db/shop orders.csv --into orders --key tenant --key order_ref

    \b
    Exit codes: 0 every row is in the table now; 1 some were there before or are twice in the file; 2 usage;
    3 cannot connect; 4 some rows were rejected, or nothing was stored.
    """
    try:
        with out.progress(_rows(file), "rows") as move:
            done = run_load(dsn, file, table, key, progress=move)
    except (LoadStopped, StatementStopped) as error:
        out.note(f"samekey: nothing was stored: {error.message}")
        return Exit.INCOMPLETE
    if as_json:
        out.data({"schema": "samekey.load/1", **asdict(done)})
    else:
        _print(done)
    if done.rejected:
        return Exit.INCOMPLETE
    return Exit.FOUND if done.existing or done.repeated else Exit.FINE


def _rows(file: Path) -> int:
    """About how many rows a file has, for the progress bar."""
    return max(1, file.stat().st_size // 50)


def _print(done: Loaded) -> None:
    out.line(
        f"{done.rows} rows: {done.inserted} stored, {done.existing} were there, {done.repeated} twice in the file, "
        f"{done.rejected} rejected"
    )
    for row, why in done.reported[:SHOWN]:
        out.line(f"  row {row}: {why}")
    if len(done.reported) > SHOWN:
        out.line("  ... --json has more")
