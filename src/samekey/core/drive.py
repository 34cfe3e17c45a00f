"""Run the steps of an attempt: with a sync `perform`, or an async one.

The decisions exist once, in the generator; here is only the turning of the crank. What `perform`
raises is thrown into the steps, so that the core can decide about a store that is down.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from operator import call
from typing import Any, TypeVar

from samekey.core.commands import Command

T = TypeVar("T")

Steps = Generator[Any, Any, Any]  # steps that yield functions without arguments, instead of commands
do: Any = call  # the `perform` of such steps: they are written once, and driven by `drive` or by `adrive`


def drive(
    steps: Generator[Command, Any, T],
    perform: Callable[[Command], Any],
    reply: Any = None,
    until: type[Command] | None = None,
) -> T | Command:
    """The value of the steps, each command carried out by `perform`.

    With `until`, stop at the first command of that type and hand it out; go on later with its `reply`
    (an exception as the reply is thrown, as if `perform` had raised it).
    """
    try:
        command = steps.throw(reply) if isinstance(reply, Exception) else steps.send(reply)
        while True:
            if type(command) is until:
                return command
            try:
                reply = perform(command)
            except Exception as error:
                command = steps.throw(error)
            else:
                command = steps.send(reply)
    except StopIteration as stop:
        value: T = stop.value
        return value
    except BaseException:
        steps.close()  # whatever interrupted us, the steps must not wake up at garbage collection
        raise


async def adrive(
    steps: Generator[Command, Any, T],
    perform: Callable[[Command], Awaitable[Any]],
    reply: Any = None,
    until: type[Command] | None = None,
) -> T | Command:
    """The same, awaited."""
    try:
        command = steps.throw(reply) if isinstance(reply, Exception) else steps.send(reply)
        while True:
            if type(command) is until:
                return command
            try:
                reply = await perform(command)
            except Exception as error:
                command = steps.throw(error)
            else:
                command = steps.send(reply)
    except StopIteration as stop:
        value: T = stop.value
        return value
    except BaseException:
        steps.close()
        raise
