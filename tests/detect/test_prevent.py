"""Prevention: one statement that inserts once, with three libraries; content hashes and canonical keys."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing

import psycopg
import pytest
import sqlalchemy
from django.db import connections, models
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

import tests.django_settings  # noqa: F401 - Django is configured before its models are made
from samekey.core.errors import Misconfigured
from samekey.detect.audit import audit
from samekey.detect.prevent import Outcome, canonical_key, canonical_text, content_columns, content_hash
from samekey.detect.prevent import django as with_django
from samekey.detect.prevent import psycopg as with_psycopg
from samekey.detect.prevent import sqlalchemy as with_sqlalchemy
from tests.detect.conftest import plant_sqlite

TABLE = """
CREATE TABLE orders (id bigserial PRIMARY KEY, tenant_id int NOT NULL, order_ref text NOT NULL, amount int,
  details jsonb, created_at timestamptz DEFAULT now(), UNIQUE (tenant_id, order_ref));
"""
KEY = ("tenant_id", "order_ref")
VALUES = {"tenant_id": 1, "order_ref": "a", "amount": 5}
ORDERS = sqlalchemy.Table(
    "orders",
    sqlalchemy.MetaData(),
    sqlalchemy.Column("id", sqlalchemy.BigInteger, primary_key=True),
    sqlalchemy.Column("tenant_id", sqlalchemy.Integer),
    sqlalchemy.Column("order_ref", sqlalchemy.Text),
    sqlalchemy.Column("amount", sqlalchemy.Integer),
    sqlalchemy.Column("details", sqlalchemy.JSON),
)


class Order(models.Model):  # type: ignore[misc]
    id = models.BigAutoField(primary_key=True)
    tenant_id = models.IntegerField()
    order_ref = models.TextField()
    amount = models.IntegerField(null=True)
    details = models.JSONField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        app_label = "prevented"
        db_table = "orders"


@pytest.fixture(scope="module")
def shop(samekey_postgres):
    url = samekey_postgres.create_database()
    with psycopg.connect(url, autocommit=True) as link:
        link.execute(TABLE.encode())
    given = conninfo_to_dict(url)
    connections.databases["prevented"] = {
        **connections.databases["default"],
        "ENGINE": "django.db.backends.postgresql",
        "NAME": given["dbname"], "USER": given.get("user", ""), "PASSWORD": given.get("password", ""),
        "HOST": given.get("host", ""), "PORT": str(given.get("port", "")),
    }  # fmt: skip
    yield url
    connections["prevented"].close()
    del connections["prevented"], connections.databases["prevented"]


@pytest.fixture
def link(shop):
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("TRUNCATE orders")
        yield connection


def versions(link: psycopg.Connection) -> list[tuple[object, ...]]:
    """What a write would change: the version of each row."""
    return link.execute("SELECT id, ctid::text, xmin::text, amount FROM orders ORDER BY id").fetchall()


def by_psycopg(url, verb, values):
    with psycopg.connect(url) as link:
        found = getattr(with_psycopg.Inserter(link), verb)("orders", values, key=KEY)
    return found.outcome, found.row["id"], found.row["amount"]


def by_async_psycopg(url, verb, values):
    async def run():
        async with await psycopg.AsyncConnection.connect(url) as link:
            return await getattr(with_psycopg.AsyncInserter(link), verb)("public.orders", values, key=KEY)

    found = asyncio.run(run())
    return found.outcome, found.row["id"], found.row["amount"]


def by_sqlalchemy(url, verb, values):
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    with Session(engine) as session, session.begin():
        found = getattr(with_sqlalchemy.Inserter(session), verb)(ORDERS, values, key=KEY)
    engine.dispose()
    return found.outcome, found.row["id"], found.row["amount"]


def by_async_sqlalchemy(url, verb, values):
    async def run():
        engine = create_async_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
        async with engine.begin() as connection:
            found = await getattr(with_sqlalchemy.AsyncInserter(connection), verb)(ORDERS, values, key=KEY)
        await engine.dispose()
        return found

    found = asyncio.run(run())
    return found.outcome, found.row["id"], found.row["amount"]


def by_django(url, verb, values):
    found = getattr(with_django, verb)(Order, key=KEY, using="prevented", **values)
    return found.outcome, found.instance.id, found.instance.amount


LIBRARIES = [by_psycopg, by_async_psycopg, by_sqlalchemy, by_async_sqlalchemy, by_django]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_replay_gets_the_row_and_writes_nothing(library, shop, link):
    first = library(shop, "insert_or_get", VALUES)
    before = versions(link)
    again = library(shop, "insert_or_get", VALUES | {"amount": 7})

    assert (first[0], first[2]) == (Outcome.INSERTED, 5)
    assert again == (Outcome.EXISTING, first[1], 5)
    assert versions(link) == before


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_update_is_written_only_when_something_differs(library, shop, link):
    first = library(shop, "insert_or_update", VALUES)
    before = versions(link)
    same = library(shop, "insert_or_update", VALUES)
    unwritten = versions(link)
    other = library(shop, "insert_or_update", VALUES | {"amount": 7})

    assert [one[0] for one in (first, same, other)] == [Outcome.INSERTED, Outcome.EXISTING, Outcome.UPDATED]
    assert unwritten == before
    assert other[1:] == (first[1], 7)


def test_json_is_bound_as_each_library_does_it(shop, link):
    details = {"a": [1, None, "%s :x"]}
    sent = VALUES | {"details": details}
    got = with_django.insert_or_get(Order, key=KEY, using="prevented", **sent)
    engine = sqlalchemy.create_engine(shop.replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.begin() as connection:
        there = with_sqlalchemy.Inserter(connection).insert_or_get(ORDERS, sent, key=KEY)
        with pytest.raises(Misconfigured, match="no column nothing"):
            with_sqlalchemy.Inserter(connection).insert_or_get(ORDERS, {"nothing": 1}, key=["nothing"])
    engine.dispose()

    assert (got.inserted, got.instance.details, got.instance.created_at is not None) == (True, details, True)
    assert (there.inserted, there.row["details"]) == (False, details)


def test_of_many_at_the_same_moment_one_inserts_and_all_get_its_row(shop, link):
    outcomes: list[tuple[object, ...]] = []
    ready = threading.Barrier(8, timeout=60)

    def insert(number: int) -> None:
        ready.wait()
        outcomes.append(by_psycopg(shop, "insert_or_get", VALUES | {"amount": number}))

    threads = [threading.Thread(target=insert, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert [one[0] for one in outcomes].count(Outcome.INSERTED) == 1
    assert len({one[1:] for one in outcomes}) == 1
    assert len(outcomes) == 8


def test_a_row_that_is_committed_while_the_statement_waits_is_found(shop, link):
    """The statement's snapshot is older than the other row: its first answer is empty, and it is sent again."""
    with psycopg.connect(shop) as other:
        other.execute("INSERT INTO orders (tenant_id, order_ref, amount) VALUES (1, 'a', 1)")
        found: list[tuple[object, ...]] = []
        thread = threading.Thread(target=lambda: found.append(by_psycopg(shop, "insert_or_get", VALUES)), daemon=True)
        thread.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'WITH new%'"
        while link.execute(waiting).fetchone() == (0,):
            assert thread.is_alive()
        other.commit()
        thread.join(60)

    assert found[0][0] is Outcome.EXISTING
    assert found[0][2] == 1


@pytest.mark.parametrize(
    ("values", "key", "sentence"),
    [
        ({"tenant_id": 1}, [], "at least one column"),
        ({"tenant_id": 1}, ["order_ref"], "has a value for each"),
        ({"tenant_id": None}, ["tenant_id"], "is None"),
        ({"": 1}, [""], "is empty"),
    ],
)
def test_a_key_that_cannot_be_compared_is_refused(values, key, sentence, shop, link):
    with pytest.raises(Misconfigured, match=sentence):
        with_psycopg.Inserter(link).insert_or_get("orders", values, key=key)


def test_other_servers_are_refused():
    with pytest.raises(Misconfigured, match="sqlite"):
        with_django.insert_or_get(Order, key=KEY, using="default", **VALUES)
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(Misconfigured, match="sqlite"):
        with_sqlalchemy.Inserter(connection)
    engine.dispose()


def test_names_are_quoted(shop, link):
    link.execute('CREATE TABLE IF NOT EXISTS "o""dd %s" ("k %s:x" int PRIMARY KEY)')
    found = with_psycopg.Inserter(link).insert_or_get('o"dd %s', {"k %s:x": 1}, key=["k %s:x"])

    assert found.row == {"k %s:x": 1}


# -- hashes and keys -----------------------------------------------------------------------------------------------


def test_the_content_hash_is_the_guards_own_and_its_columns_close_the_gap(tmp_path, shop, link):
    same = content_hash({"b": 2, "a": 1, "trace": "x"}, ignore=["trace"])
    url = plant_sqlite(tmp_path / "shop.db", "CREATE TABLE visits (id INTEGER PRIMARY KEY, page TEXT)")
    before = {one.finding.rule for one in audit(url).results}
    with closing(sqlite3.connect(tmp_path / "shop.db")) as file:
        for statement in content_columns("visits", engine="sqlite"):
            file.execute(statement)
        file.commit()
    link.execute("CREATE TABLE IF NOT EXISTS visits (id bigserial PRIMARY KEY, page text)")
    for statement in content_columns("visits", schema="public"):
        link.execute(statement.encode())
    link.execute("DROP TABLE visits")

    assert same == content_hash({"a": 1, "b": 2, "trace": "y"}, ignore=["trace"])
    assert same.digest != content_hash({"a": 1, "b": 3}).digest
    assert "SK108" in before
    assert "SK108" not in {one.finding.rule for one in audit(url).results}
    with pytest.raises(Misconfigured, match="engine is one of"):
        content_columns("visits", engine="oracle")


def test_canonical_keys_do_not_run_together():
    assert canonical_text("\uff21\u200bb \u00a0C") == "ab  c"
    assert canonical_key("a", "bc") != canonical_key("ab", "c")
    assert canonical_key("A ", 1) == canonical_key("a", 1)
    for parts in ((), (None,), (0.1,)):
        with pytest.raises(Misconfigured):
            canonical_key(*parts)
