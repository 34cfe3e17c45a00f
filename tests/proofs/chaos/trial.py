"""A trial: so many processes, so many keys, so long; kills, pauses and restarts at random; and the judge's verdict.

See README.md in this folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.proofs.chaos.worker import EFFECTS, LEASE_SECONDS, Judge, connected

ROOT = Path(__file__).parents[3]
KILL_EVERY_SECONDS = 0.15
PAUSE_EVERY_SECONDS = 1.0
PAUSE_SECONDS = LEASE_SECONDS * 1.5  # a paused worker wakes up when its keys may be somebody else's
RESTART_EVERY_SECONDS = 4.0


class Every(NamedTuple):
    """Something that is done again and again, beside kills and restarts."""

    seconds: float
    name: str
    do: Callable[[], None]


@dataclass
class Verdict:
    """What the judge saw."""

    keys: int
    effects: int
    answers: int
    doubled: list[str]  # keys with more than one effect
    differing: list[str]  # keys with more than one answer, or with one that no effect gave
    in_doubt: list[str]
    unanswered: list[str]  # keys without an answer and without a doubt
    troubles: list[str]
    sightings: int  # of records, by all processes
    contradictions: list[str]  # keys whose sightings cannot be those of one register
    done: Counter[str] = field(default_factory=Counter)  # kills, pauses, restarts and whatever else

    def __str__(self) -> str:
        done = ", ".join(f"{count} {name}" for name, count in self.done.items())
        bound = "" if self.doubled else f" (< {3 / max(self.keys, 1):.1e})"
        return (
            f"{done}; {self.keys} keys, {self.effects} effects, {len(self.doubled)} doubled{bound}; "
            f"{self.answers} answers, {len(self.differing)} keys with differing ones, {len(self.in_doubt)} in doubt, "
            f"{len(self.unanswered)} unanswered; {self.sightings} sightings, {len(self.contradictions)} contradictions"
        )


@dataclass
class Trial:
    """What is to be survived; `restart` restarts the server, where there is one, or puts another in its place."""

    address: str
    effects: str = "asks"
    restart: Callable[[], None] | None = None
    restart_every: float = RESTART_EVERY_SECONDS
    restarts: str = "restarts"  # what to call them
    also: tuple[Every, ...] = ()
    seconds: float = 10.0
    workers: int = 8
    keys: int = 200
    seed: int = 0
    forgets: bool = False  # the server may lose what it acknowledged: then its versions come again, and say nothing
    _done: Counter[str] = field(default_factory=Counter)

    def run(self) -> Verdict:
        if self.effects == "atomic":
            self._make_table()
        with contextlib.ExitStack() as stack:
            judge_process = stack.enter_context(_process("tests.proofs.chaos.judge"))
            port = int(judge_process.stdout.readline())
            judge = stack.enter_context(contextlib.closing(Judge(port)))
            nursery = stack.enter_context(
                _process("tests.proofs.chaos.nursery", self.address, str(port), self.effects, str(self.keys))
            )
            with self._beside():
                self._wreak(nursery)
            _say(nursery, finish=True)
            return self._verdict(judge.tell(books=True))

    @contextlib.contextmanager
    def _beside(self) -> Iterator[None]:
        """Each of the other troubles in a thread of its own: none waits for a server that is being restarted."""
        over = threading.Event()

        def again_and_again(trouble: Every) -> None:
            while not over.wait(trouble.seconds):
                trouble.do()
                self._done[trouble.name] += 1

        threads = [threading.Thread(target=again_and_again, args=(trouble,)) for trouble in self.also]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _wreak(self, nursery: Any) -> None:
        """Everything that is done to the workers and to the server, until the time is over."""
        chance = random.Random(self.seed)
        paused: list[tuple[float, int]] = []
        for number in range(self.workers):
            _say(nursery, start=number)
        start = time.monotonic()
        next_pause, next_restart = start + PAUSE_EVERY_SECONDS, start + self.restart_every / 2
        while (now := time.monotonic()) < start + self.seconds:
            time.sleep(chance.random() * KILL_EVERY_SECONDS * 2)  # real time: workers are killed at any moment
            _say(nursery, kill=True)
            _say(nursery, start=chance.randrange(1 << 30))
            self._done["kills"] += 1
            if now >= next_pause:
                next_pause = now + PAUSE_EVERY_SECONDS
                paused.append((now + PAUSE_SECONDS, _say(nursery, pause=True)))
                self._done["pauses"] += 1
            while paused and paused[0][0] <= now:
                _say(nursery, resume=paused.pop(0)[1])
            if self.restart is not None and now >= next_restart:
                next_restart = now + self.restart_every
                self.restart()
                self._done[self.restarts] += 1
        for _, pid in paused:
            _say(nursery, resume=pid)

    def _verdict(self, books: dict[str, Any]) -> Verdict:
        receipts: dict[str, list[str]] = self._rows() if self.effects == "atomic" else books["receipts"]
        answers: dict[str, list[str]] = books["answers"]
        return Verdict(
            keys=len(books["wanted"]),
            effects=sum(len(found) for found in receipts.values()),
            answers=books["answered"],
            doubled=[key for key, found in receipts.items() if len(found) > 1],
            differing=[key for key, said in answers.items() if len(said) > 1 or said[0] not in receipts.get(key, [])],
            in_doubt=books["doubts"],
            unanswered=sorted(set(books["wanted"]) - set(answers) - set(books["doubts"])),
            troubles=books["troubles"],
            sightings=books["sightings"],
            contradictions=[] if self.forgets else books["contradictions"],
            done=self._done,
        )

    # -- atomic effects: rows of the store's own database --------------------------------------------------

    def _make_table(self) -> None:
        number = "integer PRIMARY KEY AUTOINCREMENT" if self.address.startswith("sqlite") else "bigserial PRIMARY KEY"
        with connected(self.address) as connection:
            connection.execute(f"CREATE TABLE chaos_effects (number {number}, key text)")

    def _rows(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        with connected(self.address) as connection:
            for number, key in connection.execute("SELECT number, key FROM chaos_effects").fetchall():
                found.setdefault(key, []).append(f"{key} row {number}")
        return found


@contextlib.contextmanager
def _process(module: str, *words: str) -> Iterator[Any]:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()  # both end when nobody speaks to them any more
        process.wait(30)
        process.stdout.close()


def _say(nursery: Any, **said: Any) -> Any:
    nursery.stdin.write(json.dumps(said) + "\n")
    nursery.stdin.flush()
    return json.loads(nursery.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.proofs.chaos.trial", description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--effects", choices=EFFECTS, default="asks")
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    print(Trial(given.address, given.effects, seconds=given.seconds).run())


if __name__ == "__main__":
    main()
