"""Child processes that use one database."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import Any

from samekey.testing.stores.scene import Scene

CHILD = """
import json, sys, time
from samekey import Absent, Asks, Guard, Happened, Opaque
from samekey.core.commands import Wait
from samekey.stores import _waiting
from samekey.stores.postgres import PostgresStore
from samekey.testing.stores.agreement import _compare, _moment
from samekey.testing.stores.scene import Scene, settling
errand, url, operation, number = sys.argv[1:]
store, scene = PostgresStore(url), Scene(0.02, operation=operation)
me = f"{int(number):032x}" if number.isdigit() else number

def say(fact):
    print(json.dumps(fact), flush=True)

if errand == "claim":
    store.carry_out(scene.opening("connected " + number))
    say("ready"); sys.stdin.readline()
    say([text for text in map(str, range(40)) if store.carry_out(scene.opening(text, by=me)).attempt == me])
if errand == "guard":
    guard = Guard(store)
    say("ready"); sys.stdin.readline()
    effect = lambda: (print(json.dumps("effect"), flush=True), time.sleep(0.05), me)[2]
    say(guard.run(operation, effect, key="k", payload={}).result)
if errand == "die":  # between the commit of a batch and its replies
    import os, signal
    from samekey import Opaque, Policy, Repeatable
    from samekey.stores.postgres import _batches
    guard = Guard(store, policy=Policy(lease=1.0))
    guard.run("connected", str, key="k", payload={})
    _batches._answer = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    boundary = {"opaque": Opaque(), "repeatable": Repeatable()}[number]
    guard.run_many(operation, lambda payload: say("effect"), list(range(20)), key=str, boundary=boundary)
if errand == "wait":
    _waiting.REREAD_SECONDS = 60.0  # whoever misses its bell is found out
    while text := sys.stdin.readline().strip():
        seen = store.carry_out(scene.opening(text, by=me))
        say("waiting")
        found = store.wait(Wait(seen), 20.0)
        say([found.state.value, time.time()])
"""


@contextlib.contextmanager
def child(errand: str, url: str, scene: Scene, number: int | str = 99):
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, errand, url, scene.operation, str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: Any) -> Any:
    return json.loads(process.stdout.readline())


def tell(process: Any, text: str) -> None:
    process.stdin.write(text + "\n")
    process.stdin.flush()
