"""Every command of the command line on every store that a server or a file keeps: the table is the same for all.

The records hold a planted secret, which no output and no log line may show.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from samekey import Absent, Asks, Guard, Happened, Policy, StillUnknown
from samekey.cli._root import root
from samekey.drivers.mysql.migrate import migrate as migrate_mysql
from samekey.drivers.postgres.migrate import migrate as migrate_postgres
from samekey.guard.store_urls import open_store
from samekey.testing.servers import redis_server
from tests.ops.scene import Scene

RUNNER: Any = CliRunner
if "mix_stderr" in signature(CliRunner).parameters:
    RUNNER = partial(RUNNER, mix_stderr=False)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["sqlite", "postgres", "redis", "mysql"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    match request.param:
        case "sqlite":
            yield f"sqlite:///{tmp_path_factory.mktemp('cli') / 'keys.db'}"
        case "postgres":
            made = request.getfixturevalue("samekey_postgres").create_database()
            migrate_postgres(made)
            yield made
        case "mysql":
            made = request.getfixturevalue("samekey_mariadb").create_database()
            migrate_mysql(made)
            yield made
        case _:
            with redis_server(appendonly="yes") as server:
                yield server.url()


@pytest.fixture(scope="module")
def scene(address: str) -> Iterator[Scene]:
    with contextlib.closing(open_store(address, asynchronous=False)) as store:
        yield Scene(store)


SECRET = "canary-4242-4242"  # in every payload, result and error text here: no line may show it. `show` prints notes


@pytest.fixture(autouse=True)
def no_secret_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level("DEBUG", "samekey")
    yield
    assert SECRET not in caplog.text


def typed(address: str, *words: str) -> Any:
    result = RUNNER(env={"SAMEKEY_STORE": address}).invoke(root, words, prog_name="samekey")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert SECRET not in result.output + result.stderr
    return result


class Row(NamedTuple):
    """What is typed about an operation of its own, and what comes of it; `{op}` is the operation's name."""

    name: str
    made: Callable[[Scene, str], Any]  # the records, before the command
    words: tuple[str, ...]
    exit: int
    shown: str = ""  # in stdout
    hint: str = ""  # in stderr


def nothing(scene: Scene, op: str) -> None:
    return None


def completed(scene: Scene, op: str, key: str = "o-1") -> None:
    scene.guard.run(op, lambda: {"card": SECRET}, key=key, payload={"card": SECRET})


def in_doubt(scene: Scene, op: str) -> None:
    with pytest.raises(TimeoutError):
        scene.guard.run(op, _times_out, key="o-1", payload={"card": SECRET})


def held(scene: Scene, op: str) -> None:
    scene.held("o-1", name=op)


def doubled(scene: Scene, op: str) -> None:
    """One content under two keys."""
    completed(scene, op, "o-1")
    completed(scene, op, "o-2")


SURE = ("--who", "ann", "--why", "ticket 17", "--yes")
TABLE = [
    Row("ls", completed, ("ls", "--operation", "{op}"), 0, "completed"),
    Row("ls-found", in_doubt, ("ls", "--operation", "{op}", "--waiting"), 1, "in_doubt"),
    Row("ls-none", nothing, ("ls", "--operation", "{op}", "--waiting"), 0, "", "no records"),
    Row("ls-bad", nothing, ("ls", "--state", "done"), 2, "", "done"),
    Row("show", completed, ("show", "{op}", "o-1"), 0, "completed"),
    Row("show-none", nothing, ("show", "{op}", "o-1"), 6, "", "no record"),
    Row("show-bad", nothing, ("show", "a", "b", "c"), 2),
    Row("explain", in_doubt, ("explain", "{op}", "o-1"), 0, "samekey resolve"),
    Row("explain-none", completed, ("explain", "{op}", "o-2"), 6),
    Row("resolve-dry", in_doubt, ("resolve", "{op}", "o-1", "--happened", "--dry-run"), 0),
    Row("resolve", in_doubt, ("resolve", "{op}", "o-1", "--happened", "--result", '"paid"', *SURE), 0, "completed"),
    Row("resolve-refused", completed, ("resolve", "{op}", "o-1", "--not-done", *SURE), 5),
    Row("resolve-live", held, ("resolve", "{op}", "o-1", "--not-done", *SURE), 5),
    Row("resolve-bad", in_doubt, ("resolve", "{op}", "o-1", "--happened", "--not-done", *SURE), 2),
    Row("resolve-many", in_doubt, ("resolve", "--operation", "{op}", "--not-done", *SURE, "1"), 0),
    Row("resolve-many-wrong", in_doubt, ("resolve", "--operation", "{op}", "--not-done", *SURE, "2"), 5),
    Row("redact", completed, ("redact", "{op}", "o-1", *SURE), 0),
    Row("redact-refused", in_doubt, ("redact", "{op}", "o-1", *SURE), 5),
    Row("redact-none", nothing, ("redact", "{op}", "o-1", *SURE), 6),
    Row("free", completed, ("free", "{op}", "o-1", *SURE), 0),
    Row("free-seen", completed, ("free", "{op}", "o-1", *SURE, "--seen", "00000000"), 5),
    Row("free-refused", held, ("free", "{op}", "o-1", *SURE), 5),
    Row("free-bad", completed, ("free", "{op}", "o-1", "--yes"), 2, "", "--why"),
    Row("sweep", completed, ("sweep",), 0),
    Row("sweep-bad", nothing, ("sweep", "--piece", "0"), 2),
    Row("stats", completed, ("stats",), 0),
    Row("stats-bad", nothing, ("stats", "--since", "soon"), 2),
    Row("audit", nothing, ("audit", "--operation", "{op}"), 0),
    Row("audit-bad", nothing, ("audit", "--limit", "0"), 2),
    Row("doubles", doubled, ("doubles", "--operation", "{op}"), 1, "o-2"),
    Row("doubles-none", completed, ("doubles", "--operation", "{op}"), 0),
    Row("doubles-bad", nothing, ("doubles", "--window", "-1"), 2),
    Row("migrate", nothing, ("migrate", "--dry-run"), 0),
    Row("migrate-bad", nothing, ("migrate", "--phase", "late"), 2),
]


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_a_command_does_the_same_on_every_store(address: str, scene: Scene, row: Row):
    op = f"{row.name}-op"
    row.made(scene, op)
    result = typed(address, *(word.replace("{op}", op) for word in row.words))

    if row.name == "migrate" and address.startswith("redis"):
        assert result.exit_code == 2, result.output  # Redis has no tables, and it says so
        return
    assert result.exit_code == row.exit, (result.stdout, result.stderr)
    assert row.shown in result.stdout
    assert row.hint in result.stderr


RECORD = {"operation", "key", "tenant", "state", "digest", "result", "moves"}
FORMS: dict[tuple[str, ...], set[str]] = {
    ("ls", "--operation", "{op}"): RECORD,
    ("show", "{op}", "o-1"): RECORD,
    ("explain", "{op}", "o-1"): {"operation", "key", "tenant", "state", "turn"},
    ("resolve", "{op}", "o-1", "--happened", *SURE): RECORD,
    ("redact", "{op}", "o-1", *SURE): {"action", "done", "record"},
    ("audit", "--operation", "{op}"): {"who", "why", "action", "operation"},
    ("free", "{op}", "o-1", *SURE): {"action", "done", "record"},
    ("sweep",): {"store", "swept", "complete"},
    ("stats",): {"store", "attempts", "states"},
    ("doctor",): {"store", "guarantee", "warnings", "facts"},
}


def test_json_has_the_same_fields_on_every_store(address: str, scene: Scene):
    op = "json-op"
    in_doubt(scene, op)
    wrong = []
    for words, fields in FORMS.items():
        result = typed(address, *(word.replace("{op}", op) for word in words), "--json")
        found = [json.loads(line) for line in result.stdout.splitlines()]
        if not found or not fields | {"v"} <= set(found[0]) or not set(found[0].get("record", RECORD)) >= RECORD:
            wrong.append((words, sorted(fields), result.exit_code, result.stdout, result.stderr))

    assert not wrong


@pytest.mark.parametrize(("verdict", "exit"), [(Happened("ch_1"), 0), (StillUnknown(), 1)])
def test_ask_calls_the_lookup_on_every_store(address: str, verdict: Any, exit: int, tmp_path: Path, monkeypatch):
    op = f"ask-{type(verdict).__name__}"
    module = f"shop_{op.replace('-', '_').lower()}_{address.partition(':')[0]}"
    (tmp_path / f"{module}.py").write_text(
        "from samekey import Asks, Guard, Happened, StillUnknown\n"
        f"guard = Guard({address!r})\n"
        f"@guard.once(name={op!r}, key='order', boundary=Asks(lambda record: {verdict!r}))\n"
        "def charge(order: str) -> str:\n"
        "    raise TimeoutError\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with Guard(address, policy=Policy(lease=30)) as guard, pytest.raises(TimeoutError):
        guard.run(op, _times_out, key="o-1", payload={"order": "o-1"}, boundary=Asks(lambda record: Absent()))
    result = typed(address, "ask", op, "o-1", "--app", f"{module}:guard")

    assert result.exit_code == exit, (result.stdout, result.stderr)


def _times_out() -> str:
    raise TimeoutError(f"no answer for {SECRET}")


def test_adopt_on_every_store(address: str, scene: Scene, tmp_path: Path):
    file = tmp_path / "keys.csv"
    file.write_text("key,state,body\nk-1,completed,paid\nk-2,in_progress,\n")
    words = ("adopt", str(file), "--map", "key=key,status=state,response=body", "--operation", "adopted-op")

    assert typed(address, *words).exit_code == 0
    assert typed(address, *words, "--yes", "3").exit_code == 5
    assert typed(address, *words, "--who", "ann", "--yes", "2").exit_code == 0
    assert scene.guard.run("adopted-op", pytest.fail, key="k-1", payload=1).result == "paid"
    assert json.loads(typed(address, "audit", "--operation", "adopted-op", "--json").stdout)["who"] == "ann"


def test_no_command_reaches_a_store_that_is_not_there(address: str):
    wrong = {"sqlite": "sqlite:////nowhere/keys.db", "redis": "redis://127.0.0.1:1"}
    wrong |= {"postgresql": "postgresql://127.0.0.1:1/none", "mysql": "mysql://127.0.0.1:1/none"}
    for words in (("ls",), ("stats",), ("audit",), ("doctor",), ("sweep",), ("show", "a", "b")):
        assert typed(wrong[address.partition(":")[0]], *words).exit_code == 3, words
