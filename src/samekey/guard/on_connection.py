"""`guard.on(connection)`: the same guard inside the caller's transaction.

Records and effects commit with the caller, or not at all. These classes hold the guard they were made from and ask it
for everything that is the guard's own: its store, rules, hooks, and whether it was closed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from samekey.core.attempt import note
from samekey.core.boundary import Kind, Terms
from samekey.core.call import Call
from samekey.core.transaction import AsyncTransaction, Transaction
from samekey.guard.atomic import AsyncAtomicPerformer, AtomicPerformer, require_same_database, require_transaction
from samekey.guard.batch import Rules
from samekey.guard.operations import Operation

_BATCH_OVER = (
    "samekey: the database ended the transaction during this item of the batch: earlier items are rolled back, later "
    "ones were not run. Run the whole batch again"
)
_IN_TRANSACTION = Terms(Kind.ATOMIC)
_IN_TRANSACTION_TEXT = _IN_TRANSACTION.text()


class _OfGuard:
    """The guard's own attributes, read from it each time: after `close()` it is closed here, too."""

    _on_connection = True
    _facts: Any
    new_call: Callable[..., Call]

    def __init__(self, guard: Any, transaction: Any) -> None:
        guard._require_open()
        self._guard, self._transaction = guard, transaction

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guard, name)


class OnConnection(_OfGuard):
    """What `Guard` does differently inside the caller's transaction."""

    def __init__(self, guard: Any, connection: Any) -> None:
        transaction: Transaction = guard.store.join(connection)
        super().__init__(guard, transaction)
        if transaction.stale and not transaction.in_transaction:
            transaction.look_again()
        require_transaction(transaction)
        require_same_database(transaction)

    def close(self) -> None:
        """Does nothing: the store is the guard's, and the transaction the caller's."""

    _shut_if_idle = close

    def _performer(self, call: Call, effect: Callable[[], Any]) -> AtomicPerformer:
        require_transaction(self._transaction)
        return AtomicPerformer(atomic_call(call), effect, self._transaction, begins=False, facts=self._facts)

    def _run_some(self, operation: Operation, effect: Any, some: list[Any], rules: Rules) -> list[Any]:
        return [self._run_one(operation, effect, payload, rules) for payload in some]

    def _run_one(self, operation: Operation, effect: Any, payload: Any, rules: Rules) -> Any:
        performer = None
        try:
            performer = self._performer(rules.call(self, operation, payload), functools.partial(effect, payload))
            return performer.conclude(performer.go_on())
        except Exception as error:
            return batch_item(error, performer)


class AsyncOnConnection(_OfGuard):
    """The same for `AsyncGuard`."""

    def __init__(self, guard: Any, connection: Any) -> None:
        transaction: AsyncTransaction = guard.store.join(connection)
        super().__init__(guard, transaction)
        require_transaction(transaction)  # whether it is the same database, the first call asks

    async def close(self) -> None:
        """Does nothing: the store is the guard's, and the transaction the caller's."""

    _shut_if_idle = close

    def _performer(self, call: Call, effect: Callable[[], Any]) -> AsyncAtomicPerformer:
        require_transaction(self._transaction)
        return AsyncAtomicPerformer(atomic_call(call), effect, self._transaction, begins=False, facts=self._facts)

    async def _run_some(self, operation: Operation, effect: Any, some: list[Any], rules: Rules) -> list[Any]:
        return [await self._run_one(operation, effect, payload, rules) for payload in some]

    async def _run_one(self, operation: Operation, effect: Any, payload: Any, rules: Rules) -> Any:
        performer = None
        try:
            performer = self._performer(rules.call(self, operation, payload), functools.partial(effect, payload))
            return performer.conclude(await performer.go_on())
        except Exception as error:
            return batch_item(error, performer)


def batch_item(error: Exception, performer: Any) -> Exception:
    """The error as the answer of its item; raised if the caller's transaction ended with it."""
    if performer is not None and performer.ended_it:
        note(error, _BATCH_OVER)
        raise error
    return error


def atomic_call(call: Call) -> Call:
    """The same call, under the terms of a transaction."""
    return Call(  # by hand: dataclasses.replace takes fifteen times as long
        call.key,
        call.intent,
        call.attempt,
        call.boundary,
        _IN_TRANSACTION,
        _IN_TRANSACTION_TEXT,
        call.policy,
        call.types,
        call.aliases,
        call.attributes,
        call.store_name,
        call.unguarded,
        call.keeping,
        call.to_caller,
    )
