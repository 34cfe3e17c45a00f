"""samekey migrate: make the tables of a store, or bring them up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from samekey.cli import _out as out
from samekey.cli._asking import ENVIRONMENT, common
from samekey.cli.exits import Exit, NoStore
from samekey.core.errors import Misconfigured, StoreError
from samekey.guard.store_urls import check_address

if TYPE_CHECKING:
    from samekey.drivers.postgres.migrate import Migration


@click.command()
@click.option("--dry-run", is_flag=True, help="Print exactly what would be sent; send nothing.")
@click.option("--sql", is_flag=True, help="Print the migrations as plain SQL for another tool; does not connect.")
@click.option("--after", type=click.IntRange(0), metavar="N", help="With --sql: only what comes after number N.")
@click.option(
    "--phase",
    type=click.Choice(["pre", "post", "all"]),
    default="all",
    show_default=True,
    help="pre: before the deploy. post: when the last old process is gone.",
)
@click.option(
    "--partitions", type=click.IntRange(2), metavar="N", help="Records in N hash partitions; with the first migration."
)
@common
def migrate(
    store: str | None,
    dry_run: bool,
    sql: bool,
    after: int | None,
    phase: Any,
    partitions: int | None,
    as_json: bool,
) -> Exit:
    """Make the tables of a store, or bring them up to date.

    Several processes may run it at once. On PostgreSQL each migration is one transaction; it waits at most a second
    for a table, gives way, and tries again. On MySQL an interrupted migration is run again from its beginning.
    --dry-run exits with 1 if there is something to do. A SQLite file gets its tables when a guard opens it, but not
    while one of your transactions holds the file.

    \b
    Example:
      samekey migrate --store postgresql://owner@db/shop --phase pre
      samekey migrate --store postgresql://owner@db/shop --dry-run
    """
    if not store:
        raise click.UsageError(f"which store? Give --store URL or set {ENVIRONMENT}.")
    if after is not None and not sql:
        raise click.UsageError("--after goes with --sql.")
    if sql and dry_run:
        raise click.UsageError(
            "give --sql (everything, for another tool) or --dry-run (what this database lacks), not both."
        )
    store = check_address(store).split()[-1]  # of two addresses the durable one has tables
    scheme = store.partition(":")[0]
    if scheme in ("postgresql", "postgres"):
        if sql:
            return _print_postgres(after or 0, phase, partitions or 0, as_json)
        return _migrate_postgres(store, phase, partitions or 0, dry_run=dry_run, as_json=as_json)
    if partitions or after is not None or phase != "all":
        raise click.UsageError(f"--phase, --after and --partitions are for PostgreSQL, not for {scheme}.")
    if scheme in ("mysql", "mariadb"):
        return _migrate_mysql(store, sql=sql, dry_run=dry_run, as_json=as_json)
    if scheme == "sqlite":
        return _migrate_sqlite(store, sql=sql, dry_run=dry_run, as_json=as_json)
    raise Misconfigured(f"{scheme}:// has no tables to migrate")


# -- PostgreSQL ------------------------------------------------------------------------------------------------------


def _migrate_postgres(store: str, phase: Any, partitions: int, *, dry_run: bool, as_json: bool) -> Exit:
    driver = _psycopg()
    name = driver.parse_url(store).name
    done: list[Migration] = []

    def report(migration: Migration) -> None:
        done.append(migration)
        if not as_json:
            out.line(f"{_named(migration)}: done")

    try:
        found = driver.migrate(store, phase=phase, dry_run=dry_run, partitions=partitions, on_done=report)
    except driver.HeldUp as held_up:
        out.note(f"samekey: {held_up.message}")
        if as_json:
            out.data({"store": name, "migrations": [_as_object(one) for one in done], "complete": False})
        return Exit.INCOMPLETE
    except Misconfigured as error:
        if error.__cause__ is None:
            raise
        raise NoStore(error.message) from error  # the server refused: no such database, not permitted
    if as_json:
        shown = [{**_as_object(one), **({"sql": one.script()} if dry_run else {})} for one in found]
        out.data({"store": name, "dry_run": dry_run, "migrations": shown, "complete": not (dry_run and found)})
    elif dry_run:
        for migration in found:
            click.echo(f"-- {_named(migration)}\n{migration.script()}")
    if not found:
        out.note(f"{name}: nothing to do" + ("" if phase == "all" else f" for --phase {phase}"))
    return Exit.FOUND if dry_run and found else Exit.FINE


def _print_postgres(after: int, phase: Any, partitions: int, as_json: bool) -> Exit:
    found = [
        one
        for one in _psycopg().migrations(partitions=partitions)
        if one.number > after and phase in (one.phase, "all")
    ]
    if as_json:
        out.data({"migrations": [{**_as_object(one), "sql": one.sql} for one in found]})
    else:
        for migration in found:
            click.echo(migration.sql)
    return Exit.FINE


def _psycopg() -> Any:
    try:
        from samekey.drivers.postgres import migrate
    except ModuleNotFoundError as missing:
        raise Misconfigured(f"postgresql:// needs {missing.name}: pip install 'samekey[postgres]'") from missing
    return migrate


def _named(migration: Migration) -> str:
    return f"{migration.number:04} {migration.title} ({migration.phase})"


def _as_object(migration: Migration) -> dict[str, Any]:
    return {"number": migration.number, "phase": migration.phase, "title": migration.title}


# -- MySQL -----------------------------------------------------------------------------------------------------------


def _migrate_mysql(store: str, *, sql: bool, dry_run: bool, as_json: bool) -> Exit:
    try:
        from samekey.drivers.mysql import address, migrate
    except ModuleNotFoundError as missing:
        raise Misconfigured(f"mysql:// needs {missing.name}: pip install 'samekey[mysql]'") from missing
    name = address.parse_url(store).name
    try:
        found = migrate.migrations() if sql else migrate.migrate(store, dry_run=dry_run)
    except Misconfigured as error:
        if error.__cause__ is None:
            raise
        raise NoStore(error.message) from error  # the server refused: no such database, not permitted
    shown = [
        {"number": one.number, "phase": "pre", "title": one.title, **({"sql": one.sql} if sql or dry_run else {})}
        for one in found
    ]
    if as_json:
        out.data({"store": name, "dry_run": dry_run, "migrations": shown, "complete": not (dry_run and found)})
    for migration in () if as_json else found:
        if sql or dry_run:
            click.echo(migration.sql)
        else:
            out.line(f"{migration.number:04} {migration.title}: done")
    if not found:
        out.note(f"{name}: nothing to do")
    return Exit.FOUND if dry_run and found else Exit.FINE


# -- SQLite ----------------------------------------------------------------------------------------------------------


def _migrate_sqlite(store: str, *, sql: bool, dry_run: bool, as_json: bool) -> Exit:
    """A guard makes the tables when it opens the file; this is for a file that a transaction of the user will hold."""
    from samekey.drivers import sqlite
    from samekey.stores.sqlite import SqliteStore

    address = sqlite.parse_url(store)
    name = str(address.path)
    try:
        there = 0 if sql else sqlite.schema_of(address.path, name)
        if not (sql or dry_run):
            SqliteStore.from_url(store).close()  # opening the file migrates it; a newer file is refused
    except (Misconfigured, StoreError, OSError) as error:
        raise NoStore(f"the store cannot be opened: {error}") from error
    found = range(there + 1, sqlite.SCHEMA + 1)
    if as_json:
        shown: list[dict[str, Any]] = [{"number": number, "phase": "pre", "title": "records"} for number in found]
        for one in shown if sql or dry_run else ():
            one["sql"] = sqlite.migration(one["number"])
        out.data({"store": store, "dry_run": dry_run, "migrations": shown, "complete": not (dry_run and found)})
    for number in () if as_json else found:
        if sql or dry_run:
            click.echo(sqlite.migration(number))
        else:
            out.line(f"{number:04} records: done")
    if not found:
        out.note(f"{name}: nothing to do")
    return Exit.FOUND if dry_run and found else Exit.FINE
