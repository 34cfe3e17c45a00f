"""A reply that is lost says nothing about the statement: it is asked again, and done once."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import pymysql
import pytest

from samekey.core.commands import Ask, Begin, Free, Read, Redact, Renew, Take, Testify
from samekey.core.errors import StoreUnavailable
from samekey.core.states import Role, State
from samekey.drivers.mysql import connect as driver
from samekey.drivers.mysql.migrate import migrate
from samekey.stores.mysql import AsyncMysqlStore, _connections
from samekey.testing.stores.scene import LEASE, A, B, Scene, settling
from tests.servers.mysql.helpers import connected, opened, sql
from tests.stores.wire import Wire

pytestmark = pytest.mark.slow


def lost_anywhere(wire: Wire, store: Any, work: Any) -> list[Any]:
    """`work` once for each of its answers, which is lost; the cut comes ever later, until it comes too late."""
    done = []
    for number in range(1, 20):
        store.carry_out(Read(Scene(0.02).key()))  # connected
        wire.cut(number)
        done.append(work(number))
        if wire.mend():
            return done
    raise AssertionError("the cut always came")


def test_a_claim_whose_reply_was_lost_is_asked_again(wire, url, scene):
    """Wherever the wire is cut: it finds itself by its attempt id, and no second record or token is seen."""
    with opened(wire.url) as store, opened(url) as other:
        claims = lost_anywhere(wire, store, lambda number: store.carry_out(scene.opening(f"lost {number}")))
        assert wire.cuts == len(claims) - 1 == 2

        for held in claims:
            assert (held.attempt, held.attempts, held.lease_live, len(held.moves)) == (A, 1, True, 1)
            assert other.carry_out(scene.opening(held.key.text, by=B)).fence == held.fence
    assert [held.version for held in claims] == [2, 2, 1]  # whoever had to ask again confirms its claim by a write


@pytest.mark.parametrize(
    "verb", ["begin", "renew", "doubt", "ask", "take", "testify", "complete", "resolve", "free", "batch", "sweep"]
)
def test_every_command_whose_reply_was_lost_recognises_itself(wire, scene, verb):
    """Sent twice, done once, at whichever of its answers the wire was cut."""
    with opened(wire.url) as store:

        def once(number: int) -> None:
            wire.mend()
            text = f"{verb} {number}"
            held = store.carry_out(scene.opening(text, boundary="opaque marked"))
            doubt: Any = None
            completed: Any = None
            if verb in ("ask", "take", "resolve"):
                doubt = store.carry_out(settling(held, State.IN_DOUBT))
            if verb == "free":
                completed = store.carry_out(settling(held, State.COMPLETED))
            if verb == "sweep":
                store.carry_out(settling(held, State.COMPLETED, retain=-1.0))
            store.carry_out(Read(held.key))
            wire.cut(number)
            match verb:
                case "begin":
                    assert store.carry_out(Begin(held)).begun_at is not None
                case "renew":
                    assert store.carry_out(Renew(held, LEASE)).lease_live
                case "doubt":
                    after = store.carry_out(settling(held, State.IN_DOUBT, error="TimeoutError"))
                    assert (after.state, len(after.moves)) == (State.IN_DOUBT, 2)
                case "ask":
                    assert store.carry_out(Ask(doubt, B, LEASE)).being_asked
                case "take":
                    after = store.carry_out(Take(doubt, B, "opaque", LEASE, False))
                    assert (after.attempt, after.attempts) == (B, 2)
                case "testify":
                    after = store.carry_out(Testify(held.key, B, held.token, State.CLOSED, None, "late"))
                    assert len(after.evidence) == 1
                case "complete":
                    after = store.carry_out(settling(held, State.COMPLETED, result=b"done", next_round=True))
                    assert (after.state, after.round, len(after.moves)) == (State.COMPLETED, 1, 2)
                case "resolve":
                    after = store.carry_out(settling(doubt, State.RELEASED, role=Role.OPERATOR, by="ada", why=text))
                    assert (after.state, after.settled_by) == (State.RELEASED, "ada")
                case "free":
                    assert store.carry_out(Free(completed, "ada", text)) is None
                case "batch":
                    opens = [scene.opening(f"{text} {one}", by=B) for one in range(3)]
                    replies = store.batch([*opens, settling(held, State.COMPLETED)])
                    assert [one.attempt for one in replies] == [B, B, B, A]
                    assert all(len(one.moves) == 1 for one in replies[:3])
                case "sweep":
                    store.sweep(10)
                    assert store.carry_out(Read(held.key)) is None

        times = len(lost_anywhere(wire, store, once))
        assert wire.cuts >= 2
        assert len(store.audit(100)) == (times if verb in ("resolve", "free") else 0)


def test_a_redaction_whose_reply_was_lost_says_so(wire, scene):
    """A second one would be audited twice: a person looks, and asks again."""
    with opened(wire.url) as store:
        held = store.carry_out(scene.opening())
        done = store.carry_out(settling(held, State.COMPLETED, result=b"secret"))
        wire.cut(4)  # look, begin, update, audit: the fourth answer

        with pytest.raises(StoreUnavailable):
            store.carry_out(Redact(done, "ada", "asked to"))
        assert store.carry_out(Redact(done, "ada", "asked to")).result is None
        assert len(store.audit(10)) == 1


async def test_a_lost_reply_in_the_other_colour(wire, scene):
    store = AsyncMysqlStore(wire.url)
    await store.carry_out(scene.opening("connected"))
    for number in (1, 2):
        wire.cut(number)
        held = await store.carry_out(scene.opening(f"lost {number}"))
        assert (held.attempt, len(held.moves)) == (A, 1)
    await store.close()
    assert wire.cuts == 2


def test_a_connection_that_was_idle_for_long_is_made_anew(wire, scene, monkeypatch):
    """Before the server hangs up on it: no reply is lost, and nothing has to be confirmed."""
    with opened(wire.url) as store:
        store.carry_out(scene.opening("one"))
        before = store._links()._free[0]
        monkeypatch.setattr(_connections, "IDLE_SECONDS", 0)
        assert store.carry_out(scene.opening("two")).version == 1

        assert store._links()._free[0][0] is not before[0]
        assert not before[0].open


def test_a_connection_that_was_killed_is_made_again(store, url, scene):
    """An administrator, or a wait_timeout: whoever comes next does not notice."""
    store.carry_out(scene.opening("one"))
    for (number,) in _rows(url, "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID()"):
        with contextlib.suppress(pymysql.Error):
            sql(url, f"KILL {number}")

    assert store.carry_out(scene.opening("two")).attempt == A


def _rows(url: str, statement: str) -> Any:
    with connected(url) as link, link.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def test_a_silent_server_is_not_waited_for_for_ever(mortal, scene, monkeypatch):
    """Frozen, with its connections open: told after a while, and served again when it thaws."""
    url = mortal.create_database()
    migrate(url)
    monkeypatch.setattr(driver, "SILENCE_SECONDS", 1)
    monkeypatch.setattr(driver, "CONNECT_SECONDS", 1)
    monkeypatch.setattr(_connections, "REASK_SECONDS", 0.5)
    with opened(url) as store:
        store.carry_out(scene.opening("before"))
        os.kill(mortal.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailable):
                store.carry_out(scene.opening("frozen"))
            replies = store.batch([scene.opening(str(number)) for number in range(50)])
            assert all(isinstance(one, StoreUnavailable) for one in replies)
        finally:
            os.kill(mortal.pid, signal.SIGCONT)

        assert store.carry_out(scene.opening("frozen")).attempt == A
