"""Forks and processes: a guard connects in the process that uses it, and a child never shares its parent's file."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest

from samekey import AsyncGuard, Guard, InDoubt, Policy, Repeatable, SamekeyError, State
from samekey.stores.sqlite import _process
from tests.guard.helpers import Child, FileLedger, Ledger, Place, Signal, Thread, leave_nobody_behind, outlived, until


def test_after_a_fork_children_claim_distinct_keys_and_share_one(sqlite: Place, shared_ledger: FileLedger):
    """The guard was made and used before the fork, by os.fork."""
    guard = sqlite.guard()
    guard.run("charge", lambda: shared_ledger.add("parent"), key="parent", payload={})

    def work(number: int) -> list[str]:
        own = guard.run("charge", lambda: shared_ledger.add(f"own {number}"), key=f"own {number}", payload={})
        common = guard.run("charge", lambda: shared_ledger.add("common"), key="common", payload={})
        parents = guard.run("charge", lambda: shared_ledger.add("again"), key="parent", payload={})
        return [own.result, common.result, parents.result]

    children = [Child(lambda n=number: work(n)) for number in range(4)]  # type: ignore[misc]
    mine = work(4)
    results = [child.result() for child in children]

    assert [*results, mine] == [[f"own {number}", "common", "parent"] for number in range(5)]
    assert sorted(shared_ledger.entries) == sorted(["parent", "common", *(f"own {n}" for n in range(5))])


def test_after_a_fork_an_asyncguard_works_in_the_childs_own_loop(sqlite: Place, shared_ledger: FileLedger):
    guard = sqlite.async_guard()

    async def main(key: str) -> str:
        async def effect() -> str:
            return shared_ledger.add(key)

        answers = await asyncio.gather(*(guard.run("charge", effect, key=key, payload={}) for _ in range(5)))
        return str(answers[0].result)

    asyncio.run(main("parent"))
    children = [Child(lambda n=number: asyncio.run(main(f"k{n % 2}"))) for number in range(4)]  # type: ignore[misc]
    results = [child.result() for child in children]

    assert results == ["k0", "k1", "k0", "k1"]
    assert sorted(shared_ledger.entries) == ["k0", "k1", "parent"]


_pooled: Guard | None = None
_effects: FileLedger | None = None


def _pooled_charge(key: int) -> str:
    assert _pooled is not None
    assert _effects is not None
    return str(_pooled.run("charge", lambda: _effects.add(str(key)), key=key, payload={}).result)


def test_workers_of_a_forked_pool_share_the_guard_of_their_module(sqlite: Place, shared_ledger: FileLedger):
    """multiprocessing with fork: the module's guard was used before, as an import or a health check would."""
    global _pooled, _effects
    _pooled, _effects = Guard(sqlite.url), shared_ledger
    try:
        _pooled_charge(100)
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(4, mp_context=context) as pool:
            results = list(pool.map(_pooled_charge, [number % 10 for number in range(40)], chunksize=1))
    finally:
        _pooled.close()
        _pooled = _effects = None

    assert results == [str(number % 10) for number in range(40)]
    assert sorted(shared_ledger.entries) == sorted(["100", *(str(number) for number in range(10))])


def test_prefork_workers_keep_their_own_leases(sqlite: Place):
    """The timer thread stays with the parent: a child has one of its own, and the parent's holds are not its."""
    guard = sqlite.guard(policy=Policy(lease=0.6, patience=0))
    inside, go = Signal(), Signal()

    def effect() -> str:
        inside.send()
        go.wait()
        return "child"

    guard.run("charge", lambda: until(outlived(sqlite, "charge", "before")), key="before", payload={})
    child = Child(lambda: guard.run("charge", effect, key="o-1", payload={}, boundary=Repeatable()).result)
    inside.wait()
    until(outlived(sqlite, "charge", "o-1"))
    go.send()

    assert child.result() == "child"
    inside.close()
    go.close()


def test_a_fork_in_the_middle_of_the_parents_effect_leaves_the_parents_hold_alone(sqlite: Place, ledger: Ledger):
    """An effect that starts a process: the child exits, the parent completes."""
    guard = sqlite.guard()

    def effect() -> str:
        child = Child(lambda: "child was here")
        return str(child.result())

    assert guard.run("charge", effect, key="o-1", payload={}).result == "child was here"
    assert guard.run("charge", ledger.add, key="o-1", payload={}).replayed


def test_a_fork_while_other_threads_use_the_guard_does_not_hang_the_child(sqlite: Place, shared_ledger: FileLedger):
    """Locks that some thread holds at the moment of the fork stay locked in the child: it must not use them."""
    guard = sqlite.guard()
    stop = threading.Event()

    def busy(number: int) -> None:
        count = 0
        while not stop.is_set():
            guard.run("busy", lambda: 1, key=f"{number}-{count}", payload={})
            count += 1

    threads = [Thread(lambda n=n: busy(n)) for n in range(4)]  # type: ignore[misc]
    try:
        for number in range(8):
            child = Child(
                lambda n=number: guard.run("charge", lambda: shared_ledger.add(str(n)), key=n, payload={}).result  # type: ignore[misc]
            )
            watched = Thread(child.result)
            assert watched.result(10) == str(number)
    finally:
        stop.set()
        for thread in threads:
            thread.result()

    assert sorted(shared_ledger.entries) == sorted(str(number) for number in range(8))


class _Turn:
    """A turn that whoever gives it back sees taken by the next one."""

    def __init__(self, taken: threading.Event) -> None:
        self._lock, self._taken = threading.Lock(), taken

    def acquire(self) -> bool:
        return self._lock.acquire()

    def release(self) -> None:
        self._lock.release()
        assert self._taken.wait(10)

    def locked(self) -> bool:
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


def test_of_two_threads_that_fork_at_once_none_lets_go_what_the_other_holds(
    sqlite: Place, monkeypatch: pytest.MonkeyPatch
):
    """Or the second one forks while somebody has a connection open, and its child inherits that."""
    store, quiet = sqlite.store(), threading.Event()
    process = store._process
    # And nobody whom another test left behind.
    monkeypatch.setattr(_process, "_LIVE", WeakKeyDictionary({process: None}))
    process.turn = _Turn(quiet)

    def second() -> None:
        _process._before_fork()
        quiet.set()
        assert forked.wait(10)
        held.append(process.turn.locked())
        _process._after_fork_in_parent()

    forked, held = threading.Event(), list[bool]()
    _process._before_fork()
    other = Thread(second)
    _process._after_fork_in_parent()
    forked.set()
    other.result()

    assert held == [True]
    assert not process.turn.locked()


def test_a_store_that_another_thread_opens_meanwhile_does_not_keep_the_others_from_being_quiet(
    sqlite: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Python forks although a hook has failed: with every connection open."""
    store, opened, pid = sqlite.store(), list[Guard](), os.getpid()

    def another_meanwhile() -> int:
        if not opened:
            opened.append(Guard(f"sqlite:///{tmp_path}/another.db"))
            assert opened[0].peek("charge", "o-1") is None
        return pid

    monkeypatch.setattr(os, "getpid", another_meanwhile)
    _process._before_fork()
    quiet = store._process.turn.locked()
    _process._after_fork_in_parent()

    assert opened
    assert quiet
    opened[0].close()


def test_a_child_may_close_the_guard_of_its_parent(sqlite: Place, ledger: Ledger):
    """As the with-block around the fork does; the parent goes on."""
    guard = sqlite.guard()
    guard.run("charge", ledger.add, key="o-1", payload={})

    assert Thread(Child(guard.close).result).result(10) is None
    assert guard.run("charge", ledger.add, key="o-2", payload={}).result == 2


def test_what_a_child_claims_is_seen_by_all_after_its_parent_has_closed(sqlite: Place, shared_ledger: FileLedger):
    """The parent used the guard, forked, and closed it: the last to close must not sweep the log from under us."""
    guard = Guard(sqlite.url)
    guard.run("charge", lambda: shared_ledger.add("parent"), key="parent", payload={})
    ready, closed, done, over = Signal(), Signal(), Signal(), Signal()

    def work() -> bool:
        guard.run("charge", lambda: shared_ledger.add("warm"), key="warm", payload={})
        ready.send()
        closed.wait()
        answer = guard.run("charge", lambda: shared_ledger.add("child"), key="child", payload={})
        done.send()
        over.wait()
        return answer.recorded

    child = Child(work)
    ready.wait()
    guard.close()
    closed.send()
    done.wait()
    with Guard(sqlite.url) as other:
        replayed = {
            key: other.run("charge", lambda k=key: shared_ledger.add(k), key=key, payload={}).replayed  # type: ignore[misc]
            for key in ("parent", "warm", "child")
        }
    over.send()
    assert child.result() is True
    for one in (ready, closed, done, over):
        one.close()

    assert shared_ledger.entries == ["parent", "warm", "child"]
    assert replayed == {"parent": True, "warm": True, "child": True}


def test_what_a_daemon_claims_is_seen_by_all_after_its_parent_has_exited(sqlite: Place, shared_ledger: FileLedger):
    """Daemonized after the first use: the parent exits, the daemon works on, and a tool opens and closes the file."""
    ready, go, done, over = Signal(), Signal(), Signal(), Signal()

    def daemon(guard: Guard) -> None:
        try:
            guard.run("charge", lambda: shared_ledger.add("warm"), key="warm", payload={})
            ready.send()
            go.wait()
            guard.run("charge", lambda: shared_ledger.add("daemon"), key="daemon", payload={})
        finally:
            done.send()
            over.wait()

    def parent() -> None:
        guard = Guard(sqlite.url)
        guard.run("charge", lambda: shared_ledger.add("parent"), key="parent", payload={})
        if os.fork() == 0:
            leave_nobody_behind()
            try:
                daemon(guard)
            finally:
                os._exit(0)

    Child(parent).wait()
    ready.wait()
    with Guard(sqlite.url) as tool:  # as `samekey show` does
        known = tool.peek("charge", "warm")
    go.send()
    done.wait()
    with Guard(sqlite.url) as other:
        answer = other.run("charge", lambda: shared_ledger.add("daemon"), key="daemon", payload={})
    over.send()
    for one in (ready, go, done, over):
        one.close()

    assert known is not None
    assert shared_ledger.entries == ["parent", "warm", "daemon"]
    assert answer.replayed


def test_a_child_that_inherited_the_users_own_connection_never_loses_a_claim_silently(
    sqlite: Place, shared_ledger: FileLedger
):
    """As Atomic users have one: SQLite in the child then believes that it holds locks which only the parent has.

    Refusing to work in such a child is honest; claiming into a log that the parent deletes is a double charge.
    """
    guard = Guard(sqlite.url)
    guard.run("charge", lambda: shared_ledger.add("parent"), key="parent", payload={})
    users = sqlite3.connect(sqlite.path)
    users.execute("SELECT count(*) FROM samekey_records").fetchone()
    ready, closed, done, over = Signal(), Signal(), Signal(), Signal()

    def work() -> None:
        try:
            with contextlib.suppress(SamekeyError):
                guard.run("charge", lambda: shared_ledger.add("warm"), key="warm", payload={})
            ready.send()
            closed.wait()
            with contextlib.suppress(SamekeyError):
                guard.run("charge", lambda: shared_ledger.add("child"), key="child", payload={})
        finally:
            done.send()
            over.wait()

    child = Child(work)
    ready.wait()
    users.close()
    guard.close()
    closed.send()
    done.wait()
    with Guard(sqlite.url) as other:
        other.run("charge", lambda: shared_ledger.add("child"), key="child", payload={})
    over.send()
    child.result()
    for one in (ready, closed, done, over):
        one.close()

    assert shared_ledger.entries.count("child") == 1


def test_a_fork_while_the_writer_waits_for_a_busy_file_goes_through_and_the_child_writes(
    sqlite: Place, shared_ledger: FileLedger
):
    """The parent's write is its own; the child's SQLite must not believe that it holds the file."""
    guard = sqlite.guard()
    guard.run("charge", lambda: "warm", key="warm", payload={})
    holding = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('BEGIN IMMEDIATE');"
        "print('held', flush=True); sys.stdin.readline(); c.execute('ROLLBACK')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holding, str(sqlite.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin
        assert other.stdout
        other.stdout.readline()
        waiting = Thread(lambda: guard.run("charge", lambda: shared_ledger.add("parent"), key="parent", payload={}))
        until(lambda: guard.store._process.turn.locked())
        threading.Timer(0.1, other.stdin.close).start()
        child = Child(lambda: guard.run("charge", lambda: shared_ledger.add("child"), key="child", payload={}).result)
        waiting.result()
        assert Thread(child.result).result(10) == "child"

    assert sorted(shared_ledger.entries) == ["child", "parent"]


def test_memory_after_a_fork_is_a_copy_that_says_so(memory: Place):
    """A memory store is one process's own: the child starts from what the parent knew, and tells nobody."""
    guard = memory.guard()
    guard.run("charge", lambda: "parent", key="o-1", payload={})

    def work() -> list[object]:
        known = guard.run("charge", lambda: "child", key="o-1", payload={})
        new = guard.run("charge", lambda: "child", key="o-2", payload={})
        return [known.result, new.result]

    assert Child(work).result() == ["parent", "child"]
    assert guard.run("charge", lambda: "parent", key="o-2", payload={}).result == "parent"
    assert "process" in guard.store.health().guarantee


def test_workers_that_are_killed_at_random_never_double_an_effect(sqlite: Place, shared_ledger: FileLedger):
    """Opaque: each key has at most one effect, and each that was cut off is in doubt, not free."""
    url = sqlite.url

    def charge(key: int) -> None:
        shared_ledger.add(str(key))

    def work(seed: int) -> None:
        with Guard(url, policy=Policy(lease=0.3, patience=0.1)) as guard:
            for key in range(30):
                try:
                    guard.run("charge", functools.partial(charge, key), key=key, payload={})
                except Exception:  # in progress or in doubt: another worker's
                    continue

    for round_ in range(4):
        children = [Child(lambda s=seed: work(s)) for seed in range(2)]  # type: ignore[misc]
        until(lambda least=3 * round_ + 1: len(shared_ledger) >= least, every=0.001)  # type: ignore[misc]
        for child in children:
            child.kill()
    known = [sqlite.look("charge", str(key)) for key in range(30)]
    until(lambda: not any(sqlite.peek("charge", one.key.text).lease_live for one in known if one is not None))
    work(99)

    effects = len(shared_ledger)
    assert effects == len(set(shared_ledger.entries)) > 20
    guard = sqlite.guard(policy=Policy(patience=1))
    states = set()
    for key in range(30):
        try:
            guard.run("charge", lambda: shared_ledger.add("again"), key=key, payload={})
        except InDoubt:
            pass
        states.add(sqlite.peek("charge", str(key)).state)
    assert states <= {State.COMPLETED, State.IN_DOUBT}
    assert len(shared_ledger) == effects


def test_an_async_guard_made_before_the_fork_and_never_used_works_in_the_child(sqlite: Place):
    guard = AsyncGuard(sqlite.url)

    async def main() -> str:
        async def effect() -> str:
            return "child"

        async with guard:
            return (await guard.run("charge", effect, key="o-1", payload={})).result

    assert Child(lambda: asyncio.run(main())).result() == "child"


@pytest.mark.parametrize("count", [2])
def test_a_grandchild_works_too(sqlite: Place, shared_ledger: FileLedger, count: int):
    guard = sqlite.guard()
    guard.run("charge", lambda: shared_ledger.add("0"), key=0, payload={})

    def deeper(level: int) -> int:
        guard.run("charge", lambda: shared_ledger.add(str(level)), key=level, payload={})
        return int(Child(lambda: deeper(level + 1)).result()) if level < count else level

    assert deeper(1) == count
    assert shared_ledger.entries == ["0", "1", "2"]


def test_a_fork_while_another_thread_is_inside_the_memory_does_not_hang_the_child(memory: Place):
    """The lock that thread held is locked for ever in the child: it needs one of its own."""
    guard = memory.guard()
    guard.run("charge", lambda: 1, key="o-1", payload={})
    with guard.store._mutex:
        child = Child(lambda: guard.run("charge", lambda: 2, key="o-2", payload={}).result)

    try:
        assert Thread(child.result).result(3) == 2
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child.pid, signal.SIGKILL)


FORKS_INSIDE = """
import os, sys
from samekey import Guard

guard = Guard(sys.argv[1])

def effect():
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return "parent" if child else "child"

main = os.getpid()
answer = guard.run("charge", effect, key="o-1", payload={})
if os.getpid() != main:
    os._exit(0)
print(answer.result, answer.replayed, guard.run("charge", effect, key="o-1", payload={}).result)
"""


def only_warns_of(lines: str, *events: str) -> bool:
    """Whether these log lines are about these events, and nothing else was written."""
    return all(any(f": {event} operation=" in line for event in events) for line in lines.splitlines())


def test_an_effect_that_forks_and_ends_in_both_processes_has_one_answer(sqlite: Place):
    """The child's end is the first word under this attempt: the parent is told that, as every replay will be."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS_INSIDE, f"sqlite:///{sqlite.path}"],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert ran.stdout.split() == ["child", "True", "child"]
    assert only_warns_of(ran.stderr, "late")


FORKS_AND_FAILS = """
import os, sys
from samekey import Guard, InDoubt, NotDone, Policy

guard = Guard(sys.argv[1], policy=Policy(releases=ConnectionError))
main = os.getpid()

def effect():
    child = os.fork()
    if not child:
        raise {error}
    os.waitpid(child, 0)
    with Guard(sys.argv[1]) as other:
        try:
            other.run("charge", lambda: print("twice"), key="o-1", payload={{}})
        except InDoubt:
            print("unknown")
    return "parent"

try:
    answer = guard.run("charge", effect, key="o-1", payload={{}})
finally:
    if os.getpid() != main:
        os._exit(0)
print(answer.result, answer.replayed)
"""


@pytest.mark.parametrize("error", ["NotDone('no')", "ConnectionError", "SystemExit"])
def test_what_a_child_forked_inside_an_effect_raises_does_not_free_its_key(sqlite: Place, error: str):
    """It knows how it ended itself; its parent is still in the middle of it, and tells how that ends."""
    ran = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            FORKS_AND_FAILS.format(error=error),
            f"sqlite:///{sqlite.path}",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert ran.stdout.split() == ["unknown", "parent", "False"]
    assert only_warns_of(ran.stderr, "in_doubt", "late")
