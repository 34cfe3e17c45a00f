"""Bad input: one clear error each, before anything runs, and nothing is lost."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import resource
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from samekey import (
    AsyncGuard,
    Guard,
    Keyed,
    KeyMalformed,
    KeyMissing,
    Misconfigured,
    NotDone,
    PayloadRefused,
    Policy,
    RecordUnreadable,
    SamekeyError,
    State,
    StoreError,
    StoreUnavailable,
)
from samekey.drivers.sqlite import file_id, open_files
from samekey.stores.sqlite import SqliteStore
from tests.guard.helpers import Child, Ledger, Place, Side, Thread, until

NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become nobody")


# -- keys, tenants, names ---------------------------------------------------------------------------------------


BAD_KEYS: list[tuple[Any, type[Exception], str]] = [
    ("", KeyMissing, "empty"),
    (None, KeyMissing, "None"),
    ("x" * 1_000_000, KeyMalformed, "1000000 bytes"),
    ("é" * 600, KeyMalformed, "1200 bytes"),
    ("a\x00b", KeyMalformed, "control character"),
    ("line\nbreak", KeyMalformed, "control character"),
    ("\x7f", KeyMalformed, "control character"),
    ("\x85", KeyMalformed, "control character"),
    ("\ud800", KeyMalformed, "surrogate"),
    (b"bytes", KeyMalformed, "bytes"),
    (1.0, KeyMalformed, "float"),
    (False, KeyMalformed, "bool"),
    (10**5000, KeyMalformed, "1024 bytes"),
    (["a", ""], KeyMissing, "empty"),
    ((), KeyMissing, "parts"),
]


def test_a_key_that_cannot_be_one_is_refused_and_nothing_runs(side: Side, ledger: Ledger):
    for key, error, why in BAD_KEYS:
        with pytest.raises(error, match=why):
            side.run("charge", ledger.add, key=key, payload={})
    assert len(ledger) == 0


def test_a_key_of_the_greatest_length_works_and_is_never_cut(side: Side, ledger: Ledger):
    longest = "x" * 1024
    side.run("charge", ledger.add, key=longest, payload={})
    side.run("charge", ledger.add, key=longest[:-1], payload={})
    assert len(ledger) == 2


def test_keys_may_be_any_readable_text(side: Side, ledger: Ledger):
    for key in ("ключ", "钥匙", "🔑", "a b", "'; DROP TABLE samekey_records; --", "%00", "../../etc", " "):
        side.run("charge", ledger.add, key=key, payload={})
        assert side.run("charge", ledger.add, key=key, payload={}).replayed
    assert len(ledger) == 8


def test_tenants_and_names_are_checked_as_keys_are(side: Side, ledger: Ledger):
    for tenant in ("", "x" * 300, "a\nb", "\ud800", 7):
        with pytest.raises((KeyMissing, KeyMalformed), match="tenant"):
            side.run("charge", ledger.add, key="o-1", payload={}, tenant=tenant)
    for name in ("", "x" * 300, "a\tb", "\udfff", 7):
        with pytest.raises((KeyMissing, KeyMalformed), match="operation name"):
            side.run(name, ledger.add, key="o-1", payload={})  # type: ignore[arg-type]
    assert len(ledger) == 0


def test_payloads_without_an_exact_form_are_refused_with_their_place(side: Side, ledger: Ledger):
    deep: dict[str, Any] = {}
    deep["again"] = deep
    nan, many = float("nan"), {"x": "y" * 9_000_000}
    for payload in ({"a": [1, object()]}, {"a": nan}, {"a": "\ud800"}, {"\ud800": 1}, deep, many, {"a": lambda: 1}):
        with pytest.raises(PayloadRefused):
            side.run("charge", ledger.add, key="o-1", payload=payload)
    assert len(ledger) == 0


# -- policies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"store_down": "ignore"},
        {"store_down": None},
        {"result_max_bytes": 0},
        {"result_max_bytes": -1},
        {"result_max_bytes": True},
        {"result_max_bytes": 1.5},
        {"result_max_bytes": None},
        {"lease": "30s"},
        {"lease": 10**10},
        {"patience": 10**10},
        {"lease": 10**400},
        {"lease": 10**5000},
        {"lease": -(10**400)},
        {"patience": float("inf")},
        {"releases": None},
        {"releases": 3},
        {"closes": "ValueError"},
        {"releases": TimeoutError},
        {"releases": (ValueError, TimeoutError)},
    ],
    ids=lambda wrong: f"{wrong!r:.40}" if 10**5000 not in wrong.values() else "lease of 5001 digits",
)
def test_a_policy_that_cannot_work_is_refused_when_it_is_made(wrong: dict[str, Any]):
    with pytest.raises(Misconfigured, match=next(iter(wrong))):
        Policy(**wrong)


@pytest.mark.parametrize("wrong", [{"lease": 30}, "refuse", 30, object], ids=["dict", "str", "int", "type"])
def test_a_policy_must_be_one(memory: Place, wrong):
    with pytest.raises(Misconfigured, match="Policy"):
        Guard("memory://", policy=wrong)
    with pytest.raises((Misconfigured, TypeError)):
        memory.guard().run("charge", int, key="o-1", payload={}, policy=wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"secret": 5},
        {"secret": [5]},
        {"secret": object()},
        {"hooks": print},
        {"hooks": "x"},
        {"hooks": [None]},
        {"hooks": None},
        {"hooks": 3},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
@pytest.mark.parametrize("kind", [Guard, AsyncGuard])
def test_a_guard_that_cannot_work_is_refused_when_it_is_made(kind: Any, wrong: dict[str, Any]):
    with pytest.raises(Misconfigured, match=f"{next(iter(wrong))}= takes"):
        kind("memory://", **wrong)


@pytest.mark.parametrize(
    "ignore", [None, 7, {"items.0.client_ts"}, {"at", "items.*.0"}], ids=["none", "number", "index", "index in a list"]
)
def test_fields_to_ignore_that_never_match_are_refused(side: Side, ledger: Ledger, ignore: Any):
    """An index matches nothing: a list has no names, and a retry with another timestamp would be refused."""

    def charge(order_id: str, items: list[dict[str, int]], at: float) -> int:
        return ledger.add()

    with pytest.raises(Misconfigured, match="ignore"):
        side.once(name="charge", key="order_id", ignore=ignore)(charge)
    with pytest.raises(Misconfigured, match="ignore"):
        side.run("charge", ledger.add, key="o-1", payload={}, ignore=ignore)
    assert len(ledger) == 0


@pytest.mark.parametrize("aliases", ["old", None, 7, [7], b"old"], ids=repr)
def test_aliases_that_are_no_names_are_refused(side: Side, aliases: Any):
    """One string would be taken for its letters, and the old name's keys would run again."""

    def charge(order_id: str) -> str:
        return order_id

    with pytest.raises(Misconfigured, match="aliases"):
        side.once(name="charge", key="order_id", aliases=aliases)(charge)


@pytest.mark.parametrize("window", [0, -1, float("nan"), None, True, "1h"], ids=repr)
def test_a_window_that_is_no_time_is_refused(window):
    with pytest.raises(Misconfigured, match="window"):
        Keyed(window=window)


# -- addresses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("", "no store address"),
        ("keys.db", "no store address"),
        ("mongodb://localhost", "mongodb"),
        ("SQLITE:///keys.db", "SQLITE"),
        ("sqlite://keys.db", "names no file"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///keys.db?mode=ro", "mode"),
        ("sqlite:///keys.db?synchronous=off", "synchronous"),
        ("memory://shared", "memory"),
    ],
)
@pytest.mark.parametrize("kind", [Guard, AsyncGuard])
def test_an_address_that_names_no_store_is_refused(kind, address: str, why: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Misconfigured, match=why):
        kind(address).store  # noqa: B018 - the store is opened by whoever first needs it
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [None, 7, object(), Path("keys.db"), b"memory://"], ids=["n", "i", "o", "p", "b"])
def test_a_store_that_is_none_is_refused(wrong):
    for kind in (Guard, AsyncGuard):
        with pytest.raises(Misconfigured, match="store"):
            kind(wrong)


def opening(path: Path) -> SamekeyError:
    with pytest.raises(SamekeyError) as told:
        Guard(f"sqlite:///{path}").run("charge", lambda: pytest.fail("it ran"), key="o-1", payload={})
    return told.value


def test_a_directory_a_missing_parent_and_a_file_as_parent_are_told_apart(tmp_path: Path):
    (tmp_path / "file").write_text("not a directory")

    assert "is a directory" in str(opening(tmp_path))
    assert "does not exist" in str(opening(tmp_path / "nowhere" / "keys.db"))
    assert isinstance(opening(tmp_path / "file" / "keys.db"), Misconfigured)
    assert not (tmp_path / "nowhere").exists()


@as_root
@pytest.mark.parametrize("what", ["unreadable", "read-only", "read-only folder"])
def test_a_file_this_user_may_not_use_is_told_in_one_sentence(tmp_path: Path, what: str):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "keys.db"
    with Guard(f"sqlite:///{path}") as guard:
        guard.run("charge", lambda: 1, key="o-1", payload={})
    for parent in (tmp_path, *tmp_path.parents[:3]):
        os.chmod(parent, parent.stat().st_mode | 0o711)
    os.chmod(folder, 0o777 if what != "read-only folder" else 0o755)
    os.chmod(path, {"unreadable": 0o000, "read-only": 0o444, "read-only folder": 0o666}[what])

    def as_nobody() -> tuple[str, str]:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        error = opening(path)
        return type(error).__name__, str(error)

    kind, message = Child(as_nobody).result()
    assert kind == "Misconfigured"
    assert str(folder) in message
    assert ("cannot be read and written" in message) or ("not writable" in message)


def test_a_name_that_is_too_long_is_told_in_one_sentence(tmp_path: Path):
    error = opening(tmp_path / ("keys" * 100))

    assert isinstance(error, Misconfigured)
    assert "too long" in str(error)


@as_root
def test_a_folder_that_is_closed_to_this_user_is_told_in_one_sentence(tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    for parent in (tmp_path, *tmp_path.parents[:3]):
        os.chmod(parent, parent.stat().st_mode | 0o711)

    def as_nobody() -> tuple[str, str]:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        error = opening(folder / "keys.db")
        return type(error).__name__, str(error)

    kind, message = Child(as_nobody).result()
    assert kind == "Misconfigured"
    assert f"{folder}/keys.db cannot be looked at" in message


def test_a_file_with_a_second_name_is_refused(tmp_path: Path, ledger: Ledger):
    """SQLite keeps a log beside each name: a process that opened it by the other one would win the same key."""
    path, other = tmp_path / "keys.db", tmp_path / "other.db"
    charge = functools.partial(Guard.run, name="charge", effect=ledger.add, key="o-1", payload={})
    with Guard(f"sqlite:///{path}") as guard:
        charge(guard)
        os.link(path, other)

        by_the_other = Child(lambda: str(opening(other))).result()
        assert charge(guard).replayed  # whoever has it open goes on: nobody else can open it now

    assert "2 names (hard links)" in by_the_other
    assert "2 names" in str(opening(path))
    other.unlink()
    with Guard(f"sqlite:///{path}") as again:
        assert charge(again).replayed
    assert len(ledger) == 1


def test_a_file_behind_a_symbolic_link_is_one_file(tmp_path: Path, ledger: Ledger):
    path, link = tmp_path / "keys.db", tmp_path / "link.db"
    link.symlink_to(path)

    with Guard(f"sqlite:///{path}") as one, Guard(f"sqlite:///{link}") as other:
        one.run("charge", ledger.add, key="o-1", payload={})
        assert other.run("charge", ledger.add, key="o-1", payload={}).replayed


@as_root
def test_a_file_that_becomes_read_only_under_us_runs_nothing(tmp_path: Path):
    """Taken away while we have it open: the claim fails, so the effect does not run."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "keys.db"

    def work() -> list[str]:
        guard: Any = Guard(f"sqlite:///{path}")
        guard.run("charge", lambda: 1, key="o-1", payload={})
        guard.store._process.writer.execute("PRAGMA query_only = ON")  # as a file system remounted read-only answers
        try:
            guard.run("charge", lambda: 1, key="o-2", payload={})
        except SamekeyError as error:
            return [type(error).__name__, str(error)]
        return ["it ran"]

    kind, message = Child(work).result()
    assert kind in ("Misconfigured", "StoreUnavailable")
    assert "read-only" in message or "readonly" in message


def test_a_file_that_is_no_database_or_damaged_is_told(tmp_path: Path):
    path = tmp_path / "keys.db"
    path.write_bytes(b"this is not a database, although it has the right name" * 100)
    error = opening(path)
    assert isinstance(error, RecordUnreadable)
    assert "not a SQLite database" in str(error)
    assert path.read_bytes().startswith(b"this is not")


def test_a_page_that_is_damaged_is_told_and_nothing_runs_again(tmp_path: Path, ledger: Ledger):
    path = tmp_path / "keys.db"
    with Guard(f"sqlite:///{path}") as guard:
        for key in range(200):
            guard.run("charge", ledger.add, key=key, payload={})
    data = bytearray(path.read_bytes())
    for at in range(4096, len(data), 4096):
        data[at : at + 64] = b"\xff" * 64
    path.write_bytes(data)

    error = opening(path)
    assert isinstance(error, StoreError)
    assert len(ledger) == 200


def test_a_record_that_is_damaged_is_unreadable_and_its_effect_is_not_run_again(sqlite: Place, colour: str, ledger):
    side = sqlite.side(colour)
    side.run("charge", ledger.add, key="o-1", payload={})
    side.run("charge", ledger.add, key="o-2", payload={})
    connection = sqlite3.connect(sqlite.path)
    connection.execute("UPDATE samekey_records SET story = 'rubbish' WHERE key = 'o-1'")
    connection.execute("UPDATE samekey_records SET state = 'finished' WHERE key = 'o-2'")
    connection.commit()
    connection.close()

    for key in ("o-1", "o-2"):
        with pytest.raises(RecordUnreadable, match="damaged"):
            side.run("charge", ledger.add, key=key, payload={})
    assert len(ledger) == 2


def test_a_file_written_by_a_newer_version_is_refused_and_left_alone(tmp_path: Path):
    path = tmp_path / "keys.db"
    SqliteStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE samekey_meta SET value = '99' WHERE name = 'schema'")
    connection.commit()
    connection.close()

    gc.disable()
    try:
        error = opening(path)
        assert file_id(path) not in open_files()  # whoever may not use it does not keep it open
    finally:
        gc.enable()
    assert isinstance(error, Misconfigured)
    assert "newer samekey" in str(error)
    assert "99" in str(error)


def test_a_file_with_a_meta_table_of_somebody_else_is_refused_with_one_of_our_errors(tmp_path: Path):
    path = tmp_path / "keys.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE samekey_meta (name TEXT PRIMARY KEY, value TEXT)")
    connection.execute("INSERT INTO samekey_meta VALUES ('schema', 'rubbish')")
    connection.commit()
    connection.close()

    assert isinstance(opening(path), SamekeyError)


# -- the disk is full -----------------------------------------------------------------------------------------------


def limited(tmp_path: Path, work: Any, room: int) -> Any:
    """`work()` in a process that may write no file larger than its log is now plus `room` bytes."""

    def inside() -> Any:
        log = tmp_path / "keys.db-wal"
        size = max(log.stat().st_size if log.exists() else 0, (tmp_path / "keys.db").stat().st_size)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, size + room))
        return work()

    return inside


def test_a_full_disk_refuses_the_claim_and_runs_nothing(tmp_path: Path):
    path = tmp_path / "keys.db"

    def work() -> tuple[str, int]:
        guard, ran = Guard(f"sqlite:///{path}"), 0
        guard.run("charge", lambda: 1, key="warm", payload={})

        def effect() -> None:
            nonlocal ran
            ran += 1

        def fill() -> tuple[str, int]:
            for key in range(10_000):
                try:
                    guard.run("charge", effect, key=key, payload={}, policy=Policy(lease=1))
                except SamekeyError as error:
                    return type(error).__name__, ran - key
            return "never full", ran

        return limited(tmp_path, fill, 50_000)()  # type: ignore[no-any-return]

    name, more = Child(work).result()
    assert name == "StoreUnavailable"
    assert more == 0  # every effect that ran had its claim, and the one that was refused did not run


def test_a_disk_that_is_full_at_completion_is_told_and_never_repeats(tmp_path: Path):
    path = tmp_path / "keys.db"

    def work() -> tuple[bool, str]:
        guard = Guard(f"sqlite:///{path}", policy=Policy(lease=1))
        guard.run("charge", lambda: 1, key="warm", payload={})

        def effect() -> str:
            log = tmp_path / "keys.db-wal"
            resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, resource.RLIM_INFINITY))
            return "done" * 3000

        answer = guard.run("charge", effect, key="o-1", payload={})
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        try:
            guard.run("charge", lambda: "again", key="o-1", payload={})
        except SamekeyError as error:
            return answer.recorded, type(error).__name__
        return answer.recorded, "it ran again"

    assert Child(work).result() == (False, "InDoubt")


# -- a guard that is closed --------------------------------------------------------------------------------------------


def test_a_closed_guard_says_so_and_runs_nothing(sqlite: Place, ledger: Ledger):
    guard = Guard(sqlite.url)
    guard.run("charge", ledger.add, key="o-1", payload={})
    guard.close()
    guard.close()

    for call in (
        lambda: guard.run("charge", ledger.add, key="o-1", payload={}),
        lambda: guard.run("charge", ledger.add, key="o-2", payload={}),
        lambda: guard.hold("charge", key="o-2", payload={}),
        lambda: guard.peek("charge", "o-1"),
    ):
        with pytest.raises(StoreUnavailable, match="closed"):
            call()
    outcome = Thread(lambda: guard.run_many("charge", ledger.add, [{"id": 1}], key="id")).outcome()
    assert all(isinstance(one, StoreUnavailable) for one in (outcome if isinstance(outcome, list) else [outcome]))
    assert len(ledger) == 1


def test_a_guard_closed_before_its_first_use_is_closed_too(sqlite: Place, ledger: Ledger):
    with Guard(sqlite.url) as guard:
        pass

    with pytest.raises(StoreUnavailable, match="closed"):
        guard.run("charge", ledger.add, key="o-1", payload={})
    assert len(ledger) == 0


def test_a_closed_asyncguard_says_so_and_does_not_hang(sqlite: Place, ledger: Ledger):
    async def main() -> None:
        guard = AsyncGuard(sqlite.url)

        async def effect() -> int:
            return ledger.add()

        await guard.run("charge", effect, key="o-1", payload={})
        await guard.close()
        for key in ("o-1", "o-2"):
            with pytest.raises(StoreUnavailable, match="closed"):
                await asyncio.wait_for(guard.run("charge", effect, key=key, payload={}), 3)

    asyncio.run(main())
    assert len(ledger) == 1


def test_closing_while_callers_wait_for_their_turn_answers_or_refuses_each(
    sqlite: Place, colour: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    """Twenty callers are claiming when the guard is closed: each is answered or refused, none waits for ever."""
    side = sqlite.side(colour)
    side.run("charge", ledger.add, key="warm", payload={})
    process = getattr(side.guard.store, "sync", side.guard.store)._process
    claiming: list[Any] = []
    carry_out = side.guard.store.carry_out

    def counted(command: Any) -> Any:
        claiming.append(command)
        return carry_out(command)

    monkeypatch.setattr(side.guard.store, "carry_out", counted)
    connection = sqlite3.connect(sqlite.path, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    threads = [
        Thread(lambda n=n: side.run("charge", ledger.add, key=n, payload={}, policy=Policy(lease=1)))  # type: ignore[misc]
        for n in range(20)
    ]
    until(lambda: len(claiming) == 20 and process.turn.locked())
    closing = Thread(lambda: getattr(side.guard.store, "sync", side.guard.store).close())
    until(lambda: process.closed)
    connection.execute("ROLLBACK")
    connection.close()
    closing.result()
    outcomes = [thread.outcome(8) for thread in threads]

    refused = [one for one in outcomes if isinstance(one, Exception)]
    assert all(isinstance(one, StoreUnavailable) for one in refused)
    assert len(ledger) == 1 + sum(not isinstance(one, Exception) for one in outcomes)


# -- effects that are odd --------------------------------------------------------------------


def test_an_effect_that_is_not_callable_runs_nothing_and_is_refused_before_the_claim(place: Place):
    guard = place.guard()
    with pytest.raises((TypeError, Misconfigured)):
        guard.run("charge", "not a function", key="o-1", payload={})
    record = place.look("charge", "o-1")
    assert record is None or record.state is State.RELEASED


def steps() -> Iterator[int]:
    yield 1


async def asteps() -> AsyncIterator[int]:
    yield 1


class Steps:
    def __call__(self) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize("effect", [steps, asteps, functools.partial(steps), Steps()])
def test_a_generator_as_an_effect_is_refused_before_the_claim(place: Place, effect: Any):
    """Called, it has done nothing yet: it would be remembered as completed, and never happen."""
    with pytest.raises(Misconfigured, match="generator"):
        place.guard().run("charge", effect, key="o-1", payload={})
    with pytest.raises(Misconfigured, match="generator"):
        asyncio.run(place.async_guard().run("charge", effect, key="o-1", payload={}))
    assert place.look("charge", "o-1") is None


class Async:
    async def __call__(self) -> int:
        return 1


async def plainly_async() -> int:
    return 1


@pytest.mark.parametrize("effect", [plainly_async, functools.partial(plainly_async), Async(), Async().__call__])
def test_an_async_effect_under_guard_is_refused_before_the_claim(place: Place, effect: Any):
    with pytest.raises(Misconfigured, match="AsyncGuard"):
        place.guard().run("charge", effect, key="o-1", payload={})

    assert place.look("charge", "o-1") is None
    assert asyncio.run(place.async_guard().run("charge", effect, key="o-1", payload={})).result == 1


def test_a_plain_effect_under_asyncguard_is_told_in_words(place: Place, ledger: Ledger):
    """A class is known before the claim; a function may return an awaitable, and has run when it does not."""
    guard = place.async_guard()
    classes: list[Any] = [int, functools.partial(dict, a=1)]
    for effect in classes:
        with pytest.raises(Misconfigured, match=r"cannot be awaited: run it with Guard"):
            asyncio.run(guard.run("charge", effect, key="o-1", payload={}))
    assert place.look("charge", "o-1") is None

    with pytest.raises(Misconfigured, match=r"returned int, which cannot be awaited: AsyncGuard runs async functions"):
        asyncio.run(guard.run("charge", ledger.add, key="o-1", payload={}))
    assert place.peek("charge", "o-1").state is State.IN_DOUBT
    assert asyncio.run(guard.run("charge", lambda: plainly_async(), key="o-2", payload={})).result == 1


def test_raising_a_class_instead_of_an_instance_is_the_same_word(place: Place, side: Side):
    def effect():
        raise NotDone

    with pytest.raises(NotDone):
        side.run("charge", effect, key="o-1", payload={})
    assert place.peek("charge", "o-1").state is State.RELEASED
