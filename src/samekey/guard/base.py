"""What both guards share: the store that is opened and closed, forks, secrets, hooks. No calls are made in here."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from samekey.core.errors import Misconfigured, StoreUnavailable
from samekey.core.policy import Policy
from samekey.core.ports import Event, Hook
from samekey.guard.lease_timer import Leases
from samekey.guard.operations import Operations, forget_ids
from samekey.guard.single_flight import Flights
from samekey.guard.store_urls import absolute, check_address, check_store, open_store, public, refuse_greenlets

_log = logging.getLogger("samekey")

SECRET_MIN_BYTES = 16


class BaseGuard(Operations):
    """A guard without its calls: `Guard` and `AsyncGuard` add them."""

    _leases: Leases

    def __init__(
        self,
        store: Any,
        *,
        policy: Policy = Policy(),  # noqa: B008 - frozen
        secret: str | bytes | Collection[str | bytes] | None = None,
        hooks: Iterable[Hook] = (),
    ) -> None:
        refuse_greenlets()
        if not isinstance(policy, Policy):
            raise Misconfigured(f"policy= takes a Policy, not {type(policy).__name__}")
        super().__init__(policy, as_secrets(secret))
        # Made absolute now: the store is opened later, and after a chdir a relative path would be another file.
        self._address = absolute(check_address(store)) if isinstance(store, str) else None
        self._given = None if isinstance(store, str) else check_store(store, asynchronous=self._asynchronous)
        self._opening = threading.Lock()
        self._closed = False  # no new calls are accepted
        self._shut = False  # the store is closed too: every call that was running has ended
        self._warned = False  # that the store did not answer at start
        self._hooks = as_hooks(hooks)
        self._flights = Flights()
        _ALL.add(self)

    @property
    def store(self) -> Any:
        """The store. The first caller that needs it opens it."""
        opened = self._opened
        if opened is not None and not self._shut:
            return opened
        self._require_open()
        if self._opened is None:
            with self._opening:
                if self._opened is None:
                    self._opened = self._open()
        return self._opened

    @property
    def store_name(self) -> str:
        """The store's name for a command line; known also while the store cannot be reached."""
        known = self._opened or self._given
        return public(str(self._address)) if known is None else str(known.name)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} is not copied or pickled, because its connections are not: make one in each "
            "process, or hand it on as it is"
        )

    def as_new_process(self) -> None:
        """For tests: forget what only this process knows (callers in flight, holds to renew), as a restart does."""
        self._flights = Flights()
        self._leases.forget()

    @contextmanager
    def through(self, wrap: Callable[[Any], Any]) -> Iterator[None]:
        """For tests: until the block ends, every command goes to `wrap(store)`."""
        real = self.store
        self._opened = wrap(real)
        try:
            yield
        finally:
            self._opened = real

    def _open(self) -> Any:
        refuse_greenlets()  # again: a preloaded application makes its guard before its worker patches
        if self._given is not None:
            return self._given
        return open_store(str(self._address), asynchronous=self._asynchronous)

    def _require_open(self) -> None:
        if self._closed:
            raise StoreUnavailable(f"this guard on {self.store_name} was closed")

    def _to_be_shut(self) -> Any:
        """The store, if the guard is closed and no call is running that must still be settled; else None."""
        if self._shut or self._opened is None or self._flights.under_way() or self._leases.living():
            return None
        self._shut = True
        self._leases.end()
        return self._opened

    def _unreachable(self, error: StoreUnavailable) -> None:
        """The store did not answer at start: logged once, and an event for the hooks."""
        if self._warned:
            return
        self._warned = True
        _log.warning(
            "%s did not answer at start (%s). Until then calls are refused, or run unguarded where store_down='run'",
            self.store_name,
            error,
        )
        event = Event(name="store_unreachable", operation="", key_digest="", detail=type(error).__name__)
        for hook in self._hooks:
            try:
                hook(event)
            except Exception:
                _log.exception("a samekey hook raised; the start is not affected")

    def _after_fork(self) -> None:
        # The callers in flight are the parent's, and one of them may hold the lock.
        self._flights, self._opening = Flights(), threading.Lock()


def as_hooks(hooks: Any) -> tuple[Hook, ...]:
    given = tuple(hooks) if isinstance(hooks, Iterable) else (None,)
    if not all(map(callable, given)):
        raise Misconfigured(f"hooks= takes a list of functions that take an Event, not {hooks!r}")
    return given


def as_secrets(secret: Any) -> tuple[bytes, ...]:
    """The current secret first, then older ones: records made under an older secret still verify."""
    if secret is None:
        return ()
    given = (secret,) if isinstance(secret, (str, bytes)) or not isinstance(secret, Iterable) else tuple(secret)
    secrets = tuple(one.encode() if isinstance(one, str) else one for one in given)
    if not secrets or any(not isinstance(one, bytes) or len(one) < SECRET_MIN_BYTES for one in secrets):
        raise Misconfigured(
            f"secret= takes at least {SECRET_MIN_BYTES} bytes (or several such secrets, the current one first)"
        )
    return secrets


_ALL: weakref.WeakSet[BaseGuard] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    forget_ids()
    for guard in _ALL:
        guard._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
