"""Parking: a message that is set aside is kept once, listed in pages, and marked when it is published again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from samekey.core.errors import Misconfigured
from samekey.core.parking import BODY_MAX_BYTES, Parked, ParkedQuery, make_parked
from samekey.testing.stores.keeping import ODD_TEXT
from samekey.testing.stores.scene import Scene, Steps, scenario
from samekey.testing.stores.steps import Invoke


def _message(scene: Scene, text: str = "o-1", *, at: float = 1e9, **changes: Any) -> Parked:
    whole = make_parked(
        at=at,
        operation=scene.operation,
        tenant="acme",
        key=text,
        destination="orders",
        headers={"x-trace": "7"},
        body=f'{{"id": "{text}"}}'.encode(),
        kind="in doubt",
        reason="in doubt: TimeoutError",
    )
    return replace(whole, **changes)


def _found(scene: Scene, *, on: int = 0, **asked: Any) -> Steps[list[Parked]]:
    query = ParkedQuery(**{"operation": scene.operation, **asked})
    found: list[Parked] = yield from Invoke("parked", (query,), on)
    return found


@scenario
def a_parked_message_is_kept_once(scene: Scene) -> Steps[None]:
    """Over every connection; the same message again replaces its row, with the newer reason."""
    message = _message(scene)
    yield from Invoke("park", (message,))
    again = replace(message, at=1e9 + 5, reason="in doubt: still")
    seen = yield from _found(scene, on=1)
    yield from Invoke("park", (again,), 1)

    assert seen == [message]
    assert (yield from _found(scene)) == [again]


@scenario
def parked_messages_are_listed_newest_first_in_pages(scene: Scene) -> Steps[None]:
    """In the order of their times, then of their ids; the last place of a page leads to the next one, without gaps."""
    messages = [_message(scene, f"o-{number}", at=1e9 + number // 3 + 0.125) for number in range(7)]
    for message in messages:
        yield from Invoke("park", (message,))
    whole = sorted(messages, key=lambda one: one.place, reverse=True)

    assert (yield from _found(scene)) == whole
    assert (yield from _found(scene, limit=0)) == []
    paged: list[Parked] = []
    before = None
    for _ in range(4):
        page = yield from _found(scene, limit=2, before=before)
        paged += page
        before = page[-1].place
    assert paged == whole
    assert (yield from _found(scene, limit=2, before=before)) == []


@scenario
def parked_messages_are_filtered(scene: Scene) -> Steps[None]:
    """By id, tenant, key, kind, and whether the message still waits."""
    one, other = _message(scene, "o-1"), _message(scene, "O-1", at=2e9, kind="poison", tenant=None)
    for message in (one, other, _message(Scene(scene.short))):
        yield from Invoke("park", (message,))

    for asked, expected in (
        ({"id": one.id}, [one]),
        ({"key": "o-1"}, [one]),
        ({"key": "o-1 "}, []),
        ({"tenant": "acme"}, [one]),
        ({"kind": "poison"}, [other]),
        ({"waiting": True}, [other, one]),
        ({"waiting": False}, []),
    ):
        assert (yield from _found(scene, **asked)) == expected, asked


@scenario
def a_redelivered_message_is_marked_and_may_wait_again(scene: Scene) -> Steps[None]:
    """With the store's time and the person, also in the audit log; parked again, it waits again."""
    held = yield from scene.held("what time is it")
    message = _message(scene)
    yield from Invoke("park", (message,))

    marked = yield from Invoke("redelivered", (message.id,), 1, (("by", "ada"),))
    seen = yield from _found(scene, waiting=False)
    yield from Invoke("park", (message,))

    assert marked == replace(message, redelivered_at=marked.redelivered_at, redelivered_by="ada")
    assert marked.redelivered_at >= held.created_at
    assert seen == [marked]
    assert (yield from _found(scene, waiting=True)) == [message]
    entries = yield from Invoke("audit", (100,))
    own = [one for one in entries if one.operation == scene.operation]
    assert [(one.who, one.action, one.text, one.before) for one in own] == [("ada", "redeliver", message.id, "parked")]


@scenario
def what_cannot_be_redelivered_changes_nothing(scene: Scene) -> Steps[None]:
    """An unknown message is answered with None; without a name nothing is written."""
    message = _message(scene)
    yield from Invoke("park", (message,))

    assert (yield from Invoke("redelivered", ("0" * 32,), 0, (("by", "ada"),))) is None
    try:
        yield from Invoke("redelivered", (message.id,), 0, (("by", ""),))
    except Misconfigured:
        pass
    else:
        raise AssertionError("a redelivery without a name was taken")
    assert (yield from _found(scene)) == [message]


@scenario
def every_parked_message_survives(scene: Scene) -> Steps[None]:
    """Any bytes and any text come back as they went in, up to the longest."""
    messages = [
        _message(scene, "odd", key=ODD_TEXT[:255], reason=ODD_TEXT, destination=ODD_TEXT, headers='{"a": "\\u2603"}'),
        _message(scene, "long", at=1e9 + 1 / 3, body=bytes(range(256)) * (BODY_MAX_BYTES // 256), tenant=None),
        _message(scene, "none", body=b"", key="", destination="", reason="", headers="{}"),
    ]
    for message in messages:
        yield from Invoke("park", (message,))

    found = yield from _found(scene, on=1)
    assert {one.id: one for one in found} == {one.id: one for one in messages}
