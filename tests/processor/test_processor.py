"""What a processor accepts, what it refuses, and what it closes."""

from __future__ import annotations

import doctest
import functools
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from samekey import CONTENT, AsyncGuard, Guard, Misconfigured, Policy, Refused, ResultNotKept, StoreUnavailable
from samekey import processor as module
from samekey.core.errors import PayloadRefused
from samekey.processor import AsyncIdempotentProcessor, IdempotentProcessor, ProcessingRecord
from samekey.stores.memory import MemoryStore

MEMORY = "memory://"


def handle(payload: Any) -> str:
    return f"handled {payload}"


class Handler:
    def __call__(self, payload: Any) -> Any:
        return payload

    def method(self, payload: Any) -> Any:
        return payload


def test_the_example_in_the_docstring_runs():
    assert doctest.testmod(module).failed == 0
    assert doctest.testmod(module).attempted > 0


# -- what it accepts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn", [handle, lambda payload: payload, len, Handler().method], ids=["def", "lambda", "builtin", "method"]
)
def test_any_callable_with_a_name_needs_no_other(fn):
    with IdempotentProcessor(fn, MEMORY) as processor:
        assert processor.process("abc").was_replay is False
        assert processor.process("abc").was_replay is True


@pytest.mark.parametrize("fn", [functools.partial(handle), Handler()], ids=["partial", "object"])
def test_a_callable_without_a_name_is_given_one(fn):
    """Two partials of one function would share a name, and answer for each other in another process."""
    with pytest.raises(TypeError, match="give it one with name="):
        IdempotentProcessor(fn, MEMORY)

    assert IdempotentProcessor(fn, MEMORY, name="handle").process(1).attempts == 1


def test_the_key_is_the_content_key_of_the_guard():
    """So `guard.run(key=CONTENT)` and a processor of the same name agree."""
    guard = Guard(MEMORY)
    processor = IdempotentProcessor(handle, guard, name="handle", ignore={"at"})
    record = processor.process({"id": 1, "at": 5})

    assert record == ProcessingRecord("handled {'id': 1, 'at': 5}", False, CONTENT.key_of({"id": 1}, ()), 1)
    assert guard.peek("handle", record.key) is not None


def test_a_store_may_be_given_and_the_policy_counts():
    processor = IdempotentProcessor(handle, MemoryStore(), policy=Policy(retention=3600))
    record = processor.process(1)

    found = processor._guard.peek(processor.name, record.key)
    assert found is not None
    assert found.retain_until is not None
    assert 3500 < found.retain_until - found.created_at < 3700


async def test_an_async_processor_takes_plain_functions_and_lambdas_too():
    async with AsyncIdempotentProcessor(lambda payload: payload + 1, MEMORY) as processor:
        assert (await processor.process(1)).result == 2
        assert (await processor.process(1)).was_replay is True


def test_a_guard_knows_the_operation_of_its_processor():
    guard = Guard(MEMORY)
    processor = IdempotentProcessor(handle, guard)

    (declared,) = guard.declared()
    assert declared.name == processor.name == f"{__name__}:handle"
    assert type(declared.boundary).__name__ == "Repeatable"


def test_many_workers_that_get_one_payload_run_it_once():
    ran: list[str] = []
    all_asked = threading.Barrier(4)

    def count(payload: str) -> int:
        ran.append(payload)
        return len(ran)

    processor = IdempotentProcessor(count, MEMORY)

    def deliver(_: int) -> ProcessingRecord[int]:
        all_asked.wait()
        return processor.process("m-1")

    with ThreadPoolExecutor(4) as pool:
        records = list(pool.map(deliver, range(4)))

    assert ran == ["m-1"]
    assert sorted((record.result, record.was_replay) for record in records) == [(1, False), *[(1, True)] * 3]


# -- what it refuses -----------------------------------------------------------------------------------------------


def test_two_functions_under_one_name_are_refused():
    guard = Guard(MEMORY)
    first = IdempotentProcessor(lambda payload: "mail", guard)
    with pytest.raises(Misconfigured, match=r"two processors on memory:// are called .*Give each its own name="):
        IdempotentProcessor(lambda payload: "invoice", guard)

    first.close()
    assert IdempotentProcessor(lambda payload: "invoice", guard).process(1).result == "invoice"


def test_two_processors_on_one_address_are_compared_too(tmp_path):
    address = f"sqlite:///{tmp_path}/keys.db"
    with IdempotentProcessor(lambda payload: "mail", address, name="handle"):
        with pytest.raises(Misconfigured, match="two processors"):
            IdempotentProcessor(lambda payload: "invoice", address, name="handle")
        IdempotentProcessor(lambda payload: "invoice", address, name="bill").close()


def test_the_same_function_may_have_two_processors():
    guard = Guard(MEMORY)

    assert IdempotentProcessor(handle, guard).process(1).was_replay is False
    assert IdempotentProcessor(handle, guard).process(1).was_replay is True


def test_both_names_of_one_option_are_refused():
    with pytest.raises(Misconfigured, match="two names of one option"):
        IdempotentProcessor(handle, MEMORY, ignore=["a"], exclude_fields=["b"])


def test_a_function_of_the_other_colour_is_refused():
    async def awaited(payload: Any) -> None: ...

    def steps(payload: Any) -> Any:
        yield payload

    with pytest.raises(Misconfigured, match="async"):
        IdempotentProcessor(awaited, MEMORY)
    with pytest.raises(Misconfigured, match="generator"):
        AsyncIdempotentProcessor(steps, MEMORY)
    with pytest.raises(Misconfigured, match="not AsyncGuard"):
        IdempotentProcessor(handle, AsyncGuard(MEMORY))  # type: ignore[arg-type]


def test_a_payload_without_an_exact_form_is_refused_and_nothing_runs():
    ran: list[Any] = []
    with pytest.raises(PayloadRefused):
        IdempotentProcessor(ran.append, MEMORY, name="handle").process(object())

    assert ran == []


# -- what the function knows ---------------------------------------------------------------------------------------


def test_a_refusal_is_final():
    ran: list[Any] = []

    def refuse(payload: Any) -> None:
        ran.append(payload)
        raise Refused("no such account")

    processor = IdempotentProcessor(refuse, MEMORY)
    for _ in range(2):
        with pytest.raises(Refused, match="no such account"):
            processor.process(1)

    assert ran == [1]


def test_a_result_that_another_guard_lost_inside_the_function_is_an_exception_like_any_other():
    inner = Guard(MEMORY)
    ran: list[Any] = []

    def call_inner(payload: Any) -> Any:
        ran.append(payload)
        return inner.run("inner", object, key="k", payload=None).result

    with pytest.raises(ResultNotKept):
        [IdempotentProcessor(call_inner, MEMORY, name="outer").process(number) for number in range(2)]

    assert ran == [0, 1]


# -- what it closes ------------------------------------------------------------------------------------------------


def test_a_guard_of_its_own_is_closed():
    with IdempotentProcessor(handle, MEMORY) as processor:
        processor.process(1)

    with pytest.raises(StoreUnavailable, match="was closed"):
        processor.process(1)


async def test_a_guard_that_was_given_stays_open():
    guard, awaited = Guard(MEMORY), AsyncGuard(MEMORY)
    with IdempotentProcessor(handle, guard) as processor:
        processor.process(1)
    async with AsyncIdempotentProcessor(handle, awaited, name="handle") as other:
        await other.process(1)

    assert guard.run("other", list, key="k", payload=None).recorded
    assert (await awaited.peek("handle", CONTENT.key_of(1, ()))) is not None


def test_both_colours_have_the_same_options():
    sync, awaited = inspect.signature(IdempotentProcessor), inspect.signature(AsyncIdempotentProcessor)

    assert list(sync.parameters) == list(awaited.parameters)
