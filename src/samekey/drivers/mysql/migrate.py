"""Making the tables of samekey in MySQL and MariaDB, by numbered SQL files."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

from samekey.core.errors import StoreUnavailable
from samekey.drivers.mysql.address import Address, parse_url
from samekey.drivers.mysql.connect import SILENCE_SECONDS, Connection, close, connect_unchecked, run
from samekey.drivers.mysql.errors import translated
from samekey.drivers.mysql.self_check import SCHEMA
from samekey.drivers.schema import newer

MIGRATION_LOCK_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    title: str
    sql: str


def migrations() -> list[Migration]:
    """All of them, as shipped, in order: plain SQL, to be printed for Alembic, Django or Flyway as well."""
    folder = resources.files("samekey.stores") / "migrations" / "mysql"
    files = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [
        Migration(int(name[:4]), name[5:-4].replace("_", " "), (folder / name).read_text(encoding="utf-8"))
        for name in files
    ]


def migrate(url: str, *, dry_run: bool = False) -> list[Migration]:
    """Bring the database to our schema; the migrations that were (or with `dry_run` would be) carried out.

    Several processes may try at once: one migrates, the others wait and find it done. One that is interrupted is
    carried out again from its beginning: every statement may be run twice.
    """
    address = parse_url(url)
    with translated(address):
        link = connect_unchecked(address, MIGRATION_LOCK_SECONDS + SILENCE_SECONDS)
        try:
            if dry_run:
                return _missing(address, link)
            name = "CONCAT('samekey ', LEFT(SHA2(DATABASE(), 256), 40))"  # a lock is the whole server's
            if run(link, f"SELECT GET_LOCK({name}, {MIGRATION_LOCK_SECONDS})")[0] != [(1,)]:
                raise StoreUnavailable(
                    f"{address.name}: another process has been migrating it for {MIGRATION_LOCK_SECONDS} s"
                )
            missing = _missing(address, link)
            for migration in missing:
                for statement in statements(migration.sql):
                    run(link, statement)
            return missing
        finally:
            close(link)  # and with it the lock


def statements(sql: str) -> list[str]:
    """A migration's statements, one by one: the server takes no more at once."""
    plain = "\n".join(line for line in sql.splitlines() if not line.lstrip().startswith("--"))
    return [statement.strip() for statement in plain.split(";\n") if statement.strip()]


def _missing(address: Address, link: Connection) -> list[Migration]:
    found = 0
    there, _ = run(
        link,
        "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'samekey_meta'",
    )
    if there:
        rows, _ = run(link, "SELECT CAST(value AS BINARY) FROM samekey_meta WHERE name = 'schema'")
        found = int(rows[0][0]) if rows else 0
    if found > SCHEMA:
        raise newer(address.name, found, SCHEMA)
    return [one for one in migrations() if one.number > found]
