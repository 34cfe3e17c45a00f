"""Contenders for the same work on the same server: each in a process of its own, and they take turns.

A contender is a guarded call: given a key and an effect, it runs the effect once and answers everybody. It is told
for how long to do its laps, or to stand a storm: all callers with one key at once, and the effects are counted.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any

from bench.groups.sqlite import PAYLOAD, RESULT
from bench.measure import Effort
from bench.postgres import new_text
from bench.postgres.pairs import Rush, among_threads
from samekey import Guard

CALLERS = 32
ROUNDS_MAX = 5
EFFECT_SECONDS = 0.05  # of a storm
END_SECONDS = 10.0  # for a contender to go

Effect = Callable[[], Any]
Run = Callable[[str, Effect], Any]  # one guarded call: its key, and what it does
StandThere = Callable[[str, str, Connection], None]  # a contender's process: its name, the server, who tells it what


def require(distributions: Mapping[str, str]) -> None:
    """The others are an extra: each module that is not here is told by the name it is installed by."""
    if missing := [name for module, name in distributions.items() if find_spec(module) is None]:
        raise ModuleNotFoundError(f"without {' and '.join(missing)}: pip install -e '.[peers]'")


def taking_turns(
    stand_there: StandThere, servers: Mapping[str, str], effort: Effort
) -> tuple[dict[str, list[Any]], dict[str, int]]:
    """What each contender said of its laps, and its effects in a storm. In the first lap everything connects."""
    laps: dict[str, list[Any]] = {name: [] for name in servers}
    effects: dict[str, int] = {}
    context = multiprocessing.get_context("spawn")
    contenders: dict[str, tuple[Any, Connection]] = {}
    for name, server in servers.items():
        here, there = context.Pipe()
        child = context.Process(target=stand_there, args=(name, server, there), daemon=True)
        child.start()
        there.close()
        contenders[name] = (child, here)
        here.recv()  # EOFError: it could not start, and printed why
    for _ in range(min(effort.rounds, ROUNDS_MAX) + 1):
        for name, (_child, here) in contenders.items():
            here.send(effort.crowd_seconds)
            laps[name].append(here.recv())
    for name, (child, here) in contenders.items():
        here.send(0)
        effects[name] = here.recv()
        here.send(None)
        child.join(END_SECONDS)
    return laps, effects


# -- with threads ----------------------------------------------------------------------------------------------


@contextmanager
def samekey(url: str) -> Iterator[Run]:
    with Guard(url) as guard:
        yield lambda key, effect: guard.run("charge", effect, key=key, payload=PAYLOAD).result


def obey(run: Run, laps: Callable[[Run, float], Any], parent: Connection) -> None:
    """A contender with threads does what it is told, and says what came of it."""
    parent.send("ready")
    while (seconds := parent.recv()) is not None:
        parent.send(laps(run, seconds) if seconds else effects_of_a_storm(run))


def rush_of_new_keys(run: Run, seconds: float) -> tuple[Rush, int]:
    """What the callers got done, and how many effects there were beyond one for each of their keys."""
    effects, calls = list[None](), list[None]()

    def effect() -> dict[str, object]:
        effects.append(None)
        return RESULT

    def call() -> None:
        run(new_text(), effect)
        calls.append(None)

    return among_threads(CALLERS, seconds, lambda _: call), len(effects) - len(calls)


def effects_of_a_storm(run: Run) -> int:
    """All at once with one key: how often it ran. Whoever is refused instead of answered does not count."""
    effects, start, key = list[None](), threading.Barrier(CALLERS), new_text()

    def effect() -> dict[str, object]:
        effects.append(None)
        threading.Event().wait(EFFECT_SECONDS)
        return RESULT

    def caller() -> None:
        start.wait()
        try:
            run(key, effect)
        except Exception:  # noqa: S110 - a peer's way to say "in progress"
            pass

    threads = [threading.Thread(target=caller, daemon=True) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(effects)
