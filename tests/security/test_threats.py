"""One test per row of docs/threat-model.md that no other test shows: what an attacker tries, and does not get."""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import logging
import pickle
import re
import sqlite3
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from samekey import (
    Guard,
    InDoubt,
    KeyMalformed,
    KeyReused,
    Misconfigured,
    NotDone,
    PayloadRefused,
    Refused,
    ResultUnreadable,
    SamekeyError,
)
from samekey.guard.store_urls import public
from samekey.hooks.logging import LoggingHook
from samekey.stores.memory import MemoryStore

CANARY = "canary-7f3e"  # what must never be seen outside the store
SECRET = "a secret of thirty-two bytes, ok."

# fmt: off
HOSTILE = [
    "'", '"', "';--", "' OR '1'='1", '"; DROP TABLE samekey_records; --', "1); DELETE FROM samekey_records WHERE (1=1",
    "\\", "\\'", "%", "_", "%00", "%s", "%(key)s", "$1", ":key", "?", "{0}", "{}", "{{key}}", "${jndi:ldap://x}",
    "`id`", "$(id)", "../../etc/passwd", "a/b", "a\\/b", "a:b", "a b", " a", "a ", "null", "None", "NULL", "0", "-1",
    "-- help", "<script>alert(1)</script>", "\xe9", "e\u0301", "\u202eadmin", "\u200b", "\U0001d482", "a" * 1024,
    "SELECT pg_sleep(9)", "*", "**",
]
# fmt: on


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture(params=["memory", "sqlite"])
def guard(request, file: Path):
    with Guard("memory://" if request.param == "memory" else f"sqlite:///{file}") as guard:
        yield guard


# -- another tenant's answer ---------------------------------------------------------------------------------------

Scopes = list[tuple[str, str | None, str]]


def cuts(text: str) -> Scopes:
    """Every operation, tenant and key, and every operation and key, that read the same when they run together."""
    ends = range(1, len(text))
    without: Scopes = [(text[:end], None, text[end:]) for end in ends]
    return without + [(text[:one], text[one:two], text[two:]) for one in ends for two in ends if one < two]


# Few letters and many joints: names that run together if anything lets them.
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scopes=st.text(alphabet="ab/:. 1\\", min_size=3, max_size=6).map(cuts))
def test_no_answer_crosses_scopes(guard: Guard, scopes: Scopes):
    """Whoever differs in operation, tenant or key has an answer of his own, however the names are joined."""

    def ask(scope: tuple[str, str | None, str], answer: Any) -> Any:
        name, tenant, key = scope
        return guard.run(name, lambda: answer, key=key, tenant=tenant, payload={}).result

    answers = {scope: ask(scope, list(scope)) for scope in scopes}
    again = {scope: ask(scope, "never") for scope in reversed(scopes)}

    assert answers == again == {scope: list(scope) for scope in scopes}


# -- guessing and squatting on keys --------------------------------------------------------------------------------


def test_whoever_guesses_a_key_learns_which_fields_differ_and_nothing_else(guard: Guard):
    guard.run("charge", lambda: {"card": CANARY}, key="o-1", payload={"amount": 200, "note": CANARY})
    with pytest.raises(KeyReused) as told:
        guard.run("charge", lambda: "ran", key="o-1", payload={"amount": 200, "note": "guess"})

    assert told.value.fields == ("note",)
    assert CANARY not in repr(told.value) + str(told.value.__dict__)


def test_a_squatter_cannot_plant_an_answer_for_another_payload(guard: Guard):
    guard.run("charge", lambda: "planted", key="o-1", payload={"amount": 1})
    with pytest.raises(KeyReused):
        guard.run("charge", lambda: "mine", key="o-1", payload={"amount": 200})


# -- injection -----------------------------------------------------------------------------------------------------


def attacked(guard: Guard) -> None:
    """Hostile text in every place that takes text: it comes back as it was, and nothing else is touched."""
    for at, text in enumerate(HOSTILE):
        name, tenant = text[:255], text[:255]
        options: dict[str, Any] = {"key": text, "tenant": tenant, "payload": {text: text}}
        answer = guard.run(
            name, functools.partial(str, text), attributes={"who": text[:100].strip("\u202e\u200b")}, **options
        )
        assert guard.run(name, lambda: "never", **options).result == answer.result == text, at
        with pytest.raises(RuntimeError):
            guard.run(name, _fail(text), **{**options, "key": f"x{text}"[:1024]})
        record = guard.peek(name, text, tenant)
        assert record is not None
        assert (record.key.operation, record.key.text, record.key.tenant) == (name, text, tenant)


def _fail(text: str) -> Any:
    def fail() -> None:
        raise RuntimeError(text)

    return fail


def test_hostile_text_is_data_in_memory_and_in_sqlite(guard: Guard):
    attacked(guard)


@pytest.mark.slow
def test_hostile_text_is_data_in_postgresql(samekey_postgres):
    from samekey.drivers.postgres.migrate import migrate

    database = samekey_postgres.create_database()
    migrate(database)
    with Guard(database) as guard:
        attacked(guard)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["redis", "layered"])
def test_hostile_text_is_data_in_redis_and_before_postgresql(place, samekey_postgres):
    """Its scripts are constants; keys and values are arguments."""
    from samekey.drivers.postgres.migrate import migrate
    from samekey.testing.servers import redis_server

    with redis_server() as server:
        address = server.url()
        if place == "layered":
            database = samekey_postgres.create_database()
            migrate(database)
            address = f"{address} {database}"
        with Guard(address) as guard:
            attacked(guard)


@pytest.mark.slow
def test_hostile_text_is_data_in_mariadb():
    from samekey.drivers.mysql.migrate import migrate
    from samekey.testing.servers import mariadb

    with mariadb() as server:
        database = server.create_database()
        migrate(database)
        with Guard(database) as guard:
            attacked(guard)


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\x00b", "a\x1b[2Jb", "\x7f", "\ud800"])
def test_what_could_forge_a_log_line_or_a_terminal_is_no_key(guard: Guard, text: str):
    places: list[dict[str, Any]] = [{"key": text}, {"key": "k", "tenant": text}]
    for place in places:
        with pytest.raises(KeyMalformed) as told:
            guard.run("charge", lambda: "never", payload={}, **place)
        assert str(told.value).isprintable()


# -- oversized storage ---------------------------------------------------------------------------------------------


def test_nothing_of_unbounded_size_reaches_the_store(file: Path):
    """Refused before the claim, so that not even a row is left; too large a result leaves a row without it."""
    with Guard(f"sqlite:///{file}") as guard:
        for wrong in (
            {"key": "k" * 1025, "payload": {}},
            {"key": "k", "payload": {}, "tenant": "t" * 256},
            {"key": "k", "payload": "p" * (8 << 20)},
            {"key": "k", "payload": {}, "attributes": {"a": "x" * 10_000}},
            {"key": "k", "payload": {}, "attributes": {str(n): "x" for n in range(100)}},
        ):
            with pytest.raises((KeyMalformed, PayloadRefused, Misconfigured)):
                guard.run("charge", lambda: "never", **wrong)
        guard.run("charge", lambda: "x" * (2 << 20), key="large", payload={})
    connection = sqlite3.connect(file)
    rows = connection.execute("SELECT key FROM samekey_records").fetchall()
    connection.close()

    assert rows == [("large",)]
    assert sum(path.stat().st_size for path in file.parent.glob("keys.db*")) < 1 << 20


# -- poisoned records ----------------------------------------------------------------------------------------------

ran: list[str] = []


class Bomb:
    def __reduce__(self) -> Any:
        return (ran.append, ("boom",))


@pytest.mark.parametrize(
    "poison",
    [
        pickle.dumps(Bomb()),
        b"\x80\x04",
        b"",
        b"\xff" * 50,
        b'{"$": "os:system"}',
        b"[" * 100_000,
        json.dumps({"class": "subprocess:Popen", "args": ["id"]}).encode(),
    ],
    ids=["pickle", "half a pickle", "empty", "noise", "a reference", "deep", "a class"],
)
def test_a_poisoned_result_is_unreadable_and_runs_nothing(file: Path, poison: bytes):
    """Whoever can write to the store can spoil an answer; he can neither run code here nor cause a second effect."""
    ran.clear()
    effects: list[int] = []
    with Guard(f"sqlite:///{file}") as guard:
        guard.run("charge", lambda: effects.append(1), key="o-1", payload={})
        connection = sqlite3.connect(file)
        connection.execute("UPDATE samekey_records SET result = ?", (poison,))
        connection.commit()
        connection.close()
        with pytest.raises(ResultUnreadable):
            guard.run("charge", lambda: effects.append(2), key="o-1", payload={})

    assert (effects, ran) == ([1], [])


# -- a copy of the database ----------------------------------------------------------------------------------------


def test_with_a_secret_a_stolen_copy_does_not_tell_a_guess_from_the_payload(file: Path):
    """A PIN has ten thousand values: without a secret a plain digest of each would find it."""
    pin = {"pin": "4711"}
    with Guard("memory://") as plain:
        plain.run("login", lambda: None, key="k", payload=pin)
        guess = plain.peek("login", "k")
    with Guard(f"sqlite:///{file}", secret=SECRET) as keyed:
        keyed.run("login", lambda: None, key="k", payload=pin)
        kept = keyed.peek("login", "k")
    stolen = b"".join(path.read_bytes() for path in file.parent.glob("keys.db*"))

    assert guess is not None
    assert kept is not None
    assert kept.fingerprint != guess.fingerprint
    assert guess.fingerprint not in stolen
    assert hashlib.sha256(b"4711").digest() not in stolen
    assert b"4711" not in stolen
    assert not {digest for _, digest in kept.fields} & {digest for _, digest in guess.fields}


def test_fingerprints_are_compared_in_constant_time(monkeypatch):
    compared: list[bytes] = []
    real = hmac.compare_digest

    def spied(one: Any, other: Any) -> bool:
        compared.append(other)
        return real(one, other)

    guard = Guard("memory://")
    guard.run("charge", lambda: 1, key="k", payload={"amount": 200})
    monkeypatch.setattr(hmac, "compare_digest", spied)
    guard.run("charge", lambda: 1, key="k", payload={"amount": 200})

    assert compared


# -- what is told to whom ------------------------------------------------------------------------------------------


def test_neither_logs_nor_errors_hold_payloads_results_or_passwords(caplog):
    """Every way a call can end, with a canary in payload and result, and every line and error text it leaves."""
    caplog.set_level(logging.DEBUG)
    guard = Guard(MemoryStore(), hooks=[LoggingHook()], secret=SECRET)
    payload = {"card": CANARY, "nested": {"list": [CANARY]}}
    told: list[str] = []
    for number, word in enumerate(
        (None, NotDone("no"), Refused("no"), TimeoutError("no"), {"odd": object(), "card": CANARY})
    ):

        def effect(word: Any = word) -> Any:
            if isinstance(word, Exception):
                raise word
            return {"token": CANARY} if word is None else word

        for again in (payload, payload, {**payload, "card": CANARY + "x"}):
            try:
                guard.run("charge", effect, key=number, payload=again)
            except (SamekeyError, NotDone, Refused, TimeoutError) as error:
                told += [str(error), repr(error), *getattr(error, "__notes__", ())]
    with pytest.raises(PayloadRefused) as refused:
        guard.run("charge", lambda: 1, key="k", payload={"ok": CANARY, "bad": {"n": float("nan")}})
    told += [str(refused.value), repr(refused.value)]
    told += [record.getMessage() + str(record.__dict__) for record in caplog.records]

    assert len(told) > 20
    assert [line for line in told if CANARY in line or SECRET in line] == []


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://ann:pa@ss:word@host:5432/db?sslmode=require", "postgresql://ann@host:5432/db?sslmode=require"),
        ("redis://:hunter2@host/0 postgresql://ann:hunter2@host/db", "redis://@host/0 postgresql://ann@host/db"),
        ("postgresql://host/db?user=ann&password=hunter2", "postgresql://host/db?user=ann&"),
        ("redis://:hun/ter2@host/0", "redis://@host/0"),
        ("redis://:hun#ter2@host/0", "redis://@host/0"),
        ("postgresql://ann:hun?ter2@host/db postgresql://host/b", "postgresql://ann@host/db postgresql://host/b"),
        ("mysql://ann:h@n#t?r2@host/db?ssl_ca=ca.pem", "mysql://ann@host/db?ssl_ca=ca.pem"),
        ("sqlite:///keys.db?synchronous=normal", "sqlite:///keys.db?synchronous=normal"),
    ],
)
def test_an_address_is_shown_without_its_password(address: str, shown: str):
    assert public(address) == shown


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://app:s3cret@db/shop redis://cache/0",  # the wrong way round
        "mysql://app:s3cret@db/shop sqlite:///keys.db",
        "redis://cache/0 redis://:s3cret@cache/1 postgresql://app:s3cret@db/shop",
        "memory://app:s3cret@here",
        "sqlite://app:s3cret@here/keys.db",
        "sqlite:///keys.db?password=s3cret",
        "oracle://app:s3cret@db/shop",
    ],
)
def test_an_address_that_cannot_be_is_refused_without_its_password(address: str):
    with pytest.raises(Misconfigured) as refused:
        Guard(address).run("charge", lambda: 1, key="o-1", payload={})

    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("password", ["hun#ter2", "hun?ter2", "hun/ter2", "77?hunter2", "h@n?hunter2", "77#hunter2"])
@pytest.mark.parametrize("scheme", ["redis", "rediss", "postgresql", "mysql"])
def test_a_password_that_was_not_quoted_is_in_no_error(scheme: str, password: str):
    """With a # ? / in it the address is another one: half of the password is its port, its path or an option."""
    guard = Guard(f"{scheme}://ann:{password}@127.0.0.1:1/0")

    with pytest.raises(Misconfigured, match="%23 for #") as refused:
        guard.run("charge", lambda: 1, key="o-1", payload={})

    told = f"{guard.store_name} {refused.value!r} {refused.value.__cause__!r}"
    assert [part for part in ("hun", "ter2", "77") if part in told] == []


def test_a_file_name_with_a_hash_is_not_cut_off_in_silence():
    with pytest.raises(Misconfigured, match="%23 for #"):
        Guard("sqlite:///keys#1.db").run("charge", lambda: pytest.fail("it ran"), key="o-1", payload={})


def test_a_path_with_a_space_is_not_taken_for_two_addresses_in_silence():
    with pytest.raises(Misconfigured, match=r"a space separates two addresses.*%20"):
        Guard("sqlite:///my keys.db")


def test_the_first_doubt_of_a_guard_does_not_print_the_password_of_its_store():
    """The store was not open yet when the call was made: its address was all there was to name it by."""
    guard = Guard("postgresql://ann:hunter2@127.0.0.1:1/db")

    assert "hunter2" not in guard.store_name
    with pytest.raises(SamekeyError) as told:
        guard.run("charge", lambda: 1, key="k", payload={})
    assert "hunter2" not in f"{told.value!r} {told.value.__cause__!r} {told.value.__dict__}"


@pytest.mark.slow
def test_a_note_names_the_store_without_its_password(samekey_postgres):
    from samekey.drivers.postgres.migrate import migrate

    database = samekey_postgres.create_database()
    migrate(database)
    address = re.sub(r"://([^@:/]+)@", r"://\1:hunter2@", database)
    with Guard(address) as guard, pytest.raises(RuntimeError) as told:
        guard.run("charge", _fail("no answer"), key="k", payload={})

    assert "--store postgresql://" in told.value.__notes__[0]
    assert "hunter2" not in told.value.__notes__[0]


# -- poisoning by failure, supply ----------------------------------------------------------------------------------


def test_an_error_cannot_lock_an_honest_customer_out_or_be_used_to_charge_twice(guard: Guard):
    """Known not done is free again; unknown is neither replayed as a failure nor run again."""
    effects: list[str] = []

    def declined() -> None:
        raise NotDone("no funds")

    def lost() -> None:
        effects.append("landed")
        raise TimeoutError("no answer")

    with pytest.raises(NotDone):
        guard.run("charge", declined, key="soft", payload={})
    assert guard.run("charge", lambda: "paid", key="soft", payload={}).result == "paid"
    with pytest.raises(TimeoutError):
        guard.run("charge", lost, key="lost", payload={})
    with pytest.raises(InDoubt):
        guard.run("charge", lost, key="lost", payload={})
    assert effects == ["landed"]


def test_the_core_needs_no_package_of_anybody_else():
    assert [one for one in requires("samekey") or () if "extra ==" not in one] == []
