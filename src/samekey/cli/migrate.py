"""samekey migrate: make the tables of a store, or bring them up to date."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import click

from samekey.cli import _out as out
from samekey.cli._asking import ENVIRONMENT, common
from samekey.cli.exits import Exit, NoStore
from samekey.core.errors import Misconfigured, StoreError
from samekey.guard.store_urls import check_address

PHASES = click.Choice(["pre", "post", "all"])


@click.command()
@click.option("--dry-run", is_flag=True, help="Print exactly what would be sent; send nothing.")
@click.option("--sql", is_flag=True, help="Print the migrations as plain SQL for another tool; does not connect.")
@click.option("--after", type=click.IntRange(0), metavar="N", help="With --sql: only what comes after number N.")
@click.option(
    "--phase", type=PHASES, default="all", help="pre: before the deploy. post: when the last old process is gone."
)
@click.option(
    "--partitions", type=click.IntRange(2), metavar="N", help="Records in N hash partitions; with the first migration."
)
@common
def migrate(
    store: str | None, dry_run: bool, sql: bool, after: int | None, phase: Any, partitions: int | None, as_json: bool
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
            "give --sql (everything, for another tool) or --dry-run (what is missing here), not both."
        )
    store = check_address(store).split()[-1]  # of two addresses the durable one has tables
    scheme = store.partition(":")[0]
    if scheme in ("postgresql", "postgres"):
        if sql:
            return _report(*_postgres_sql(store, after or 0, phase, partitions or 0), sql=True, as_json=as_json)
        return _migrate_postgres(store, phase, partitions or 0, dry_run=dry_run, as_json=as_json)
    if partitions or after is not None or phase != "all":
        raise click.UsageError(f"--phase, --after and --partitions are for PostgreSQL, not for {scheme}.")
    if scheme not in ("mysql", "mariadb", "sqlite"):
        raise Misconfigured(f"{scheme}:// has no tables to migrate")
    migrated = _migrate_sqlite if scheme == "sqlite" else _migrate_mysql
    name, found = migrated(store, sql=sql, dry_run=dry_run)
    if not (sql or dry_run or as_json):
        for one in found:
            out.line(f"{one.number:04} {one.title}: done")
    return _report(name, found, sql=sql, dry_run=dry_run, as_json=as_json)


class Step(NamedTuple):
    """One migration, as it is printed."""

    number: int
    phase: str
    title: str
    sql: str
    heading: str = ""


def _report(
    name: str,
    found: list[Step],
    *,
    sql: bool = False,
    dry_run: bool = False,
    as_json: bool,
    complete: bool = True,
    phase: str = "all",
) -> Exit:
    """Print the migrations that were found (those that were done are printed already), and return the exit code."""
    printed = sql or dry_run
    todo = bool(dry_run and found)
    if as_json:
        fields = ("number", "phase", "title", "sql") if printed else ("number", "phase", "title")
        shown = [{field: getattr(one, field) for field in fields} for one in found]
        out.data({"store": name, "dry_run": dry_run, "migrations": shown, "complete": complete and not todo})
    elif printed:
        for one in found:
            click.echo(one.heading + one.sql)
    if not complete:
        return Exit.INCOMPLETE
    if not found:
        out.note(f"{name}: nothing to do" + ("" if phase == "all" else f" for --phase {phase}"))
    return Exit.FOUND if todo else Exit.FINE


@contextmanager
def _refused_by_server() -> Iterator[None]:
    """A server that refuses (no such database, not permitted) is NoStore and not a usage error."""
    try:
        yield
    except Misconfigured as error:
        if error.__cause__ is None:
            raise
        raise NoStore(error.message) from error


def _driver(server: str, scheme: str) -> Any:
    try:
        return import_module(f"samekey.drivers.{server}.migrate")
    except ModuleNotFoundError as missing:
        raise Misconfigured(f"{scheme}:// needs {missing.name}: pip install 'samekey[{server}]'") from missing


def _migrate_postgres(store: str, phase: Any, partitions: int, *, dry_run: bool, as_json: bool) -> Exit:
    driver = _driver("postgres", "postgresql")
    name, done = driver.parse_url(store).name, list[Step]()

    def on_done(migration: Any) -> None:
        done.append(_step(migration, migration.sql))
        if not as_json:
            out.line(f"{migration.number:04} {migration.title} ({migration.phase}): done")

    try:
        with _refused_by_server():
            found = driver.migrate(store, phase=phase, dry_run=dry_run, partitions=partitions, on_done=on_done)
    except driver.HeldUp as held_up:
        out.note(f"samekey: {held_up.message}")
        return _report(name, done, as_json=as_json, complete=False)
    steps = [_step(one, one.script()) for one in found]
    return _report(name, steps, dry_run=dry_run, as_json=as_json, phase=phase)


def _step(migration: Any, sql: str) -> Step:
    heading = f"-- {migration.number:04} {migration.title} ({migration.phase})\n"
    return Step(migration.number, migration.phase, migration.title, sql, heading)


def _postgres_sql(store: str, after: int, phase: Any, partitions: int) -> tuple[str, list[Step]]:
    driver = _driver("postgres", "postgresql")
    found = [one for one in driver.migrations(partitions=partitions) if one.number > after]
    steps = [Step(one.number, one.phase, one.title, one.sql) for one in found if phase in (one.phase, "all")]
    return driver.parse_url(store).name, steps


def _migrate_mysql(store: str, *, sql: bool, dry_run: bool) -> tuple[str, list[Step]]:
    driver = _driver("mysql", "mysql")
    with _refused_by_server():
        found = driver.migrations() if sql else driver.migrate(store, dry_run=dry_run)
    return driver.parse_url(store).name, [Step(one.number, "pre", one.title, one.sql) for one in found]


def _migrate_sqlite(store: str, *, sql: bool, dry_run: bool) -> tuple[str, list[Step]]:
    """A guard makes the tables when it opens the file; this is for a file that a transaction of the user will hold."""
    from samekey.drivers import sqlite
    from samekey.stores.sqlite import SqliteStore

    address = sqlite.parse_url(store)
    try:
        there = 0 if sql else sqlite.schema_of(address.path, str(address.path))
        if not (sql or dry_run):
            SqliteStore.from_url(store).close()  # opening the file migrates it; a newer file is refused
    except (Misconfigured, StoreError, OSError) as error:
        raise NoStore(f"the store cannot be opened: {error}") from error
    numbers = range(there + 1, sqlite.SCHEMA + 1)
    return store, [Step(number, "pre", "records", sqlite.migration(number)) for number in numbers]
