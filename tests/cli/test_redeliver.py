"""samekey redeliver: parked messages are published again, and marked."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from samekey.core.parking import ParkedQuery, make_parked
from samekey.stores.sqlite import SqliteStore

PUBLISHER = """
from pathlib import Path

def publish(parked):
    if b"refuse" in parked.body:
        raise ConnectionError("the broker is down")
    with open("published", "a") as file:
        file.write(f"{parked.destination} {parked.key} {parked.header_pairs} {parked.body.decode()}\\n")

nothing = None
"""


@pytest.fixture
def parked(shell, scene, monkeypatch):
    """A store with parked messages, in a folder with a module that publishes."""
    folder = Path(shell.path).parent
    (folder / "publisher.py").write_text(PUBLISHER)
    monkeypatch.chdir(folder)

    def park(key: str, kind: str = "in doubt", body: bytes = b"{}"):
        texts = {"operation": "pay", "key": key, "destination": "orders", "kind": kind, "reason": f"{kind}: x"}
        with closing(SqliteStore(shell.path)) as store:
            store.park(make_parked(at=1e9, tenant=None, headers={"h": "1"}, body=body, **texts))

    return park


def waiting(shell) -> list[str]:
    with closing(SqliteStore(shell.path)) as store:
        return sorted(one.key for one in store.parked(ParkedQuery(waiting=True)))


def test_one_message_is_published_then_marked_and_audited(shell, parked):
    parked("o-1", body=b'{"id": "o-1"}')
    parked("o-2")

    result = shell("redeliver", "pay", "o-1", "--publish", "publisher:publish", "--who", "ann")

    assert (result.exit_code, waiting(shell)) == (0, ["o-2"])
    assert Path("published").read_text() == "orders o-1 {'h': '1'} {\"id\": \"o-1\"}\n"
    with closing(SqliteStore(shell.path)) as store:
        entry = store.audit(1)[0]
    assert (entry.who, entry.action) == ("ann", "redeliver")


def test_all_of_one_reason_are_published(shell, parked):
    parked("o-1")
    parked("o-2", body=b"[]")
    parked("o-3", kind="poison")

    result = shell("redeliver", "--reason", "in doubt", "--publish", "publisher:publish", "--json")

    printed = json.loads(result.stdout)
    assert (result.exit_code, waiting(shell)) == (0, ["o-3"])
    assert sorted(one["key"] for one in printed["messages"]) == ["o-1", "o-2"]
    assert "body" not in printed["messages"][0]


def test_a_dry_run_publishes_nothing(shell, parked):
    parked("o-1")

    result = shell("redeliver", "o-1", "--dry-run")

    assert (result.exit_code, waiting(shell), Path("published").exists()) == (0, ["o-1"], False)
    assert "pay o-1" in result.stdout


def test_a_message_that_cannot_be_published_stays_parked(shell, parked):
    parked("o-1", body=b"refuse")

    result = shell("redeliver", "o-1", "--publish", "publisher:publish")

    assert (result.exit_code, waiting(shell)) == (2, ["o-1"])
    assert "stays parked" in result.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["o-1"], 2),
        (["o-1", "--reason", "poison", "--dry-run"], 2),
        (["--dry-run"], 2),
        (["a", "b", "c", "--dry-run"], 2),
        (["o-1", "--publish", "publisher:nothing"], 2),
        (["o-1", "--publish", "no_such_module:publish"], 2),
        (["o-9", "--dry-run"], 6),
    ],
)
def test_wrong_usage_publishes_nothing(shell, parked, words, code):
    parked("o-1")

    assert shell("redeliver", *words).exit_code == code
    assert waiting(shell) == ["o-1"]
