"""What both guards share: the store that is opened and closed, forks, secrets, hooks. No calls are made in here."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, NoReturn, TypeVar

from samekey.core.errors import Misconfigured, StoreUnavailable
from samekey.core.policy import Policy
from samekey.core.ports import AsyncStore, Event, Hook, Store
from samekey.core.sealing import Sealer
from samekey.guard.deadline import Helpers
from samekey.guard.facts import Facts
from samekey.guard.lease_timer import Leases, renew_with
from samekey.guard.operations import Operations, forget_ids
from samekey.guard.settling import AsyncSettling, Settling
from samekey.guard.single_flight import Flights
from samekey.guard.store_urls import absolute, check_address, check_store, open_store, public, refuse_greenlets

_log = logging.getLogger("samekey")

SECRET_MIN_BYTES = 16

S = TypeVar("S", Store, AsyncStore)


class BaseGuard(Operations, Generic[S]):
    """A guard without its calls: `Guard` and `AsyncGuard` add them."""

    _budget = None  # of one call with a deadline: see deadline.py

    def __init__(
        self,
        store: str | S,
        *,
        policy: Policy = Policy(),  # noqa: B008 - frozen
        secret: str | bytes | Collection[str | bytes] | None = None,
        keys: Sealer | None = None,
        hooks: Iterable[Hook] = (),
        source: str | None = None,
    ) -> None:
        refuse_greenlets()
        if not isinstance(policy, Policy):
            raise Misconfigured(f"policy= takes a Policy, not {type(policy).__name__}")
        if not isinstance(keys, Sealer | None):
            raise Misconfigured(f"keys= takes a Keyring, not {type(keys).__name__}")
        super().__init__(policy, as_secrets(secret), keys)
        # Made absolute now: the store is opened later, and after a chdir a relative path would be another file.
        self._address = absolute(check_address(store)) if isinstance(store, str) else None
        self._given = None if isinstance(store, str) else check_store(store, asynchronous=self._asynchronous)
        self._opening = threading.Lock()
        self._closed = False  # no new calls are accepted
        self._shut = False  # the store is closed too: every call that was running has ended
        self._warned = False  # that the store did not answer at start
        self._facts = Facts(hooks, source, asynchronous=self._asynchronous)
        self._facts.bind(self)
        self._flights = Flights()
        self._leases = Leases(lambda lease: renew_with(self.store, lease))
        self._start_anew()
        _ALL.add(self)

    @property
    def store(self) -> S:
        """The store. The first caller that needs it opens it."""
        opened: S | None = self._opened
        if opened is not None and not self._shut:
            return opened
        self._require_open()
        if self._opened is None:
            with self._opening:
                if self._opened is None:
                    self._opened = self._open()
        opened = self._opened
        return opened

    @property
    def _in_process(self) -> bool:
        """Whether the store is in this process: it always answers."""
        known = self._opened or self._given
        return str(self._address).startswith("memory:") if known is None else getattr(known, "in_process", False)

    @property
    def store_name(self) -> str:
        """The store's name for a command line; known also while the store cannot be reached."""
        known = self._opened or self._given
        return public(str(self._address)) if known is None else str(known.name)

    def ask_store(self, work: Callable[[Any], Any], seconds: float) -> Any:
        """For hooks, from a thread of theirs: `work(store)`, awaited in the guard's loop where the store has no sync
        twin, for at most so many seconds. None while no attempt has opened the store."""
        return None if self._opened is None or self._shut else self._facts.books.ask(self._opened, work, seconds)

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
        if not self._closed or self._shut or self._opened is None:
            return None
        if self._settling or self._flights.under_way() or self._leases.living():
            return None
        self._shut = True
        self._leases.end()
        return self._opened

    def _unreachable(self, error: StoreUnavailable) -> None:
        """The store did not answer at start: reported once."""
        if self._warned:
            return
        self._warned = True
        _log.warning(
            "%s did not answer at start (%s). Until then calls are refused, or run unguarded where store_down='run'",
            self.store_name,
            error,
        )
        name = type(error).__name__
        self._facts.tell(Event("store_unreachable", "", "", detail=name, error=name), logged=True)

    def _after_fork(self) -> None:
        # The callers in flight are the parent's, and one of them may hold the lock.
        self._flights, self._opening = Flights(), threading.Lock()
        self._start_anew()
        self._facts.after_fork()

    def _start_anew(self) -> None:
        """No command and no outcome is under way in this process."""
        self._helpers, self._under_way = Helpers(), set[Any]()
        self._settling: Any = (AsyncSettling if self._asynchronous else Settling)(self)


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


_ALL: weakref.WeakSet[BaseGuard[Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    forget_ids()
    for guard in _ALL:
        guard._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
