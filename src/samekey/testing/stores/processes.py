"""Other processes: what one process has written, all see, and it outlives that process.

For stores that outlive their process. The other process is a real one: it runs `main` below, opens the
store by its address, says on a line when it has been answered, and is then killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from samekey.core.commands import Read
from samekey.core.drive import adrive, drive
from samekey.core.states import Role, State
from samekey.testing.stores.scene import A, B, C, Scene, Steps, process_scenario, settling, there

RACE_KEYS = 30
PROCESS_SECONDS = 60.0  # a process that is not done by then never will be, also on a busy machine


@process_scenario
def a_hold_is_seen_by_another_process_and_outlives_its_own(scene: Scene) -> Steps[None]:
    """While the effect runs elsewhere we see it started; killed there, the record is still there."""
    with _process(scene, "hold", A) as other:
        line = other.line()
        seen = yield from scene.refused(scene.opening(by=B))
        assert (seen.state, seen.attempt, seen.token) == (State.STARTED, A, line["token"])
        other.kill()

    still = yield from scene.refused(scene.opening(by=B))
    assert still.fence == seen.fence

    yield from scene.outlive()
    dead = yield from scene.read(seen)
    assert not dead.lease_live
    doubt = yield from scene.written(settling(dead, State.IN_DOUBT, role=Role.PASSER_BY, by=B))
    assert doubt.attempt == A


@process_scenario
def a_settled_record_outlives_its_process(scene: Scene) -> Steps[None]:
    """Killed right after the settle was answered: the answer is kept."""
    with _process(scene, "settle", A) as other:
        other.line()
        other.kill()

    found = there((yield from Read(scene.key())))
    assert (found.state, found.result, found.settled_by) == (State.COMPLETED, b"from elsewhere", A)
    yield from scene.refused(scene.opening(by=B))


@process_scenario
def processes_that_race_have_one_holder_for_each_key(scene: Scene) -> Steps[None]:
    """Several processes open the same keys in the same order: each key is held by one of them."""
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(_process(scene, "race", one)) for one in (A, B, C)]
        for other in others:
            other.line()  # connected
        for other in others:
            other.say("go")
        held = [other.line()["held"] for other in others]

    keys = [key for one in held for key in one]
    assert sorted(keys, key=int) == [str(number) for number in range(RACE_KEYS)]
    for number in range(RACE_KEYS):
        found = there((yield from Read(scene.key(str(number)))))
        assert str(number) in held[(A, B, C).index(found.attempt)]


class _Process:
    """A process that opens the same store, and answers in lines of JSON."""

    def __init__(self, scene: Scene, errand: str, attempt: str) -> None:
        factory, argument = scene.address
        assert factory, "a store that survives its process says where it is: give address() in your suite"
        facts = [factory, argument, scene.colour, scene.operation, scene.short, errand, attempt]
        program = "from samekey.testing.stores.processes import main; main()"
        self._popen = subprocess.Popen(  # noqa: S603 - our own interpreter, our own module
            [sys.executable, "-c", program, json.dumps(facts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # it finds what we find
        )
        self._deadline = threading.Timer(PROCESS_SECONDS, self.kill)
        self._deadline.daemon = True
        self._deadline.start()

    def line(self) -> Any:
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        assert line, "the other process ended without a reply; what it raised is on stderr"
        return json.loads(line)

    def say(self, text: str) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(text + "\n")
        self._popen.stdin.flush()

    def kill(self) -> None:
        """SIGKILL: no handler, no finally, no goodbye to the store."""
        self._popen.kill()

    def end(self) -> None:
        self._deadline.cancel()
        self.kill()
        self._popen.communicate()


@contextlib.contextmanager
def _process(scene: Scene, errand: str, attempt: str) -> Iterator[_Process]:
    process = _Process(scene, errand, attempt)
    try:
        yield process
    finally:
        process.end()


# -- the other process ---------------------------------------------------------------------------------


def main() -> None:
    factory, argument, colour, operation, short, errand, attempt = json.loads(sys.argv[1])
    module, _, name = factory.partition(":")
    make = getattr(importlib.import_module(module), name)
    scene = Scene(short, operation=operation)
    steps = _ERRANDS[errand](scene, attempt)
    if colour == "sync":
        drive(steps, make(argument).carry_out)
    else:
        asyncio.run(_play(make, argument, steps))


async def _play(make: Any, argument: str, steps: Steps[None]) -> None:
    await adrive(steps, make(argument).carry_out)  # made in the loop that it is used in


def _hold(scene: Scene, attempt: str) -> Steps[None]:
    held = yield from scene.opening(by=attempt, lease=scene.short)
    _say({"token": held.token})
    _until_killed()


def _settle(scene: Scene, attempt: str) -> Steps[None]:
    held = yield from scene.held(by=attempt)
    yield from scene.settle(held, State.COMPLETED, result=b"from elsewhere")
    _say({})
    _until_killed()


def _race(scene: Scene, attempt: str) -> Steps[None]:
    yield from Read(scene.key())
    _say({})
    sys.stdin.readline()
    held = []
    for number in range(RACE_KEYS):
        record = yield from scene.opening(str(number), by=attempt)
        if record.attempt == attempt:
            held.append(str(number))
    _say({"held": held})
    _until_killed()


def _say(facts: dict[str, Any]) -> None:
    print(json.dumps(facts), flush=True)


def _until_killed() -> None:
    time.sleep(PROCESS_SECONDS)


_ERRANDS = {"hold": _hold, "settle": _settle, "race": _race}
