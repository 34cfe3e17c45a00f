"""Whose word is it: NotDone and Refused speak for the effect that raised them; everything else says nothing."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import dataclasses
import pickle
import socket
import threading
from typing import Any

import aiohttp
import httpx
import pytest
import redis
import requests
import trio
import urllib3

import samekey
from samekey import (
    Asks,
    Guard,
    Happened,
    Held,
    InDoubt,
    InProgress,
    Keyed,
    Misconfigured,
    NotDone,
    Policy,
    Refused,
    State,
)
from samekey.guard import hold
from tests.guard.helpers import Child, Ledger, Place, Side, Thread, followers, start_asyncio, start_trio, until_async


class Declined(Exception):
    """The caller's own exception."""


def throwing(error: BaseException):
    def effect():
        raise error

    return effect


# -- the policy's lists -----------------------------------------------------------------------------------------


def test_the_callers_own_exceptions_may_release_or_close(place: Place, side: Side):
    class Final(Declined):
        pass

    policy = Policy(releases=(Declined,), closes=(Final,))
    with pytest.raises(Declined):
        side.run("charge", throwing(Declined()), key="free", payload={}, policy=policy)
    with pytest.raises(Final):
        side.run("charge", throwing(Final("no")), key="closed", payload={}, policy=policy)

    assert place.peek("charge", "free").state is State.RELEASED
    assert place.peek("charge", "closed").state is State.CLOSED


@pytest.mark.parametrize("name", ["releases", "closes"])
@pytest.mark.parametrize("given", [Exception, BaseException, KeyboardInterrupt, "ValueError", ValueError(), None, 3])
def test_lists_of_anything_but_exception_types_are_refused(name: str, given):
    with pytest.raises((Misconfigured, TypeError)):
        Policy(**{name: given})


def test_one_type_in_both_lists_is_refused():
    with pytest.raises(Misconfigured, match="both"):
        Policy(releases=(Declined,), closes=(Declined,))


def test_a_timeout_cannot_be_made_to_release():
    class Slow(TimeoutError):
        pass

    for given in (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError, Slow):
        with pytest.raises(Misconfigured, match="timeout"):
            Policy(releases=(ValueError, given))


def test_a_timeout_is_unknown_although_its_parent_is_on_the_list(place: Place, side: Side, ledger: Ledger):
    """TimeoutError is an OSError: a list that means "connection refused" must not mean "read timed out" too."""

    def effect():
        ledger.add()
        raise TimeoutError("read timed out")

    try:
        policy = Policy(releases=(OSError,))
    except Misconfigured:
        return  # refused outright: just as good
    with pytest.raises(TimeoutError):
        side.run("charge", effect, key="o-1", payload={}, policy=policy)

    assert place.peek("charge", "o-1").state is State.IN_DOUBT
    with pytest.raises(InDoubt):
        side.run("charge", effect, key="o-1", payload={}, policy=policy)
    assert len(ledger) == 1


TIMEOUTS = (
    requests.Timeout,
    requests.ReadTimeout,
    httpx.TimeoutException,
    httpx.ReadTimeout,
    httpx.WriteTimeout,
    urllib3.exceptions.ReadTimeoutError,
    urllib3.exceptions.TimeoutError,
    aiohttp.ServerTimeoutError,
    redis.TimeoutError,
    trio.TooSlowError,
    socket.timeout,
    type("TimedOut", (Exception,), {}),
    type("Deadline_Exceeded", (Exception,), {}),
    type("OfATimeout", (type("Timeout", (Exception,), {}),), {}),
    type("ConnectionTimeout", (Exception,), {}),  # some raise it when an answer does not come
)


@pytest.mark.parametrize("given", TIMEOUTS, ids=lambda one: f"{one.__module__}.{one.__qualname__}")
@pytest.mark.parametrize("name", ["releases", "closes"])
def test_no_librarys_timeout_can_be_listed(name: str, given: type[Exception]):
    """Builtin TimeoutError is not in the family of most of them: their names tell."""
    listed: dict[str, Any] = {name: (ValueError, given)}
    with pytest.raises(Misconfigured, match=f"{name}= must not list {given.__name__}: .*timeout.*unknown"):
        Policy(**listed)


def test_a_read_timeout_of_requests_is_unknown_although_its_parent_is_listed(place: Place, side: Side, ledger: Ledger):
    """C20, over a real wire: the provider took the request and did not answer in time."""
    policy = Policy(releases=(requests.RequestException,))
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def effect() -> None:
            ledger.add()
            requests.post(f"http://127.0.0.1:{silent.getsockname()[1]}/charges", timeout=0.05)

        with pytest.raises(requests.ReadTimeout):
            side.run("charge", effect, key="o-1", payload={}, policy=policy)
        with pytest.raises(InDoubt, match="ReadTimeout"):
            side.run("charge", effect, key="o-1", payload={}, policy=policy)

    assert place.peek("charge", "o-1").state is State.IN_DOUBT
    assert len(ledger) == 1


def test_a_word_that_calls_itself_a_timeout_is_unknown_too(place: Place, side: Side):
    class ProviderTimeout(NotDone):
        pass

    class AnswerTimedOut(Refused):
        pass

    for key, error in (("n", ProviderTimeout()), ("r", AnswerTimedOut())):
        with pytest.raises(type(error)):
            side.run("charge", throwing(error), key=key, payload={})
        assert place.peek("charge", key).state is State.IN_DOUBT


UNSENT = (
    requests.ConnectTimeout,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    urllib3.exceptions.ConnectTimeoutError,
    type("ConnectTimeout", (TimeoutError,), {}),
)


@pytest.mark.parametrize("given", UNSENT, ids=lambda one: f"{one.__module__}.{one.__qualname__}")
def test_a_timeout_before_anything_was_sent_releases_if_it_is_listed_itself(place: Place, given: type[Exception]):
    """No connection, no request: that is known. Said for each by its name, never by a parent's."""
    guard, error = place.guard(), given.__new__(given)
    parents = tuple(one for one in (requests.RequestException, httpx.HTTPError, urllib3.exceptions.HTTPError, OSError))
    for key, listed in (("listed", (given,)), ("parent", parents)):
        with pytest.raises(given):
            guard.run("charge", throwing(error), key=key, payload={}, policy=Policy(releases=listed))

    assert place.peek("charge", "listed").state is State.RELEASED
    assert place.peek("charge", "parent").state is State.IN_DOUBT


# -- notes --------------------------------------------------------------------------------------------------------


def test_the_note_names_key_tenant_store_boundary_and_the_ways_out(place: Place, side: Side):
    error = ValueError("bug")
    with pytest.raises(ValueError):
        side.run("charge card", throwing(error), key="o 1'", payload={}, tenant="ann b")

    (note,) = error.__notes__
    assert "charge card o 1'" in note
    assert "ann b" in note
    assert "opaque" in note
    if place.kind == "memory":  # a command that cannot reach it would only send people looking
        assert "samekey resolve" not in note
        assert "memory" in note
    else:
        assert "samekey resolve 'charge card' 'o 1'\"'\"''" in note
        assert "--tenant 'ann b'" in note
        assert place.side("sync").guard.store.name in note


@pytest.mark.parametrize("address", ["sqlite:///keys.db", "sqlite:///./my%20keys.db?synchronous=normal"])
def test_the_first_doubt_of_a_guard_names_the_whole_path_as_later_ones_do(address: str, tmp_path, monkeypatch):
    """The store is not open yet when the first call is made; the line is pasted in another folder."""
    monkeypatch.chdir(tmp_path)
    with Guard(address) as guard:
        lines = []
        for key in ("o-1", "o-2"):
            with pytest.raises(ValueError) as told:
                guard.run("charge", throwing(ValueError()), key=key, payload={})
            lines += [note.replace(key, "KEY") for note in told.value.__notes__]

    assert lines[0] == lines[1]
    assert f"sqlite:///{tmp_path}/" in lines[0]


def test_an_effect_that_waits_for_its_own_key_is_told_so(place: Place, colour: str, ledger: Ledger):
    """From the same guard, and from another on the same store."""
    for number, other in enumerate((False, True)):
        side = place.side(colour)
        inner = place.side(colour) if other else side

        def effect(side: Side = inner, key: str = f"o-{number}") -> None:
            ledger.add()
            inside, waits_not = contextvars.copy_context(), Policy(patience=0)
            Thread(  # a loop cannot be started inside another
                lambda: inside.run(lambda: side.run("charge", int, key=key, payload={}, policy=waits_not))
            ).result()

        with pytest.raises(InProgress, match=r"the very effect that makes this call.*of its own"):
            side.run("charge", effect, key=f"o-{number}", payload={})
        assert place.peek("charge", f"o-{number}").state is State.IN_DOUBT
    assert len(ledger) == 2


@pytest.mark.parametrize("other", [False, True], ids=["same guard", "another guard"])
def test_an_effect_that_calls_its_own_key_is_refused_at_once(place: Place, other: bool):
    """It would wait for itself: no patience helps, so none is spent."""
    guard = place.guard(policy=Policy(patience=3600))
    inner = place.guard(policy=Policy(patience=3600)) if other else guard

    def effect() -> None:
        guard.run("another", lambda: inner.run("charge", int, key="o-1", payload={}), key="o-1", payload={})

    with pytest.raises(InProgress, match=r"the very effect that makes this call.*of its own"):
        guard.run("charge", effect, key="o-1", payload={})
    with pytest.raises(Misconfigured):
        samekey.current()


@pytest.mark.parametrize("start", [start_asyncio, start_trio], ids=["asyncio", "trio"])
def test_an_async_effect_that_calls_its_own_key_is_refused_at_once(place: Place, start: Any):
    async def main() -> None:
        guard = place.async_guard(policy=Policy(patience=3600))

        async def nothing() -> None:
            """Never runs."""

        async def effect() -> None:
            await guard.run("charge", nothing, key="o-1", payload={})

        with pytest.raises(InProgress, match=r"the very effect that makes this call.*of its own"):
            await guard.run("charge", effect, key="o-1", payload={})

    start(main)


async def test_a_task_that_an_effect_started_and_does_not_wait_for_gets_its_answer(place: Place):
    """It has a copy of the effect's context, and the effect ends while it waits."""
    guard = place.async_guard(policy=Policy(patience=60))
    tasks = []

    async def effect() -> str:
        tasks.append(asyncio.ensure_future(guard.run("charge", effect, key="o-1", payload={})))
        await until_async(lambda: followers(guard))
        return "once"

    await guard.run("charge", effect, key="o-1", payload={})
    assert ((await tasks[0]).result, len(tasks)) == ("once", 1)


def test_what_the_effect_knows_gets_no_note(side: Side):
    for word in (NotDone("funds"), Refused("stolen")):
        with pytest.raises(type(word)):
            side.run("charge", throwing(word), key=type(word).__name__, payload={})
        assert not hasattr(word, "__notes__")


def test_the_error_tells_its_age_and_type_to_the_next_caller(still: Place, colour: str):
    assert still.clock is not None
    side = still.side(colour)
    with pytest.raises(TimeoutError):
        side.run("charge", throwing(TimeoutError()), key="o-1", payload={})
    still.clock.advance(90)

    way_out = "memory" if still.kind == "memory" else "samekey resolve charge o-1"
    with pytest.raises(InDoubt, match=rf"TimeoutError, 90 s ago.*{way_out}") as told:
        side.run("charge", int, key="o-1", payload={})
    assert (told.value.key, told.value.age_seconds) == ("o-1", 90.0)


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """An exception that lets nothing be written on it."""

    code: int


@dataclasses.dataclass(frozen=True)
class FrozenNotDone(NotDone):
    code: int


def test_an_exception_that_takes_no_note_still_comes_out_as_itself(place: Place, side: Side):
    with pytest.raises(Frozen) as raised:
        side.run("charge", throwing(Frozen(7)), key="o-1", payload={})

    assert raised.value.code == 7
    assert place.peek("charge", "o-1").state is State.IN_DOUBT


# -- guards inside guards -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", [NotDone("mail"), Refused("mail"), FrozenNotDone(1)], ids=lambda w: type(w).__name__)
def test_an_inner_word_does_not_speak_for_the_outer_effect(place: Place, ledger: Ledger, word):
    """The charge went through, the mailer says NotDone: releasing the charge would charge again."""
    guard = place.guard()

    def charge():
        ledger.add("charge")
        guard.run("mail", throwing(word), key="o-1", payload={})

    with pytest.raises(type(word)) as raised:
        guard.run("charge", charge, key="o-1", payload={})

    assert raised.value is word
    assert place.peek("mail", "o-1").state in (State.RELEASED, State.CLOSED)
    assert place.peek("charge", "o-1").state is State.IN_DOUBT
    with pytest.raises(InDoubt):
        guard.run("charge", charge, key="o-1", payload={})
    assert len(ledger) == 1


def test_the_note_tells_a_word_of_another_guard_from_a_bug(place: Place):
    guard = place.guard()

    def note_of(raises: Exception) -> str:
        with pytest.raises(type(raises)) as raised:
            guard.run(
                "charge",
                lambda: guard.run("mail", throwing(raises), key=type(raises).__name__, payload={}),
                key=type(raises).__name__,
                payload={},
            )
        return str(raised.value.__notes__[-1])

    assert "charge NotDone is now in doubt: the effect ended in NotDone, which reports on another" in note_of(NotDone())
    assert "ended in KeyError, which does not tell whether it happened" in note_of(KeyError())


async def test_an_inner_word_does_not_speak_for_the_outer_effect_awaited(place: Place):
    guard = place.async_guard()

    async def mail():
        raise NotDone("mail")

    async def charge():
        await guard.run("mail", mail, key="o-1", payload={})

    with pytest.raises(NotDone):
        await guard.run("charge", charge, key="o-1", payload={})
    assert place.peek("charge", "o-1").state is State.IN_DOUBT


def test_an_inner_word_from_a_thread_of_the_effect_does_not_speak_for_it_either(place: Place):
    """The effect hands the mail to a pool: the word still left another guard."""
    guard = place.guard()

    def charge():
        Thread(lambda: guard.run("mail", throwing(NotDone("mail")), key="o-1", payload={})).result()

    with pytest.raises(NotDone):
        guard.run("charge", charge, key="o-1", payload={})
    assert place.peek("charge", "o-1").state is State.IN_DOUBT


def test_an_inner_word_from_another_context_does_not_speak_for_it_either(place: Place):
    guard = place.guard()

    def charge():
        contextvars.Context().run(lambda: guard.run("mail", throwing(NotDone("mail")), key="o-1", payload={}))

    with pytest.raises(NotDone):
        guard.run("charge", charge, key="o-1", payload={})
    assert place.peek("charge", "o-1").state is State.IN_DOUBT


@pytest.mark.parametrize("started", ["before any effect", "inside another effect"])
async def test_an_inner_word_from_a_task_of_its_own_does_not_speak_for_it_either(place: Place, started: str):
    """One task sends all mail, for whoever asks; it knows only the effect it was started in, if any."""
    guard, asked = place.async_guard(), asyncio.Queue[asyncio.Future[None]]()
    mailer: list[asyncio.Task[None]] = []

    async def mail():
        raise NotDone("mail")

    async def send_all():
        while True:
            waiting = await asked.get()
            try:
                await guard.run("mail", mail, key="o-1", payload={})
            except NotDone as error:
                waiting.set_exception(error)

    async def start():
        mailer.append(asyncio.create_task(send_all()))

    async def charge():
        waiting = asyncio.get_running_loop().create_future()
        asked.put_nowait(waiting)
        await waiting

    if started == "inside another effect":
        await guard.run("start", start, key="o-0", payload={})
    else:
        await start()
    with pytest.raises(NotDone):
        await guard.run("charge", charge, key="o-1", payload={})
    mailer[0].cancel()

    assert place.peek("charge", "o-1").state is State.IN_DOUBT


def test_an_inner_word_from_another_process_does_not_speak_for_it_either(sqlite: Place):
    """Whatever the numbers of the two processes are: pickled here as a pool sends it."""
    guard = sqlite.guard()

    def send() -> bytes:
        try:
            sqlite.guard().run("mail", throwing(NotDone("mail")), key="o-1", payload={})
        except NotDone as error:
            return pickle.dumps(error)
        raise AssertionError("it was to be refused")

    child = Child(send)
    word = pickle.loads(child.result())
    for _ in range(100):
        hold.leaving(NotDone())  # our own numbers are far ahead of the child's

    with pytest.raises(NotDone):
        guard.run("charge", throwing(word), key="o-1", payload={})
    assert sqlite.peek("mail", "o-1").state is State.RELEASED
    assert sqlite.peek("charge", "o-1").state is State.IN_DOUBT


def test_an_instance_raised_before_a_fork_is_the_childs_own_word_after_it(sqlite: Place):
    """Marked by the parent, a while ago: it cannot have left a guard inside what began later in the child."""
    with pytest.raises(NotDone):
        sqlite.guard().run("charge", throwing(NO_FUNDS), key="o-1", payload={})

    def again() -> None:
        with pytest.raises(NotDone):
            sqlite.guard().run("charge", throwing(NO_FUNDS), key="o-2", payload={})

    Child(again).result()
    assert sqlite.peek("charge", "o-2").state is State.RELEASED


def test_an_inner_hold_marks_its_word_too(place: Place):
    guard = place.guard()

    def charge():
        with guard.hold("mail", key="o-1", payload={}):
            raise NotDone("mail")

    with pytest.raises(NotDone):
        guard.run("charge", charge, key="o-1", payload={})
    assert place.peek("mail", "o-1").state is State.RELEASED
    assert place.peek("charge", "o-1").state is State.IN_DOUBT


@pytest.mark.parametrize("inner", [True, False])
def test_whose_word_a_hold_ended_with_can_be_asked_afterwards(place: Place, inner: bool):
    """Adapters do, to choose their answer; by then the word has left the hold's own guard as well."""
    guard = place.guard()
    held = guard.hold("charge", key="o-1", payload={})
    assert isinstance(held, Held)
    word = NotDone("funds")

    def block() -> None:
        with held:
            if inner:
                guard.run("mail", throwing(word), key="o-1", payload={})
            raise word

    with pytest.raises(NotDone):
        block()
    assert held.raised(word).inner is inner
    assert held.meaning(word) == ("unknown" if inner else "releases")
    assert place.peek("charge", "o-1").state is (State.IN_DOUBT if inner else State.RELEASED)


def test_a_replayed_inner_refusal_does_not_close_the_outer(place: Place):
    guard = place.guard()
    with pytest.raises(Refused):
        guard.run("mail", throwing(Refused("bounced")), key="o-1", payload={})

    with pytest.raises(Refused):
        guard.run("charge", lambda: guard.run("mail", int, key="o-1", payload={}), key="o-1", payload={})
    assert place.peek("charge", "o-1").state is State.IN_DOUBT


def test_a_policy_may_trust_the_inner_word(place: Place):
    guard = place.guard()

    def charge():
        guard.run("mail", throwing(NotDone("mail")), key="o-1", payload={})

    with pytest.raises(NotDone):
        guard.run("charge", charge, key="o-1", payload={}, policy=Policy(trust_inner=True))
    assert place.peek("charge", "o-1").state is State.RELEASED


def test_a_word_made_of_an_inner_one_is_the_outers_own(place: Place):
    """`raise NotDone(...) from inner` is a new word, said by the outer effect."""
    guard = place.guard()

    def charge():
        try:
            guard.run("authorize", throwing(NotDone("auth")), key="o-1", payload={})
        except NotDone as inner:
            raise NotDone("nothing was captured") from inner

    with pytest.raises(NotDone, match="captured"):
        guard.run("charge", charge, key="o-1", payload={})
    assert place.peek("charge", "o-1").state is State.RELEASED


NO_FUNDS = NotDone("insufficient funds")


def test_one_instance_raised_by_two_effects_is_each_ones_own_word(place: Place, side: Side):
    """A module-level `NO_FUNDS = NotDone(...)`: it left a guard before, and now it is said again."""
    for key in ("o-1", "o-2", "o-1"):
        with pytest.raises(NotDone):
            side.run("charge", throwing(NO_FUNDS), key=key, payload={})

    assert {place.peek("charge", key).state for key in ("o-1", "o-2")} == {State.RELEASED}


async def test_one_instance_raised_by_two_tasks_at_once_is_unknown_at_worst(place: Place):
    """A task may work for an effect that did not start it, so the word may be an inner one: unknown is safe."""
    guard, inside, go = place.async_guard(), asyncio.Event(), asyncio.Event()

    async def slow():
        inside.set()
        await go.wait()
        raise NO_FUNDS

    async def quick():
        raise NO_FUNDS

    first = asyncio.create_task(guard.run("charge", slow, key="slow", payload={}))
    await inside.wait()
    with pytest.raises(NotDone):
        await guard.run("charge", quick, key="quick", payload={})
    go.set()
    with pytest.raises(NotDone):
        await first

    assert place.peek("charge", "quick").state is State.RELEASED
    assert place.peek("charge", "slow").state in (State.RELEASED, State.IN_DOUBT)


def test_one_instance_raised_by_two_threads_at_once_is_unknown_at_worst(place: Place):
    """A plain thread does not know inside which hold it runs, so the word may be an inner one: unknown is safe."""
    guard = place.guard()
    inside, go = threading.Event(), threading.Event()

    def slow():
        inside.set()
        assert go.wait(5)
        raise NO_FUNDS

    first = Thread(lambda: guard.run("charge", slow, key="slow", payload={}))
    assert inside.wait(5)
    with pytest.raises(NotDone):
        guard.run("charge", throwing(NO_FUNDS), key="quick", payload={})
    go.set()
    assert first.outcome() is NO_FUNDS

    assert place.peek("charge", "quick").state is State.RELEASED
    assert place.peek("charge", "slow").state in (State.RELEASED, State.IN_DOUBT)


def test_one_instance_raised_by_two_effects_of_a_batch_is_each_ones_own_word(place: Place, side: Side):
    def effect(payload):
        raise NO_FUNDS

    outcomes = side.run_many("charge", effect, [{"id": "o-1"}, {"id": "o-2"}], key="id")

    assert outcomes == [NO_FUNDS, NO_FUNDS]
    assert [place.peek("charge", key).state for key in ("o-1", "o-2")] == [State.RELEASED] * 2


# -- an older attempt in doubt -----------------------------------------------------------------------------------------


def test_not_done_does_not_release_while_an_earlier_attempt_is_in_doubt(place: Place, side: Side):
    """The second try was declined; the first may still have gone through."""
    with pytest.raises(TimeoutError):
        side.run("charge", throwing(TimeoutError()), key="o-1", payload={}, boundary=Keyed())
    word = NotDone("declined")
    with pytest.raises(NotDone):
        side.run("charge", throwing(word), key="o-1", payload={}, boundary=Keyed())

    assert place.peek("charge", "o-1").state is State.IN_DOUBT
    assert "an earlier attempt may have happened" in "\n".join(word.__notes__)


# -- errors that are not ordinary -------------------------------------------------------------------------------------


def test_a_stop_iteration_comes_out_as_itself(place: Place):
    error = StopIteration("value")
    guard = place.guard()
    with pytest.raises(StopIteration) as raised:
        guard.run("charge", throwing(error), key="o-1", payload={})

    assert raised.value is error
    assert place.peek("charge", "o-1").state is State.IN_DOUBT


def test_a_stop_iteration_of_a_lookup_says_nothing(place: Place, side: Side):
    boundary = Asks(lambda record: next(iter(())))
    with pytest.raises(ValueError):
        side.run("charge", throwing(ValueError()), key="o-1", payload={}, boundary=boundary)

    with pytest.raises(InDoubt, match="StopIteration"):
        side.run("charge", int, key="o-1", payload={}, boundary=boundary)


def test_a_generator_exit_of_the_effect_writes_nothing(place: Place):
    guard = place.guard()
    with pytest.raises(GeneratorExit):
        guard.run("charge", throwing(GeneratorExit()), key="o-1", payload={})

    record = place.peek("charge", "o-1")
    assert (record.state, record.version) == (State.STARTED, 1)


def test_an_exception_group_is_unknown_whatever_is_in_it(place: Place, side: Side):
    with pytest.raises(ExceptionGroup):
        side.run("charge", throwing(ExceptionGroup("both", [NotDone("a"), NotDone("b")])), key="o-1", payload={})
    assert place.peek("charge", "o-1").state is State.IN_DOUBT


def test_an_error_of_samekey_inside_an_effect_is_unknown_to_the_outer(place: Place):
    """The inner key was reused: what the outer did before that, nobody knows."""
    guard = place.guard()
    guard.run("inner", lambda: 1, key="o-1", payload={"amount": 1})

    with pytest.raises(samekey.KeyReused):
        guard.run("outer", lambda: guard.run("inner", int, key="o-1", payload={}), key="o-1", payload={})
    assert place.peek("outer", "o-1").state is State.IN_DOUBT


def test_a_verdict_is_not_a_result(place: Place, side: Side):
    """An effect that returns a verdict by mistake is kept as what it is: a value, not an instruction."""
    side.run("charge", lambda: Happened(1), key="o-1", payload={})
    assert place.peek("charge", "o-1").state is State.COMPLETED
