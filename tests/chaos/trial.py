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
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.worker import EFFECTS, LEASE_SECONDS, Judge, connected

ROOT = Path(__file__).parents[2]
KILL_EVERY_SECONDS = 0.15
PAUSE_EVERY_SECONDS = 1.0
PAUSE_SECONDS = LEASE_SECONDS * 1.5  # a paused worker wakes up when its keys may be somebody else's
RESTART_EVERY_SECONDS = 4.0


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
    done: dict[str, int] = field(default_factory=dict)  # kills, pauses, restarts

    def __str__(self) -> str:
        done = ", ".join(f"{count} {name}" for name, count in self.done.items())
        return (
            f"{self.keys} keys, {self.effects} effects, {len(self.doubled)} doubled; {self.answers} answers, "
            f"{len(self.differing)} keys with differing ones; {len(self.in_doubt)} in doubt, "
            f"{len(self.unanswered)} unanswered; {done}"
        )


@dataclass
class Trial:
    """What is to be survived; `restart` restarts the server, where there is one."""

    address: str
    effects: str = "asks"
    restart: Callable[[], None] | None = None
    seconds: float = 10.0
    workers: int = 8
    keys: int = 200
    seed: int = 0
    _done: dict[str, int] = field(default_factory=lambda: {"kills": 0, "pauses": 0, "restarts": 0})

    def run(self) -> Verdict:
        if self.effects == "atomic":
            self._make_table()
        with contextlib.ExitStack() as stack:
            judge_process = stack.enter_context(_process("tests.chaos.judge"))
            port = int(judge_process.stdout.readline())
            judge = stack.enter_context(contextlib.closing(Judge(port)))
            nursery = stack.enter_context(
                _process("tests.chaos.nursery", self.address, str(port), self.effects, str(self.keys))
            )
            self._wreak(nursery)
            _say(nursery, finish=True)
            return self._verdict(judge.tell(books=True))

    def _wreak(self, nursery: Any) -> None:
        """Everything that is done to the workers and to the server, until the time is over."""
        chance = random.Random(self.seed)
        paused: list[tuple[float, int]] = []
        for number in range(self.workers):
            _say(nursery, start=number)
        start = time.monotonic()
        next_pause, next_restart = start + PAUSE_EVERY_SECONDS, start + RESTART_EVERY_SECONDS / 2
        while (now := time.monotonic()) < start + self.seconds:
            time.sleep(chance.random() * KILL_EVERY_SECONDS * 2)
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
                next_restart = now + RESTART_EVERY_SECONDS
                self.restart()
                self._done["restarts"] += 1
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
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.trial", description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--effects", choices=EFFECTS, default="asks")
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    print(Trial(given.address, given.effects, seconds=given.seconds).run())


if __name__ == "__main__":
    main()
