"""The application's role needs what the page says, and no more."""

from __future__ import annotations

import contextlib
import math
import re
import time
from pathlib import Path

import psycopg
import pytest

from samekey import Guard, State
from samekey.core.books import Count, FindingQuery, make_finding
from samekey.core.commands import Free, Redact
from samekey.core.errors import Misconfigured
from samekey.core.parking import Parked, make_parked
from samekey.core.ports import Query
from samekey.core.states import Role
from samekey.drivers.postgres.migrate import migrate
from samekey.stores.postgres import PostgresStore
from samekey.testing.servers import USER, postgres
from samekey.testing.stores.scene import Scene, settling

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs" / "postgresql.md"


@pytest.fixture(scope="module")
def server():
    with postgres() as running:
        running.sql("CREATE ROLE app LOGIN")
        yield running


@pytest.fixture
def owners(server):
    address = server.create_database()
    migrate(address)
    return address


@pytest.fixture
def grants() -> str:
    (found,) = re.findall(r"```sql\n(GRANT .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return str(found)


def test_the_grants_on_the_page_are_enough_for_everything(owners, grants):
    """Claims, answers, listing, the decision of a person, sweeping, counts, findings, the self-check."""
    with psycopg.connect(owners) as link:
        link.execute(grants.encode())
    scene = Scene(0.02)
    with contextlib.closing(PostgresStore(owners.replace(f"{USER}@", "app@"))) as store:
        held = store.carry_out(scene.opening("one"))
        doubt = store.carry_out(settling(held, State.IN_DOUBT))
        assert doubt is not None
        ended = store.carry_out(settling(doubt, State.COMPLETED, role=Role.OPERATOR, by="ann", why="on the books"))
        assert ended is not None
        bare = store.carry_out(Redact(ended, by="ann", why="asked for"))
        assert bare is not None
        assert store.carry_out(Free(bare, by="ann", why="again")) is None
        store.carry_out(settling(store.carry_out(scene.opening("two")), State.COMPLETED, retain=0.001))
        store.sweep(10)
        count = Count(int(time.time() // 60), "charge", "", "new", 1)
        finding = make_finding("late", at=1.0, severity="low", title="x")
        for _ in range(2):
            store.add_counts([count])
            store.keep_finding(finding)
        store.park(a_message())
        assert store.redelivered(a_message().id, by="ann") is not None
        assert store.accept_finding(finding.id, by="ann", why="known", until=2e9) in store.findings(FindingQuery())
        assert [one.number for one in store.counts(0, math.inf)] == [2]

        assert [one.action for one in store.audit(10)] == ["accept", "redeliver", "free", "redact", "resolve"]
        assert len(store.list(Query(operation=scene.operation))) == 0
        assert "claims survive" in store.health().guarantee
        assert not store.health().incarnation.startswith("unknown")  # the timeline is anybody's to know


def a_message() -> Parked:
    texts = {"operation": "pay", "key": "k", "destination": "q", "kind": "poison", "reason": "x"}
    return make_parked(at=1.0, tenant=None, headers={}, body=b"", **texts)


@pytest.mark.parametrize("line", range(7))
def test_each_of_them_is_needed(owners, grants, line):
    """Without one of the lines the role is told what it may not do, at the latest when a person speaks."""
    lines = grants.strip().splitlines()
    assert len(lines) == 7
    with psycopg.connect(owners) as link:
        for number, grant in enumerate(lines):
            if number != line:
                link.execute(grant.encode())

    def speak(store: PostgresStore, scene: Scene) -> None:
        doubt = store.carry_out(settling(store.carry_out(scene.opening()), State.IN_DOUBT))
        assert doubt is not None
        store.carry_out(settling(doubt, State.COMPLETED, role=Role.OPERATOR, by="ann", why="on the books"))
        store.add_counts([Count(int(time.time() // 60), "charge", "", "new", 1)])
        store.keep_finding(make_finding("late", at=1.0, severity="low", title="x"))
        store.park(a_message())

    store = PostgresStore(owners.replace(f"{USER}@", "app@"))
    with contextlib.closing(store), pytest.raises(Misconfigured, match="may not use"):
        speak(store, Scene(0.02))


def test_the_application_may_not_rewrite_the_audit(owners, grants):
    with psycopg.connect(owners) as link:
        link.execute(grants.encode())
    apps = owners.replace(f"{USER}@", "app@")
    with psycopg.connect(apps) as link, pytest.raises(psycopg.errors.InsufficientPrivilege):
        link.execute("DELETE FROM samekey_audit")


def test_the_application_is_told_that_it_may_not_migrate(server):
    """The error says what it is, and nothing is half made."""
    address = server.create_database().replace(f"{USER}@", "app@")
    with pytest.raises(Misconfigured, match="may not"):
        migrate(address)
    with pytest.raises(Misconfigured, match="samekey migrate"), Guard(address) as guard:
        guard.run("charge", lambda: "paid", key="o-1", payload={})


def test_a_schema_that_is_not_there_is_told_and_how_to_make_it(server):
    """Not "run samekey migrate", which is what was run."""
    with pytest.raises(Misconfigured, match="CREATE SCHEMA"):
        migrate(f"{server.create_database()}?options=-csearch_path%3Dsamekey")


def test_the_tables_may_have_a_schema_of_their_own(server):
    """Named in the address, for migrating and for working."""
    address = server.create_database()
    with psycopg.connect(address) as link:
        link.execute("CREATE SCHEMA samekey")
    inside = f"{address}?options=-csearch_path%3Dsamekey"
    migrate(inside)
    with Guard(inside) as guard:
        assert guard.run("charge", lambda: "paid", key="o-1", payload={}).result == "paid"

    with psycopg.connect(address) as link:
        assert link.execute("SELECT count(*) FROM samekey.samekey_records").fetchone() == (1,)
        assert link.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
