"""Beside others who read an Idempotency-Key: CPU added per request to one small shop, on the same store, in one run.

The shop is `tools/peers/shop.py`, on FastAPI or Django, guarded by each library as its documentation says and called
without sockets. Each contender is a process of its own where the libraries are installed (`make peers` makes
`.venv-peers`), ours too: the same interpreter, the same framework, the same Redis client. They take turns; in every
round each does the bare shop, new keys and known keys. Effects are counted. Among them is the floor, `by_hand.py`: two
plain commands and nothing else.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.figures import Experiment, Figure, Reading, at_least, exactly
from bench.measure import Effort
from samekey.testing.servers import redis_server

ROOT = Path(__file__).parents[2]
CALLERS = 32
ROUNDS_MAX = 9
REQUESTS_PER_SECOND = 4000  # of effort: a request to FastAPI takes a quarter of a millisecond and more

OURS = {"asgi": "samekey", "django": "samekey-django"}
FLOORS = {"asgi": "by-hand", "django": "by-hand-django"}
APPS = {"asgi": "FastAPI, 32 callers", "django": "Django, one thread"}
PEERS = {
    "asgi-idempotency-header": "asgi",
    "django-idempotency-key": "django",
    "fastapi-idempotency": "asgi",
    "idempot": "asgi",
    "idemptx": "asgi",
}
STORES = {"memory": tuple(PEERS), "redis": tuple(name for name in PEERS if name != "fastapi-idempotency")}


class Shop:
    """One library's shop, in a process of its own."""

    def __init__(self, name: str, redis: str) -> None:
        arguments = [str(interpreter()), str(ROOT / "tools" / "peers" / "laps.py"), name, *filter(None, [redis])]
        self._process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.name = name
        self.laps: dict[str, list[float]] = {"bare": [], "fresh": [], "replay": []}
        self.wrong: list[str] = []
        self.python = self._told()["python"]

    def run(self, errand: str, count: int) -> dict[str, Any]:
        pipe = self._process.stdin
        assert pipe is not None
        pipe.write(f"{errand} {count}\n")
        pipe.flush()
        told = self._told()
        if errand in self.laps:
            self.laps[errand].append(told["cpu"] * 1e6)
            expected = 0 if errand == "replay" else count
            if told["effects"] != expected or told["refused"]:
                self.wrong.append(f"{errand}: {told['effects']} effects of {count}, {told['refused']} refused")
        return told

    def _told(self) -> dict[str, Any]:
        pipe = self._process.stdout
        assert pipe is not None
        line = pipe.readline()
        if not line:
            raise RuntimeError(f"{self.name} stopped; it printed why")
        told: dict[str, Any] = json.loads(line)
        return told

    @property
    def added(self) -> list[float]:
        """Microseconds of CPU per new key above the bare shop, round by round."""
        return [fresh - bare for fresh, bare in zip(self.laps["fresh"], self.laps["bare"], strict=True)]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def interpreter() -> Path:
    """Where the libraries are: beside the venv that runs us, made by the same `make`, or the plain one."""
    own = Path(sys.prefix).name.replace(".venv", ".venv-peers", 1)
    for name in (own, ".venv-peers"):
        python = ROOT / name / "bin" / "python"
        if name.startswith(".venv-peers") and python.exists():
            return python
    raise FileNotFoundError("the other libraries are not installed: make peers")


@contextmanager
def opened(names: Sequence[str], redis: str) -> Iterator[dict[str, Shop]]:
    with ExitStack() as stack:
        shops = {}
        for name in names:
            shops[name] = Shop(name, redis)
            stack.callback(shops[name].close)
        yield shops


def side_by_side(store: str, effort: Effort) -> Sequence[Reading]:
    interpreter()  # told before a server is started
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server()).url() if store == "redis" else ""
        names = [*OURS.values(), *FLOORS.values(), *STORES[store]]
        shops = stack.enter_context(opened(names, redis))
        count = max(CALLERS, round(effort.seconds * REQUESTS_PER_SECOND))
        for number in range(min(effort.rounds, ROUNDS_MAX) + 1):
            for name in names if number % 2 else names[::-1]:
                for errand in ("bare", "fresh", "replay"):
                    shops[name].run(errand, count)
            if number == 0:  # warm now
                for shop in shops.values():
                    shop.laps = {"bare": [], "fresh": [], "replay": []}
        storms = {name: shop.run("storm", CALLERS) for name, shop in shops.items()}
    readings = []
    for name in STORES[store]:
        ours, theirs = shops[OURS[PEERS[name]]], shops[name]
        fresh = [their / max(our, 1.0) for our, their in zip(ours.added, theirs.added, strict=True)]
        replay = [their / our for our, their in zip(ours.laps["replay"], theirs.laps["replay"], strict=True)]
        note = f"ours adds {_each(ours.added)} us, it adds {_each(theirs.added)}"
        note += f"; in the best rounds {min(ours.added):.0f} and {min(theirs.added):.0f}"
        readings.append(Reading(statistics.median(fresh), fresh, note))
        note = f"ours takes {_each(ours.laps['replay'])} us, it takes {_each(theirs.laps['replay'])}"
        readings.append(Reading(statistics.median(replay), replay, note))
    for kind, name in FLOORS.items():
        ours, floor = shops[OURS[kind]], shops[name]
        ratios = [our / max(its, 1.0) for our, its in zip(ours.added, floor.added, strict=True)]
        note = f"ours adds {_each(ours.added)} us, two plain commands {_each(floor.added)}"
        readings.append(Reading(statistics.median(ratios), ratios, note))
    for name in [*OURS.values(), *STORES[store]]:
        said = f"{storms[name]['refused']} of {CALLERS} not answered 201"
        readings.append(Reading(storms[name]["effects"], (), "; ".join([said, *shops[name].wrong[:2]])))
    return readings


def _each(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0f}"


def experiment(store: str) -> Experiment:
    figures = []
    for name in STORES[store]:
        app = APPS[PEERS[name]]
        figures += [
            Figure(f"http.{store}.{name}", "x", f"its CPU added per new key ({app}), by ours", at_least(5.0)),
            Figure(f"http.{store}.{name}.replay", "x", "the CPU of a whole replayed request, by ours"),
        ]
    figures += [
        Figure(f"http.{store}.{name}", "x", f"our CPU added per new key ({APPS[kind]}), by that of two plain commands")
        for kind, name in FLOORS.items()
    ]
    for name in [*OURS.values(), *STORES[store]]:
        target = exactly(1) if name in OURS.values() else None
        figures.append(
            Figure(f"http.{store}.effects.{name}", "effects", f"{CALLERS} requests at once, one key", target)
        )
    return Experiment(tuple(figures), lambda effort: side_by_side(store, effort))


EXPERIMENTS = tuple(experiment(store) for store in STORES)
