"""Operations: their rules, checked once; the registry of what a guard guards; and the `Call` made of one request."""

from __future__ import annotations

import functools
import inspect
import os
import re
import struct
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_type_hints

from samekey.core.attributes import Attributes, Pairs, check_attributes
from samekey.core.boundary import Atomic, Boundary, Kind, Lookup, Terms
from samekey.core.call import Call
from samekey.core.errors import Misconfigured
from samekey.core.fingerprint import Intent, declared_ignore
from samekey.core.key import Key, as_text, make_key
from samekey.core.policy import Policy
from samekey.core.sealing import Keeping, Sealer
from samekey.core.shapes import data_types, storable_type
from samekey.guard import off_switch
from samekey.guard.binding import AttributeRule, Binding, Content, KeyRule, LabelledBinding, TenantRule, check_function
from samekey.guard.names import Origin, default_name, origin_of

OPERATIONS_MAX = 1000  # operations a guard remembers; a program that has more makes their names of data
IDS_AHEAD = 64

_IDS = struct.Struct("16s" * IDS_AHEAD)

DeclaredBy = Literal["decorator", "run", "hold", "http", "webhook", "message", "adapter", "declared"]
LateHandler = Callable[[Any], Any]  # of a LateTruth: see samekey.doubt


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
    apart: tuple[str, ...] | None = ()  # paths of the payload that make the key; None where they are not known
    keeping: Keeping | None = None


@dataclass(frozen=True, slots=True)
class Declared:
    """An entry of the registry: an operation, its rules, and what declared it.

    A `*` in the name matches any text: an HTTP adapter declares `POST /*` before it has seen a request. `operation`
    is None where the rules are chosen per request.
    """

    name: str
    by: DeclaredBy
    operation: Operation | None = None
    named: bool = True  # False: a decorated function without name=, known by its module and its own name
    aliases: tuple[str, ...] = ()
    effect: Callable[[Any], Any] | None = None  # runs the effect for a kept payload; None: only a caller can run it
    horizon: float | None = None  # of a message handler: seconds for which its broker may deliver a message again

    @property
    def boundary(self) -> Boundary | None:
        return None if self.operation is None else self.operation.boundary

    @property
    def policy(self) -> Policy | None:
        return None if self.operation is None else self.operation.policy

    @property
    def lookup(self) -> Lookup | None:
        """The function that asks the provider, where the boundary has one."""
        return None if self.operation is None else self.operation.boundary.asks_with

    @property
    def payload(self) -> str:
        """What the fingerprint is made of: "arguments" of a function, an HTTP "request", an "event id", a "payload"."""
        return {"decorator": "arguments", "http": "request", "webhook": "event id"}.get(self.by, "payload")

    def covers(self, name: str) -> bool:
        """Whether a record of this operation name is of this entry, today's name or an earlier one."""
        pattern = ".*".join(map(re.escape, self.name.split("*")))
        return name in self.aliases or re.fullmatch(pattern, name, re.DOTALL) is not None


class Operations:
    """The rules and the registry of one guard. No I/O in here."""

    _asynchronous: bool
    _closed: bool
    _on_connection = False  # True inside a transaction of the caller: then every call is Atomic

    def __init__(self, policy: Policy, secrets: tuple[bytes, ...], sealer: Sealer | None = None) -> None:
        self.policy = policy
        self._secrets, self._sealer = secrets, sealer
        keeping_of(policy, sealer)
        self._opened: Any = None  # the store, once it is open
        self._origins: dict[str, Origin] = {}
        self._declared: dict[str, Declared] = {}
        self._sources: list[Callable[[], Iterable[Declared]]] = []
        self.late_handlers: dict[str, LateHandler] = {}  # by operation; see `on_late_truth`
        self._operations: dict[Any, Operation] = {}

    @property
    def store_name(self) -> str:
        raise NotImplementedError

    def _require_open(self) -> None:
        raise NotImplementedError

    def declared(self) -> list[Declared]:
        """The registry: every operation that was declared so far, by name.

        Decorators, HTTP routes and webhooks declare theirs when they are made; `run` and `hold` at the first call.
        """
        found = {one.name: one for source in self._sources for one in source()} | self._declared
        return [one for _, one in sorted(found.items())]

    def enter(self, declared: Declared) -> None:
        """Put an entry into the registry. The newest entry of a name counts; at most OPERATIONS_MAX are kept."""
        known = self._declared.get(declared.name)
        if known is not None and declared.effect is None and known.boundary == declared.boundary:
            declared = replace(declared, effect=known.effect)  # a call by `run` keeps the effect of `declare`
        if declared.name in self._declared or len(self._declared) < OPERATIONS_MAX:
            self._declared[declared.name] = declared

    def declare(
        self,
        name: str,
        *,
        boundary: Boundary,
        effect: Callable[[Any], Any] | None = None,
        ignore: Collection[str] = (),
        policy: Policy | None = None,
    ) -> None:
        """Declare an operation that `run` or `hold` guards inside a function: workers and doctor only import the code.

        `effect(payload)` lets a worker run it again from its kept payload, where the boundary allows that. The payload
        is what its canonical form says: mappings, lists, texts, numbers.
        """
        refuse_atomic(boundary)
        if effect is not None:
            check_effect(effect, asynchronous=self._asynchronous)
        operation = self.operation(name, ignore=ignore, boundary=boundary, policy=policy, by="declared")
        self.enter(Declared(operation.name, "declared", operation, effect=effect))

    def on_late_truth(self, name: str) -> Callable[[LateHandler], LateHandler]:
        """Decorate a function of a `LateTruth`: an effect happened, and its callers had got another answer.

        A worker calls it, once for each key, and again if it raised or if the process died meanwhile.
        """
        chosen = make_key(name, "checked").operation

        def decorate(handler: LateHandler) -> LateHandler:
            check_effect(handler, asynchronous=self._asynchronous)
            if chosen in self.late_handlers:
                raise Misconfigured(f"{chosen!r} has a function for its late truth already")
            self.late_handlers[chosen] = handler
            return handler

        return decorate

    def declare_later(self, source: Callable[[], Iterable[Declared]]) -> None:
        """Entries that are made when the registry is read: for routes that come after their adapter."""
        if len(self._sources) < OPERATIONS_MAX:
            self._sources.append(source)

    def operation(
        self,
        name: str,
        *,
        ignore: Collection[str] = (),
        boundary: Boundary,
        policy: Policy | None = None,
        types: tuple[type, ...] = (),
        aliases: tuple[str, ...] = (),
        apart: tuple[str, ...] | None = (),
        by: DeclaredBy = "adapter",
        named: bool = True,
    ) -> Operation:
        """The checked rules of an operation, remembered and put into the registry."""
        asked: Any = None
        try:
            ignore = ignore if isinstance(ignore, str) else tuple(ignore)  # once: a generator gives its names once
            asked = (name, ignore, boundary, policy, types, aliases, apart)
            return self._operations[asked]
        except (KeyError, TypeError):
            pass
        check_boundary(boundary)
        if (
            boundary.asks_with is not None
            and inspect.iscoroutinefunction(boundary.asks_with)
            and not self._asynchronous
        ):
            raise Misconfigured("an async lookup needs AsyncGuard")
        rules = self.policy if policy is None else policy
        if not isinstance(rules, Policy):
            raise Misconfigured(f"policy= takes a Policy, not {type(rules).__name__}")
        if boundary.terms.kind is Kind.KEYED:
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
            apart=apart,
            keeping=keeping_of(rules, self._sealer),
        )
        self.enter(Declared(found.name, by, found, named, aliases))
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
        tenant: str | None = None,
        attributes: Attributes | Pairs | None = None,
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
            Intent(payload, operation.ignore, self._secrets, _salt(whole), written, operation.apart),
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
            operation.keeping,
        )

    def _by_hand(
        self,
        name: str,
        effect: Any,
        ignore: Any,
        boundary: Boundary,
        policy: Policy | None,
        apart: tuple[str, ...] | None,
        by: DeclaredBy = "run",
    ) -> Operation:
        """The rules of an operation that no decorator has checked."""
        self._require_open()
        check_effect(effect, asynchronous=self._asynchronous)
        if not self._on_connection:
            refuse_atomic(boundary)
        return self.operation(name, ignore=ignore, boundary=boundary, policy=policy, apart=apart, by=by)

    def _decorated(
        self,
        function: Callable[..., Any],
        key: KeyRule,
        name: str | None,
        tenant: TenantRule | None,
        ignore: Collection[str],
        boundary: Boundary,
        policy: Policy | None,
        aliases: Collection[str],
        attributes: AttributeRule,
    ) -> tuple[Binding, Operation]:
        check_function(function, asynchronous=self._asynchronous)
        others = as_names(aliases)
        atomic = boundary.parameter if isinstance(boundary, Atomic) else None
        rules: dict[str, Any] = {"key": key, "tenant": tenant, "ignore": ignore, "atomic": atomic}
        # Labels are for the calls that have them: the others do not look for any.
        binding = Binding(function, **rules) if attributes == () else LabelledBinding(function, attributes, **rules)
        annotation = return_annotation(function)
        reason = storable_type(annotation)
        if reason is not None:
            raise Misconfigured(
                f"the result of {getattr(function, '__qualname__', function)!s} cannot be kept: {reason}"
            )
        operation = self.operation(
            self._named(name, function),
            ignore=binding.ignore,
            boundary=boundary,
            policy=policy,
            types=data_types(annotation),
            aliases=others,
            apart=binding.apart,
            by="decorator",
            named=name is not None,
        )
        again = binding.from_payload(function)
        if again is not None:
            self.enter(Declared(operation.name, "decorator", operation, name is not None, others, again))
        return binding, operation

    def _named(self, name: str | None, function: Any) -> str:
        """The operation's name. Two different functions under one name would answer for each other: refused."""
        own = origin_of(function)
        chosen = default_name(function) if name is None else make_key(name, "checked").operation
        known = self._origins.get(chosen)
        if known is not None and not known.is_same(own, set()):
            raise Misconfigured(
                f"two functions are called {chosen!r}: their keys would answer for each other. Give each its own name= "
                "(with aliases= it still finds the other's keys), or make what differs between them a parameter"
            )
        self._origins[chosen] = own
        return chosen


# -- checks --------------------------------------------------------------------------------------------------------


def check_boundary(boundary: Any) -> None:
    if not isinstance(boundary, Boundary):
        raise Misconfigured(f"boundary= takes Atomic, Keyed, Asks, Repeatable or Opaque, not {boundary!r}")


def keeping_of(policy: Policy, sealer: Sealer | None) -> Keeping | None:
    """How records keep what is not kept as it is; None where everything is."""
    if policy.keep_payload and sealer is None:
        raise Misconfigured("keep_payload=True keeps what a caller sent, which needs keys: Guard(keys=Keyring(...))")
    return None if sealer is None and policy.redact is None else Keeping(sealer, policy.redact, policy.keep_payload)


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
    """Refuse before the claim an effect that can never work. What a plain function returns is only seen later."""
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
    """The effect of a hold: the caller's block is the effect."""


def refuse_atomic(boundary: Boundary) -> None:
    """Without a parameter that carries the connection, the claim would be made outside the transaction."""
    if isinstance(boundary, Atomic):
        raise Misconfigured(
            "Atomic needs the connection: decorate a function that takes it, or use guard.on(connection)"
        )


def return_annotation(function: Any) -> Any:
    """The return annotation, resolved if it can be; Any when there is none or one of its names is not defined yet."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    try:
        return get_type_hints(inner, include_extras=True).get("return", Any)
    except Exception:  # a forward reference that cannot be resolved yet: the first result is checked instead
        return Any


def as_names(aliases: Any) -> tuple[str, ...]:
    if isinstance(aliases, (str, bytes)) or not isinstance(aliases, Iterable):
        raise Misconfigured(f"aliases= takes a list of names, not {aliases!r}")
    names = tuple(aliases)
    for name in names:
        if not isinstance(name, str):
            raise Misconfigured(f"aliases= takes a list of names; {name!r} is none")
        make_key(name, "checked")
    return names


def _salt(key: Key) -> str:
    # Not the operation's name: a renamed operation with aliases= still names the fields that differ.
    return key.text if key.tenant is None else f"{key.tenant!r}/{key.text}"


# -- attempt ids ---------------------------------------------------------------------------------------------------

_ids: list[str] = []  # made ahead: asking the system for each one costs more than all of a replay


def new_attempt() -> str:
    """128 random bits in hex, never given out twice."""
    try:
        return _ids.pop()
    except IndexError:
        first, *others = map(bytes.hex, _IDS.unpack(os.urandom(_IDS.size)))
        _ids.extend(others)
        return first


def forget_ids() -> None:
    """In a forked child: the parent gives these ids out."""
    _ids.clear()
