"""What consumers that poll have in common (SQS, Redis streams): threads, the stop, and a store that is down.

A consumer takes only as many messages as it has threads free, so no message waits in its hands: each one is begun at
once, and the lease timer renews the broker's timer from then on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial

from samekey.core.errors import Misconfigured
from samekey.messages._ack import Action
from samekey.messages._message import Message
from samekey.messages._threads import Threads
from samekey.messages.handler import Handler

_log = logging.getLogger("samekey.messages")

GRACE_SECONDS = 30.0
LOOK_SECONDS = 0.2  # how soon a stop is noticed where there is nothing to do
TROUBLE_SECONDS = 1.0  # before a broker that failed is asked again


class PollingConsumer:
    """Polls until `stop()`. A subclass gives `poll`, `translate` and `extend`."""

    def __init__(self, handler: Handler, *, workers: int, timer_seconds: float, source: str) -> None:
        if timer_seconds < handler.lease_seconds:
            raise Misconfigured(
                f"the broker's timer ({timer_seconds:.0f} s) must not be shorter than the lease "
                f"({handler.lease_seconds:.0f} s): the message would be delivered again under its holder"
            )
        self._handler, self._workers, self._source = handler, workers, source
        self._stop, self._down = threading.Event(), threading.Event()
        self._busy = 0
        self._changed = threading.Condition()
        self._grace = GRACE_SECONDS

    def poll(self, most: int) -> Sequence[Message]:
        """Up to so many new deliveries; waits for them at most about a second."""
        raise NotImplementedError

    def translate(self, message: Message, action: Action) -> None:
        """Carry out the action. Several threads call it."""
        raise NotImplementedError

    def extend(self, message: Message) -> None:
        """Renew the broker's timer: the lease was renewed right before."""
        raise NotImplementedError

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Finish what runs within so many seconds, give back the rest, and let `run` return. Safe in a signal."""
        self._grace = grace
        self._stop.set()

    def run(self) -> None:
        """Consume until `stop()`."""
        pool = Threads(self._workers, f"samekey-{self._source}")
        try:
            while not self._stop.is_set():
                if self._down.is_set():
                    if self._handler.well():
                        self._down.clear()
                    else:
                        self._stop.wait(TROUBLE_SECONDS)
                    continue
                with self._changed:
                    free = self._workers - self._busy
                    if not free:
                        self._changed.wait(LOOK_SECONDS)
                        continue
                for message in self._polled(free):
                    with self._changed:
                        self._busy += 1
                    pool.submit(partial(self._work, message))
            self._finish()
        finally:
            pool.close()

    def _polled(self, free: int) -> Sequence[Message]:
        try:
            return self.poll(free)
        except Exception as error:
            _log.warning("%s did not answer, and is asked again: %r", self._source, error)
            self._stop.wait(TROUBLE_SECONDS)
            return []

    def _work(self, message: Message) -> None:
        try:
            action = self._handler.process(message, extend=partial(self.extend, message))
        except BaseException as error:
            _log.error("a message of %s was left without an answer", self._source, exc_info=error)
            action = Action("silent", stop=True)
        self._answer(message, action)
        with self._changed:
            self._busy -= 1
            self._changed.notify_all()

    def _answer(self, message: Message, action: Action) -> None:
        if action.stop:
            self._down.set()
        if action.verb == "silent":
            return
        try:
            self.translate(message, action)
        except Exception as error:
            # The message is not lost: the broker delivers it again when its timer ends.
            _log.warning("%s did not take the answer %s for a message: %r", self._source, action.verb, error)

    def _finish(self) -> None:
        self._handler.stopping = True
        deadline = time.monotonic() + self._grace
        with self._changed:
            while self._busy and time.monotonic() < deadline:
                self._changed.wait(LOOK_SECONDS)
        for message, action in self._handler.cut():
            self._answer(message, action)
