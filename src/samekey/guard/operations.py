"""The rules of operations: what a guard checks once, so that a call only has to follow them."""

from __future__ import annotations

import functools
import inspect
import os
import struct
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, get_type_hints

from samekey.core.boundary import Atomic, Boundary, Keyed, Terms
from samekey.core.call import Call
from samekey.core.errors import Misconfigured, StoreUnavailable
from samekey.core.fingerprint import Intent, declared_ignore
from samekey.core.key import Key, as_text, make_key
from samekey.core.policy import Policy
from samekey.core.ports import Hook
from samekey.core.record import ATTRIBUTE_MAX_CHARS, ATTRIBUTES_MAX
from samekey.core.shapes import data_types, storable_type
from samekey.guard import off_switch
from samekey.guard.binding import Binding, Content, KeyRule, TenantRule, check_function, default_name
from samekey.guard.lease_timer import Leases
from samekey.guard.names import Origin, origin_of
from samekey.guard.single_flight import Flights
from samekey.guard.store_urls import absolute, check_address, check_store, open_store, public, refuse_greenlets

T = TypeVar("T")

OPERATIONS_MAX = 1000  # names are code, not data; beyond that somebody made them of data
SECRET_MIN_BYTES = 16
IDS_AHEAD = 64

_IDS = struct.Struct("16s" * IDS_AHEAD)

Attributes = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Operation:
    """One guarded operation: its name and rules, checked once."""

    name: str
    ignore: tuple[str, ...]
    boundary: Boundary
    terms: Terms
    terms_text: str
    policy: Policy
    types: tuple[type, ...] = ()
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Declared:
    """An operation as a decorated function declared it; `named`: it was given a name= of its own."""

    name: str
    named: bool
    aliases: tuple[str, ...]


class Rules:
    """What both colours share: rules, names, secrets. No I/O in here."""

    _asynchronous: bool
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
        self.policy = policy
        # Whole from the start: opened later, after a chdir, a relative path would be another file.
        self._address = absolute(check_address(store)) if isinstance(store, str) else None
        self._given = None if isinstance(store, str) else check_store(store, asynchronous=self._asynchronous)
        self._opened: Any = None
        self._opening = threading.Lock()
        self._closed = False  # to new calls
        self._shut = False  # and so is the store: what was running has ended
        self._secrets = as_secrets(secret)
        self._hooks = as_hooks(hooks)
        self._flights = Flights()
        _ALL.add(self)
        self._names: dict[str, tuple[Origin, bool, tuple[str, ...]]] = {}
        self._operations: dict[Any, Operation] = {}

    @property
    def store(self) -> Any:
        """The store, opened by whoever first needs it."""
        opened = self._opened
        if opened is not None and not self._shut:
            return opened
        self._require_open()
        if self._opened is None:
            with self._opening:
                if self._opened is None:
                    self._opened = self._open()
        return self._opened

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} is not copied or pickled, because its connections are not: make one in each "
            "process, or hand it on as it is"
        )

    def as_new_process(self) -> None:
        """Forget what only the process knows - callers in flight, holds to renew - as after a restart."""
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

    def _after_fork(self) -> None:
        # The parent's callers are not ours, nor is a lock that one of them held.
        self._flights, self._opening = Flights(), threading.Lock()

    def _to_be_shut(self) -> Any:
        """The store, if the guard is closed and nothing is under way that would still have to be settled."""
        if self._shut or self._opened is None or self._flights.under_way() or self._leases.living():
            return None
        self._shut = True
        self._leases.end()
        return self._opened

    def _require_open(self) -> None:
        if self._closed:
            raise StoreUnavailable(f"this guard on {self.store_name} was closed")

    def _open(self) -> Any:
        refuse_greenlets()  # again: a guard of a preloaded application is made before its worker patches
        if self._given is not None:
            return self._given
        return open_store(str(self._address), asynchronous=self._asynchronous)

    @property
    def store_name(self) -> str:
        """What to call the store in a command line; known also while it cannot be reached."""
        known = self._opened or self._given
        return public(str(self._address)) if known is None else str(known.name)

    def declared(self) -> list[Declared]:
        """The operations of decorated functions."""
        return [
            Declared(name, named=named, aliases=aliases) for name, (_, named, aliases) in sorted(self._names.items())
        ]

    def operation(
        self,
        name: str,
        *,
        ignore: Collection[str] = (),
        boundary: Boundary,
        policy: Policy | None = None,
        types: tuple[type, ...] = (),
        aliases: tuple[str, ...] = (),
    ) -> Operation:
        """The checked rules of an operation, remembered."""
        asked: Any = None
        try:
            ignore = ignore if isinstance(ignore, str) else tuple(ignore)  # once: a generator gives its names once
            asked = (name, ignore, boundary, policy, types, aliases)
            return self._operations[asked]
        except (KeyError, TypeError):
            pass
        if not isinstance(boundary, Boundary):
            raise Misconfigured(f"boundary= takes Atomic, Keyed, Asks, Repeatable or Opaque, not {boundary!r}")
        if (
            boundary.asks_with is not None
            and inspect.iscoroutinefunction(boundary.asks_with)
            and not self._asynchronous
        ):
            raise Misconfigured("an async lookup needs AsyncGuard")
        rules = self.policy if policy is None else policy
        if not isinstance(rules, Policy):
            raise Misconfigured(f"policy= takes a Policy, not {type(rules).__name__}")
        if isinstance(boundary, Keyed):
            _check_window(name, boundary.terms.window or 0, rules)
        found = Operation(
            name=make_key(name, "checked").operation,
            ignore=declared_ignore(ignore),
            boundary=boundary,
            terms=boundary.terms,
            terms_text=boundary.terms.text(),
            policy=rules,
            types=types,
            aliases=aliases,
        )
        try:
            if len(self._operations) < OPERATIONS_MAX:
                self._operations[asked] = found
        except TypeError:
            pass  # a lookup that cannot be hashed
        return found

    def new_call(
        self,
        operation: Operation,
        key: str,
        payload: Any,
        tenant: str | None,
        attributes: Attributes | None = None,
        written: bytes | None = None,
    ) -> Call:
        """One call under rules that were checked before; `written` is the payload in canonical form, if it is known."""
        if self._closed:
            self._require_open()
        whole, opened = make_key(operation.name, key, tenant), self._opened
        aliases = tuple([make_key(alias, key, tenant) for alias in operation.aliases]) if operation.aliases else ()
        return Call(
            whole,
            # By position: it takes half as long.
            Intent(payload, operation.ignore, self._secrets, _salt(whole), written),
            new_attempt(),
            operation.boundary,
            operation.terms,
            operation.terms_text,
            operation.policy,
            operation.types,
            aliases,
            check_attributes(attributes) if attributes else (),
            self.store_name if opened is None else opened.name,
            off_switch.depth > 0,
        )

    def _register(self, name: str | None, function: Any, aliases: tuple[str, ...]) -> str:
        """The operation's name; two different functions under one name would answer for each other."""
        own = origin_of(function)
        chosen = default_name(function) if name is None else make_key(name, "checked").operation
        known = self._names.get(chosen)
        if known is not None and not known[0].is_same(own):
            raise Misconfigured(
                f"two functions are called {chosen!r}: their keys would answer for each other. Give each its own name= "
                "(with aliases= it still finds the other's keys), or make what differs between them a parameter"
            )
        self._names[chosen] = (own, name is not None, aliases)
        return chosen

    def _decorated(
        self,
        function: Callable[..., Any],
        *,
        key: KeyRule,
        name: str | None,
        tenant: TenantRule | None,
        ignore: Collection[str],
        boundary: Boundary,
        policy: Policy | None,
        aliases: Collection[str],
    ) -> tuple[Binding, Operation]:
        check_function(function, asynchronous=self._asynchronous)
        others = as_names(aliases)
        atomic = boundary.parameter if isinstance(boundary, Atomic) else None
        binding = Binding(function, key=key, tenant=tenant, ignore=ignore, atomic=atomic)
        annotation = return_annotation(function)
        reason = storable_type(annotation)
        if reason is not None:
            raise Misconfigured(
                f"the result of {getattr(function, '__qualname__', function)!s} cannot be kept: {reason}"
            )
        operation = self.operation(
            self._register(name, function, others),
            ignore=binding.ignore,
            boundary=boundary,
            policy=policy,
            types=data_types(annotation),
            aliases=others,
        )
        return binding, operation


def _check_window(name: str, window: float, policy: Policy) -> None:
    if policy.retention_seconds < window:
        raise Misconfigured(
            f"{name}: retention ({policy.retention_seconds:.0f} s) is shorter than the provider's window "
            f"({window:.0f} s): a key would be forgotten while the provider still answers it. Give a longer retention"
        )
    if policy.lease_seconds >= window:
        raise Misconfigured(
            f"{name}: the lease ({policy.lease_seconds:.0f} s) must be shorter than the provider's window "
            f"({window:.0f} s): no re-run could end before the provider forgets. Give a shorter lease, or declare Asks"
        )


def as_key(key: Any, payload: Any, operation: Operation) -> str:
    if isinstance(key, Content):
        return key.key_of(payload, operation.ignore)
    return as_text(key)


def check_effect(effect: Any, *, asynchronous: bool) -> None:
    """Refuse before the claim what can be known before: what a plain function will return cannot."""
    if not callable(effect):
        raise Misconfigured(f"an effect is a function, not {type(effect).__name__}")
    inner = effect
    while isinstance(inner, functools.partial):
        inner = inner.func
    if isinstance(inner, type):
        if asynchronous and not hasattr(inner, "__await__"):
            raise Misconfigured(f"the effect makes a {inner.__name__}, which cannot be awaited: run it with Guard")
        return
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    flags = 0 if code is None else code.co_flags
    if flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR) and not flags & inspect.CO_ITERABLE_COROUTINE:
        raise Misconfigured("the effect is a generator: called, it has not begun, and its steps are no result")
    if flags & inspect.CO_COROUTINE and not asynchronous:
        raise Misconfigured("the effect is async: run it with AsyncGuard")


def no_effect() -> None:
    """The effect of a hold: it is whatever the caller does in its block."""


def refuse_atomic(boundary: Boundary) -> None:
    """Without a parameter that carries the connection, a claim outside the transaction would be called atomic."""
    if isinstance(boundary, Atomic):
        raise Misconfigured(
            "Atomic needs the connection: decorate a function that takes it, or use guard.on(connection)"
        )


def return_annotation(function: Any) -> Any:
    """The return annotation, resolved if it can be; None when there is none or it names what is not there yet."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    try:
        return get_type_hints(inner, include_extras=True).get("return", Any)
    except Exception:  # a forward reference that nothing resolves yet: judged by the first result instead
        return Any


def check_attributes(attributes: Attributes | None) -> tuple[tuple[str, str], ...]:
    if not attributes:
        return ()
    if not isinstance(attributes, Mapping):
        raise Misconfigured(f"attributes map names to strings; a {type(attributes).__name__} does not")
    if len(attributes) > ATTRIBUTES_MAX:
        raise Misconfigured(f"{len(attributes)} attributes; {ATTRIBUTES_MAX} is the limit")
    given: Mapping[Any, Any] = attributes
    for name, value in given.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise Misconfigured(f"attributes map names to strings; {name!r} does not")
        if not (name + value).isprintable():
            raise Misconfigured(f"the attribute {name[:40]!a} holds what cannot be shown or stored")
        if max(len(name), len(value)) > ATTRIBUTE_MAX_CHARS:
            raise Misconfigured(f"the attribute {name[:40]!r} is longer than {ATTRIBUTE_MAX_CHARS} characters")
    return tuple(sorted(attributes.items()))


def as_names(aliases: Any) -> tuple[str, ...]:
    if isinstance(aliases, (str, bytes)) or not isinstance(aliases, Iterable):
        raise Misconfigured(f"aliases= takes a list of names, not {aliases!r}")
    names = tuple(aliases)
    for name in names:
        if not isinstance(name, str):
            raise Misconfigured(f"aliases= takes a list of names; {name!r} is none")
        make_key(name, "checked")
    return names


def as_hooks(hooks: Any) -> tuple[Hook, ...]:
    given = tuple(hooks) if isinstance(hooks, Iterable) else (None,)
    if not all(map(callable, given)):
        raise Misconfigured(f"hooks= takes a list of functions that take an Event, not {hooks!r}")
    return given


def as_secrets(secret: Any) -> tuple[bytes, ...]:
    """The current secret first, older ones after it: records made under them still verify."""
    if secret is None:
        return ()
    given = (secret,) if isinstance(secret, (str, bytes)) or not isinstance(secret, Iterable) else tuple(secret)
    secrets = tuple(one.encode() if isinstance(one, str) else one for one in given)
    if not secrets or any(not isinstance(one, bytes) or len(one) < SECRET_MIN_BYTES for one in secrets):
        raise Misconfigured(
            f"secret= takes at least {SECRET_MIN_BYTES} bytes (or several such secrets, the current one first)"
        )
    return secrets


def _salt(key: Key) -> str:
    # Not the operation's name: a renamed operation with aliases= still names the fields that differ.
    return key.text if key.tenant is None else f"{key.tenant!r}/{key.text}"


# -- what a fork must not share ------------------------------------------------------------------------------------

_ALL: weakref.WeakSet[Rules] = weakref.WeakSet()
_ids: list[str] = []  # attempt ids made ahead: asking the system for each one costs more than all of a replay


def new_attempt() -> str:
    """128 random bits in hex, never given out twice."""
    try:
        return _ids.pop()
    except IndexError:
        first, *others = map(bytes.hex, _IDS.unpack(os.urandom(_IDS.size)))
        _ids.extend(others)
        return first


def _after_fork_in_child() -> None:
    _ids.clear()  # the parent gives them out
    for rules in _ALL:
        rules._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
