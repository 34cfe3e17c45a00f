"""Keys: what a record keeps is sealed for that record, and opens with the key that it names."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from samekey import (
    CONTENT,
    Asks,
    AsyncGuard,
    Guard,
    Happened,
    Misconfigured,
    NotDone,
    PayloadRefused,
    Policy,
    RecordUnreadable,
    Refused,
    ResultNotKept,
    ResultUnreadable,
    current,
    notes_of,
)
from samekey.core.canonical import canonical
from samekey.core.sealing import NOTES, PAYLOAD, RESULT, SEALED, unseal, unwrap, wrap
from samekey.core.shapes import Unreadable
from samekey.guard import keyring
from samekey.guard.keyring import Keyring
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from tests.guard.helpers import Place

OLD, NEW = ("2026-01", b"o" * 32), ("2026-07", b"n" * 32)
KEYS = Keyring(OLD)
CANARY = "canary-7f3e"


def charge() -> str:
    current().note(party=CANARY, amount_minor=4200)
    return f"receipt {CANARY}"


def refuse() -> str:
    raise Refused(CANARY, detail={"card": CANARY})


# -- through a guard


def test_results_refusals_and_notes_are_sealed_and_replayed(place: Place, colour: str):
    side = place.side(colour, keys=KEYS)

    first, again = [side.run("charge", charge, key="o-1", payload={}) for _ in range(2)]
    for _ in range(2):
        with pytest.raises(Refused, match=CANARY) as refused:
            side.run("charge", refuse, key="o-2", payload={})

    assert (again.result, again.replayed) == (first.result, True) == (f"receipt {CANARY}", True)
    assert refused.value.detail == {"card": CANARY}
    paid, closed = place.peek("charge", "o-1"), place.peek("charge", "o-2")
    for kept in (paid.result, paid.notes, closed.result):
        assert kept is not None
        assert unwrap(kept)[0] == "2026-01"
        assert CANARY.encode() not in kept
    assert notes_of(paid, KEYS) == {"party": CANARY, "amount_minor": 4200}
    with pytest.raises(RecordUnreadable, match="sealed with the key '2026-01', and there are no keys"):
        notes_of(paid)


def test_a_planted_secret_is_found_in_no_file_and_no_log(sqlite: Place, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    guard = sqlite.guard(keys=KEYS, secret=b"sixteen bytes or more", policy=Policy(keep_payload=True))
    for key, effect in (("o-1", charge), ("o-2", refuse)):
        with contextlib.suppress(Refused):
            guard.run("charge", effect, key=key, payload={"card": CANARY})
    with pytest.raises(KeyError):
        guard.run(
            "charge", lambda: dict[str, int]()["x"], key="o-3", payload={"card": CANARY}
        )  # in doubt: the payload is kept
    assert sqlite.peek("charge", "o-3").payload
    guard.close()

    files = [path.read_bytes() for path in Path(sqlite.path).parent.iterdir() if path.is_file()]
    assert any(b"o-3" in data for data in files), "the records are in these files"
    assert not any(CANARY.encode() in data for data in files)
    assert CANARY not in caplog.text


def test_an_answer_that_was_moved_to_another_record_does_not_open():
    store = MemoryStore()
    guard = Guard(store, keys=KEYS)
    guard.run("charge", lambda: "ann's receipt", key="ann", payload={})
    guard.run("charge", lambda: "bob's receipt", key="bob", payload={})
    ann, bob = guard.peek("charge", "ann"), guard.peek("charge", "bob")
    assert ann is not None
    assert bob is not None

    store._records[bob.key.digest] = bob.changed(result=ann.result)

    with pytest.raises(ResultUnreadable, match="another record"):
        guard.run("charge", lambda: "again", key="bob", payload={})


def test_notes_do_not_open_as_a_result():
    key = _key()
    sealed = KEYS.seal(b"{}", b"samekey.seal.1:notes:" + key.digest)

    assert unseal(KEYS, sealed, NOTES, key) == b"{}"
    with pytest.raises(Unreadable, match="does not open"):
        unseal(KEYS, sealed, RESULT, key)


def test_after_a_rotation_old_keys_open_and_the_new_one_seals():
    store = MemoryStore()
    Guard(store).run("charge", lambda: "plain", key="o-0", payload={})
    Guard(store, keys=KEYS).run("charge", lambda: "old", key="o-1", payload={})
    guard = Guard(store, keys=Keyring(NEW, OLD))

    assert [guard.run("charge", str, key=key, payload={}).result for key in ("o-0", "o-1")] == ["plain", "old"]
    guard.run("charge", lambda: "new", key="o-2", payload={})
    record = guard.peek("charge", "o-2")
    assert record is not None
    assert record.result is not None
    assert unwrap(record.result)[0] == "2026-07"


@pytest.mark.parametrize("keys", [None, Keyring(NEW)], ids=["no keys", "other keys"])
def test_a_key_that_is_not_there_is_named(keys: Keyring | None):
    store = MemoryStore()
    first = Guard(store, keys=KEYS)
    first.run("charge", lambda: "done", key="o-1", payload={})
    with pytest.raises(Refused):
        first.run("charge", refuse, key="o-2", payload={})
    later = Guard(store, keys=keys)

    with pytest.raises(ResultUnreadable, match="the key '2026-01'"):
        later.run("charge", str, key="o-1", payload={})
    with pytest.raises(Refused, match="the key '2026-01'"):  # that it was refused is known without the key
        later.run("charge", str, key="o-2", payload={})


def test_what_a_provider_reports_is_sealed_for_the_record_of_the_alias(memory: Place):
    """A record under an earlier name keeps its own digest."""

    def unknown() -> str:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        memory.guard(keys=KEYS).run("old", unknown, key="o-1", payload={"order_id": "o-1"}, boundary=Asks(print))
    asks = Asks(lambda record: Happened("found"))
    guarded = memory.guard(keys=KEYS).once(name="new", key="order_id", aliases=["old"], boundary=asks)(
        lambda order_id: "ran"
    )

    assert [guarded("o-1"), guarded("o-1")] == ["found", "found"]
    kept = memory.peek("old", "o-1").result
    assert kept is not None
    assert kept.startswith(SEALED)


class Broken:
    """A key service that is down."""

    def seal(self, data: bytes, aad: bytes) -> bytes:
        raise ConnectionError(CANARY)

    open = seal


def test_a_sealer_that_fails_loses_the_copy_and_not_the_answer(memory: Place, caplog: pytest.LogCaptureFixture):
    guard = memory.guard(keys=Broken())

    assert guard.run("charge", charge, key="o-1", payload={}).result == f"receipt {CANARY}"
    with pytest.raises(ResultNotKept, match="ConnectionError while sealing it"):
        guard.run("charge", charge, key="o-1", payload={})
    assert memory.peek("charge", "o-1").notes is None
    assert "the notes of charge are lost" in caplog.text
    assert CANARY not in caplog.text
    with pytest.raises(Unreadable, match="the sealer raised ConnectionError"):
        unseal(Broken(), wrap("x", b""), RESULT, _key())


async def test_async_guards_take_keys_too():
    guard = AsyncGuard(AsyncMemoryStore(), keys=KEYS)

    answers = [await guard.run("charge", lambda: asyncio.sleep(0, "done"), key="o-1", payload={}) for _ in range(2)]

    assert [(one.result, one.replayed) for one in answers] == [("done", False), ("done", True)]


# -- kept payloads


def test_a_payload_is_kept_sealed_until_the_effect_has_ended(place: Place, colour: str):
    side = place.side(colour, keys=KEYS, policy=Policy(keep_payload=True))
    payload = {"card": CANARY, "amount": 200}

    def unknown() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        side.run("charge", unknown, key="o-1", payload=payload, ignore=["amount"])
    side.run("charge", lambda: 1, key=CONTENT, payload=payload)
    record = place.peek("charge", "o-1")

    assert record.payload is not None
    assert unseal(KEYS, record.payload, PAYLOAD, record.key) == canonical(payload)
    with pytest.raises(Unreadable):
        unseal(KEYS, record.payload, RESULT, record.key)
    assert place.peek("charge", CONTENT.key_of(payload, ())).payload is None


def test_payloads_are_bounded_and_need_an_exact_form(memory: Place):
    def later() -> None:
        raise NotDone

    guard = memory.guard(keys=KEYS, policy=Policy(keep_payload=True, result_max_bytes=100))
    for size, kept in ((10, True), (1000, False)):
        with pytest.raises(NotDone):
            guard.run("charge", later, key=size, payload="x" * size)
        assert (memory.peek("charge", str(size)).payload is not None) is kept
    with pytest.raises(PayloadRefused):
        guard.run("charge", later, key="o-1", payload={"a": 1, "session": object()}, ignore=["session"])
    assert memory.look("charge", "o-1") is None


def test_without_keys_no_payload_is_kept():
    keeping = Policy(keep_payload=True)

    with pytest.raises(Misconfigured, match="needs keys"):
        Guard("memory://", policy=keeping)
    with pytest.raises(Misconfigured, match="needs keys"):
        Guard("memory://").run("charge", int, key="o-1", payload={}, policy=keeping)


# -- redactors


def test_a_redactor_decides_what_is_kept_of_a_result(place: Place, colour: str):
    side = place.side(colour, policy=Policy(redact=lambda result: {**result, "card": "redacted"}))

    first, again = [side.run("charge", lambda: {"id": 1, "card": CANARY}, key="o-1", payload={}) for _ in range(2)]

    assert (first.result, again.result) == ({"id": 1, "card": CANARY}, {"id": 1, "card": "redacted"})
    kept = place.peek("charge", "o-1").result
    assert kept is not None
    assert CANARY.encode() not in kept


def test_what_a_redactor_cannot_judge_is_not_kept(memory: Place):
    guard = memory.guard(policy=Policy(redact=lambda result: result["card"]))

    assert guard.run("charge", lambda: CANARY, key="o-1", payload={}).result == CANARY
    with pytest.raises(ResultNotKept, match="TypeError while redacting it"):
        guard.run("charge", lambda: CANARY, key="o-1", payload={})


def test_a_redactor_is_a_plain_function():
    async def later(result: Any) -> Any: ...

    for wrong in (later, "card"):
        with pytest.raises(Misconfigured, match="redact="):
            Policy(redact=wrong)  # type: ignore[arg-type]


# -- the keyring


def test_keys_are_read_from_a_file(tmp_path: Path):
    path = tmp_path / "keys"
    lines = [
        "# the current key first",
        *(f"{name} {base64.b64encode(key).decode()}  # made by ann" for name, key in (NEW, OLD)),
    ]
    path.write_text("\n\n".join(lines))
    path.chmod(0o600)

    keys = Keyring.from_file(path)

    assert repr(keys) == "<Keyring 2026-07, 2026-01>"
    assert keys.open(KEYS.seal(b"data", b"aad"), b"aad") == b"data"
    path.chmod(0o644)
    with pytest.raises(Misconfigured, match="chmod 600 keys"):
        Keyring.from_file(path)


def test_a_file_of_keys_that_cannot_be_used_is_refused_without_showing_it(tmp_path: Path):
    path = tmp_path / "keys"
    with pytest.raises(Misconfigured, match="cannot be read: No such file"):
        Keyring.from_file(path)
    path.touch(0o600)
    for text, why in (
        ("", "has no key"),
        ("\n2026", "line 2 of the file"),
        ("2026 !!", "line 1"),
        ("2026 bm90IDMyIGJ5dGVz", "'2026' is not 32 bytes"),
    ):
        path.write_text(text)
        with pytest.raises(Misconfigured, match=why) as refused:
            Keyring.from_file(path)
        assert "!!" not in str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    [
        ("2026", "x" * 32),
        ("2026", b"short"),
        ("", b"x" * 32),
        ("a b", b"x" * 32),
        ("x" * 65, b"x" * 32),
        b"x" * 32,
        None,
    ],
    ids=["str", "short", "no id", "space", "long id", "no pair", "None"],
)
def test_wrong_keys_are_refused(wrong: Any):
    with pytest.raises(Misconfigured):
        Keyring(wrong)


def test_two_keys_of_one_id_and_other_objects_are_refused():
    with pytest.raises(Misconfigured, match="two keys have the id"):
        Keyring(NEW, (NEW[0], OLD[1]))
    with pytest.raises(Misconfigured, match="keys= takes a Keyring, not bytes"):
        Guard("memory://", keys=b"x" * 32)  # type: ignore[arg-type]


def test_equal_values_are_sealed_differently_and_damage_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keyring, "SEALS_MAX", 3)
    monkeypatch.setattr(keyring, "DERIVED_MAX", 2)
    keys = Keyring(NEW)
    sealed = [keys.seal(b"data", b"aad") for _ in range(20)]

    assert len(set(sealed)) == 20
    assert len({unwrap(one)[1][: keyring.SALT_BYTES] for one in sealed}) > 4  # a new derived key after a while
    assert {Keyring(NEW).open(one, b"aad") for one in sealed} == {keys.open(one, b"aad") for one in sealed} == {b"data"}
    for at in range(len(sealed[0])):
        broken = bytearray(sealed[0])
        broken[at] ^= 1
        with pytest.raises(Unreadable):
            keys.open(bytes(broken), b"aad")
    for end in range(len(sealed[0])):
        with pytest.raises(Unreadable):
            keys.open(sealed[0][:end], b"aad")


def test_without_cryptography_one_sentence_says_what_to_install():
    program = "import sys; sys.modules['cryptography'] = None\nimport samekey\nimport samekey.guard.keyring"

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ})

    assert ended.stderr.splitlines()[-1].endswith("need cryptography: pip install 'samekey[crypto]'")


def _key() -> Any:
    guard = Guard("memory://")
    return guard.new_call(guard.operation("charge", boundary=Asks(print)), "o-1", None).key
