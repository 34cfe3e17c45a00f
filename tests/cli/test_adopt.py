"""samekey adopt: the keys of another table, looked at first, and then written once."""

from __future__ import annotations

import csv
import json
import sqlite3
from contextlib import closing

import pytest

from samekey import InDoubt
from samekey.core.states import State
from samekey.ops import Ops

MAP = "key=idempotency_key,request_hash=hash,response=body,status=state,created_at=made"
COLUMNS = ("idempotency_key", "hash", "body", "state", "made")
ROWS = [
    ("k-1", "h1", '{"id": "ch_1"}', "completed", "2026-05-03T10:00:00Z"),
    ("k-2", "h2", "plain text", "SUCCEEDED", "2026-05-03T10:00:01Z"),
    ("k-3", "h3", "", "in_progress", "2026-05-03T10:00:02Z"),
]


def write_csv(path, rows=ROWS):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    return str(path)


def write_jsonl(path):
    path.write_text("\n".join(json.dumps(dict(zip(COLUMNS, row, strict=True))) for row in ROWS) + "\n")
    return str(path)


def write_sqlite(path):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f'CREATE TABLE "old keys" ({", ".join(COLUMNS)})')
        connection.executemany('INSERT INTO "old keys" VALUES (?, ?, ?, ?, ?)', ROWS)
    return f"sqlite:///{path}"


def replayed(scene, key, **payload):
    return scene.guard.run("charge", pytest.fail, key=key, payload=payload).result


@pytest.fixture
def keys(tmp_path, scene):
    return write_csv(tmp_path / "keys.csv")


def test_a_dry_run_comes_first_and_writes_nothing(shell, scene, keys):
    result = shell("adopt", keys, "--map", MAP, "--operation", "charge")

    assert result.exit_code == 0
    assert "charge k-1 -> completed" in result.stderr
    assert "rows: 2 completed, 0 closed, 1 in_doubt, 0 skip" in result.stderr
    assert "--yes 3 writes 3 records" in result.stderr
    assert shell("ls").stdout == ""


def test_who_adopted_what_is_in_the_audit_log(shell, scene, keys):
    words = ("adopt", keys, "--map", MAP, "--operation", "charge", "--tenant", "acme", "--who", "ann")
    shell(*words)
    assert shell("audit").stdout == ""

    shell(*words, "--yes", "3")
    entry = json.loads(shell("audit", "--json").stdout)

    assert (entry["who"], entry["action"], entry["operation"], entry["tenant"]) == ("ann", "adopt", "charge", "acme")
    assert entry["why"] == f"3 rows of {keys}"


@pytest.mark.parametrize("kind", ["csv", "jsonl", "sqlite"])
def test_the_answers_of_yesterday_are_replayed_and_what_was_in_progress_is_in_doubt(shell, scene, tmp_path, kind):
    write = {"csv": write_csv, "jsonl": write_jsonl, "sqlite": write_sqlite}[kind]
    source = write(tmp_path / f"keys.{kind}")
    table = ("--table", "old keys") if kind == "sqlite" else ()
    words = ("--map", MAP, "--operation", "charge", *table)
    result = shell("adopt", source, *words, "--who", "ann", "--yes", "3")

    assert result.exit_code == 0
    assert result.stdout == "adopted 3 keys; 0 had a record already\n"
    assert replayed(scene, "k-1", amount=1) == {"id": "ch_1"}
    assert replayed(scene, "k-1", amount=2) == {"id": "ch_1"}  # a foreign hash cannot be compared
    assert replayed(scene, "k-2") == "plain text"
    with pytest.raises(InDoubt):
        replayed(scene, "k-3")
    record = scene.peek("k-1")
    assert record.attributes == (("adopted_created_at", "2026-05-03T10:00:00Z"),)
    assert record.moves[-1].why.startswith("adopted from ")
    assert record.moves[-1].why.endswith(" by ann")


def test_explain_says_that_the_payload_is_not_compared(shell, scene, keys):
    shell("adopt", keys, "--map", MAP, "--operation", "charge", "--yes", "3")

    assert "every payload gets its answer" in shell("explain", "charge", "k-1").stdout
    assert json.loads(shell("show", "charge", "k-1", "--json").stdout)["compared"] is False


def test_a_second_run_writes_nothing_and_a_record_of_ours_stays(shell, scene, keys):
    scene.completed("k-2", result="our own")
    words = ("adopt", keys, "--map", MAP, "--operation", "charge", "--yes", "3")

    assert shell(*words).stdout == "adopted 2 keys; 1 had a record already\n"
    versions = [scene.peek(f"k-{number}").version for number in (1, 2, 3)]
    assert shell(*words).stdout == "adopted 0 keys; 3 had a record already\n"
    assert [scene.peek(f"k-{number}").version for number in (1, 2, 3)] == versions
    assert scene.guard.run("charge", pytest.fail, key="k-2", payload={"amount": 200}).result == "our own"


def test_an_interrupted_run_goes_on(shell, scene, tmp_path, monkeypatch):
    """Ctrl-C between two pieces, and even between a claim and its settle."""
    source = write_csv(tmp_path / "many.csv", [(f"k-{n}", "", "1", "done", "") for n in range(5)])
    words = ("adopt", source, "--map", MAP, "--operation", "charge", "--yes", "5")
    monkeypatch.setattr("samekey.cli.adopt.PIECE", 2)
    adopt, calls = Ops.adopt, []

    def interrupted(self, rows, **given):
        calls.append(rows)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return adopt(self, rows, **given)

    with monkeypatch.context() as patch:
        patch.setattr(Ops, "adopt", interrupted)
        first = shell(*words)
    assert (first.exit_code, first.stdout) == (4, "adopted 2 keys; 0 had a record already\n")

    batch, claims = type(scene.store).batch, []

    def cut(self, commands):
        claims.append(commands)
        if len(claims) == 4:
            raise KeyboardInterrupt
        return batch(self, commands)

    with monkeypatch.context() as patch:
        patch.setattr(type(scene.store), "batch", cut)
        assert shell(*words).exit_code == 4
    assert shell(*words).exit_code == 0
    assert {scene.peek(f"k-{n}").state for n in range(5)} == {State.COMPLETED}


def test_an_unknown_status_is_listed_and_left_out(shell, scene, tmp_path):
    source = write_csv(tmp_path / "odd.csv", [*ROWS, ("k-4", "", "", "failed", ""), ("k-5", "", "", "", "")])
    result = shell("adopt", source, "--map", MAP, "--operation", "charge", "--yes", "3", "--json")

    assert result.exit_code == 1
    assert "1 rows with the status 'failed'" in result.stderr
    printed = json.loads(result.stdout)
    assert printed.pop("store") == shell.store
    assert printed == {
        "v": 1,
        "dry_run": False,
        "rows": {"completed": 2, "closed": 0, "in_doubt": 1, "skip": 0},
        "unknown": {"failed": 1, "(empty)": 1},
        "without_key": 0,
        "written": 3,
        "there": 0,
    }
    named = shell(
        "adopt", source, "--map", MAP, "--operation", "charge", "--status", "failed=closed", "--status", "=skip"
    )
    assert (named.exit_code, "--yes 4 writes 4 records" in named.stderr) == (0, True)


def test_http_answers_keep_their_status(shell, scene, tmp_path):
    path = tmp_path / "http.csv"
    path.write_text('key,code,body\nk-1,201,"{""id"": 1}"\nk-2,,\nk-3,500,oops\n')
    words = ("--map", "key=key,status=code,response=body", "--operation", "POST /charges")
    result = shell("adopt", str(path), *words, "--yes", "1")

    assert result.exit_code == 1  # 500 and nothing are no known statuses
    answer = scene.guard.run("POST /charges", pytest.fail, key="k-1", payload=None).result
    assert answer == b'201\ncontent-type: application/json\n\n{"id": 1}'


def test_rows_without_a_key_are_named_and_left_out(shell, scene, tmp_path):
    source = write_csv(tmp_path / "bad.csv", [("", "", "1", "done", ""), ("a\tb", "", "1", "done", ""), ROWS[0]])
    result = shell("adopt", source, "--map", MAP, "--operation", "charge")

    assert result.exit_code == 1
    assert "left out: row 1: the key is empty" in result.stderr
    assert "2 rows have no usable key" in result.stderr


def test_a_number_that_is_not_the_number_of_rows_writes_nothing(shell, scene, keys):
    for yes in (("--yes", "2"), ("--yes",)):
        result = shell("adopt", keys, "--map", MAP, "--operation", "charge", *yes)
        assert result.exit_code == 5
    assert shell("ls").stdout == ""


@pytest.mark.parametrize(
    "wrong",
    [
        ["--map", "key=nope", "--operation", "charge"],
        ["--map", "response=body", "--operation", "charge"],
        ["--map", "key", "--operation", "charge"],
        ["--map", "key=a,colour=b", "--operation", "charge"],
        ["--map", MAP],
        ["--map", MAP, "--operation", ""],
        ["--map", MAP, "--operation", "charge", "--status", "x=paid"],
        ["--map", MAP, "--operation", "charge", "--table", "t"],
        ["--map", f"{MAP},tenant=hash", "--operation", "charge", "--tenant", "acme"],
    ],
    ids=str,
)
def test_bad_input(shell, keys, wrong):
    assert shell("adopt", keys, *wrong).exit_code == 2


@pytest.mark.parametrize("source", ["nope.csv", "sqlite:///nope.db", "mysql://host/db", "sqlite://"])
def test_a_source_that_is_none(shell, scene, source):
    assert shell("adopt", source, "--table", "t", "--map", MAP, "--operation", "charge").exit_code == 2
