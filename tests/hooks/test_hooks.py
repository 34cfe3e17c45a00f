"""What any hook may do to an attempt: nothing."""

from __future__ import annotations

import threading
import time

from samekey import Guard
from samekey.core.ports import Event
from samekey.guard import facts
from samekey.guard.facts import WatchedHook

SOON = 5.0
EVENT = Event("claimed", "charge", "1a2b3c4d")


def test_a_hook_that_raises_is_logged_and_changes_nothing(caplog):
    def broken(event: Event) -> None:
        raise RuntimeError("no disk")

    guard = Guard("memory://", hooks=[broken])

    assert guard.run("charge", lambda: "done", key="o-1", payload=1).result == "done"
    assert "a samekey hook raised" in caplog.text


def test_a_hook_that_blocks_slows_no_attempt_twice(caplog, monkeypatch):
    """It is named once, and called in a thread of its own from then on, in the order of the events."""
    monkeypatch.setattr(facts, "HOOK_SLOW_SECONDS", 0.01)
    monkeypatch.setattr(facts, "HOOK_BLOCKED_SECONDS", 0.02)
    seen, go = [], threading.Event()

    def blocks(event: Event) -> None:
        seen.append((event.name, threading.current_thread().name))
        if len(seen) == 1:
            time.sleep(0.05)
        elif len(seen) == 2:
            go.wait(SOON)

    guard = Guard("memory://", hooks=[blocks])
    for key in range(3):
        guard.run("charge", lambda: "done", key=key, payload=1)  # would not return while the hook waits for `go`
    assert caplog.text.count("blocked for") == 1
    go.set()
    until(lambda: len(seen) == 6)

    assert [name for name, _ in seen] == ["claimed", "completed"] * 3
    assert {thread for _, thread in seen[1:]} == {"samekey-hook"}


def test_a_caller_does_not_follow_another_one_into_a_hook_that_hangs(monkeypatch):
    monkeypatch.setattr(facts, "HOOK_BLOCKED_SECONDS", 0.02)
    inside, go = threading.Event(), threading.Event()

    def hangs(event: Event) -> None:
        if not inside.is_set():
            inside.set()
            go.wait(SOON)

    hook = WatchedHook(hangs)
    first = threading.Thread(target=hook, args=(EVENT,))
    first.start()
    inside.wait(SOON)
    time.sleep(0.03)  # what the hook has been inside for: nothing else shows that it hangs
    hook(EVENT)
    assert first.is_alive()
    go.set()
    first.join(SOON)


def test_events_that_a_slow_hook_does_not_take_are_dropped(caplog, monkeypatch):
    monkeypatch.setattr(facts, "HOOK_QUEUE_MAX", 3)
    seen, go = [], threading.Event()

    def hangs(event: Event) -> None:
        go.wait(SOON)
        seen.append(event)

    hook = WatchedHook(hangs)
    hook._aside = True
    for _ in range(10):
        hook(EVENT)
    go.set()
    until(lambda: not hook._drains)

    assert 3 <= len(seen) <= 4
    assert caplog.text.count("does not keep up") == 1


def until(done) -> None:
    ends = time.monotonic() + SOON
    while not done():
        assert time.monotonic() < ends
        time.sleep(0.001)
