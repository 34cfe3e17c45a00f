"""samekey adopt and the filters of ls on PostgreSQL: a table of the user's own, taken over into samekey's."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from samekey import Guard
from samekey.cli._root import root
from samekey.drivers.postgres.migrate import migrate
from samekey.testing.servers import postgres

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url():
    with postgres() as server:
        address = server.create_database()
        migrate(address)
        yield address


def run(url, *words):
    return CliRunner(env={"SAMEKEY_STORE": url}).invoke(root, words, prog_name="samekey")


def test_keys_of_a_table_are_adopted_once_and_found(url):
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA shop")
        connection.execute('CREATE TABLE shop."old keys" (k text, body jsonb, state text, at timestamp)')
        connection.execute(
            """INSERT INTO shop."old keys"
            VALUES ('k-1', '{"id": 1}', 'done', now()), ('k-2', null, 'locked', now())"""
        )
    columns = "key=k,response=body,status=state,created_at=at"
    words = ("adopt", url, "--table", "shop.old keys", "--map", columns, "--operation", "charge")

    assert run(url, *words).exit_code == 0
    for written in (2, 0):
        result = run(url, *words, "--yes", "2", "--json")
        assert result.exit_code == 0, result.output
        printed = json.loads(next(line for line in result.output.splitlines() if line.startswith("{")))
        assert (printed["written"], printed["there"]) == (written, 2 - written)
    with Guard(url) as guard:
        assert guard.run("charge", pytest.fail, key="k-1", payload={"any": "thing"}).result == {"id": 1}
        record = guard.peek("charge", "k-2")
    assert record is not None
    waiting = run(url, "ls", "--waiting", "--oldest-first")
    assert (waiting.exit_code, "k-2" in waiting.output, "k-1" in waiting.output) == (1, True, False)
    assert "k-2" in run(url, "ls", "--provider-key", record.provider_key()).output
    assert run(url, "adopt", url, "--table", "nope", "--map", "key=k", "--operation", "charge").exit_code != 0


def held_by(guard) -> Any:
    return guard.hold("pay", key="o-1", payload=None)


def test_a_decision_over_a_lease_and_what_is_read_and_removed(url):
    """The doubt is written in the holder's place, which SQL must allow as the register does."""
    over = ("resolve", "pay", "o-1", "--not-done", "--why", "w", "--yes")
    with Guard(url) as guard, held_by(guard) as held:
        assert run(url, *over).exit_code == 5
        result = run(url, *over, "--lease-is-over")
        assert result.exit_code == 0, result.output
        held.complete("after all")  # the holder was alive: no other attempt took the key, so its outcome counts
    with Guard(url) as guard:
        record = guard.peek("pay", "o-1")
    assert record is not None
    assert [move.after for move in record.moves] == ["started", "in_doubt", "released", "completed"]
    assert run(url, "free", "pay", "o-1", "--why", "w", "--yes").exit_code == 0
    for words in (("stats", "--json"), ("audit",), ("doubles",)):
        assert run(url, *words).exit_code == 0
