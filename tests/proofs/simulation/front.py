"""A front that forgets, goes back in time, is away, is told late and wakes nobody - before a durable store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from samekey.core.errors import StoreUnavailable
from samekey.loops import Bells
from tests.proofs.simulation.faults import AWAY_MAX_SECONDS, FLIGHT_MAX_SECONDS, FRONT_TIMEOUT_SECONDS
from tests.stores.memory_front import MemoryFront

if TYPE_CHECKING:
    from tests.proofs.simulation.stage import Simulation, Task

AHEAD_MAX_SECONDS = 1000.0  # of its clock over the durable store's: nobody may compare the two


class Front:
    """One memory, which all processes of a run look at."""

    def __init__(self, stage: Simulation) -> None:
        self._stage = stage
        self._ahead = stage.draw() * AHEAD_MAX_SECONDS
        self._memory = MemoryFront(clock=self.clock)
        self._olds: list[tuple[bytes, tuple[bytes, float]]] = []
        self._away_until = 0.0
        faults = stage.faults
        self._fragile = bool(faults.front_forgets or faults.front_returns or faults.front_away)
        self.bells = Bells()
        self.disturbed_at = -1.0  # when it last lost something that it had been told

    def ask(self, task: Task, about: tuple[str, tuple[Any, ...]]) -> None:
        """A command of this task; its reply is what the front shows, or nothing."""
        stage, turn, faults = self._stage, task.turn, self._stage.faults
        if self._fragile:
            self._suffer()
        if stage.now < self._away_until:
            away = StoreUnavailable("the front is away")
            stage.at(0.001, stage.resume, task, turn, None, away)
            return
        delay = 0.0005 + stage.draw() * 0.005
        if stage.chance(faults.front_unanswered):
            late = stage.draw()
            if late > 0.4:
                when = delay if late < 0.7 else stage.draw() * FLIGHT_MAX_SECONDS
                stage.at(when, self.carry_out, about, task.attempt)
            unavailable = StoreUnavailable("the front does not answer")
            stage.at(FRONT_TIMEOUT_SECONDS, stage.resume, task, turn, None, unavailable)
            return
        stage.at(delay, self._answers, task, turn, about)

    def _answers(self, task: Task, turn: int, about: tuple[str, tuple[Any, ...]]) -> None:
        self._stage.resume(task, turn, self.carry_out(about, task.attempt))

    def carry_out(self, about: tuple[str, tuple[Any, ...]], by: str) -> Any:
        stage, (verb, given) = self._stage, about
        if verb == "look":
            digest, mark = given
            sight = self._memory.look(digest, mark=mark)
            if stage.story is not None:
                stage.tell(f"{by} looks at the front: {_named(sight.entry)}")
            return sight
        digest, word, until = given
        before = self._memory.words.get(digest)
        self._memory.put(digest, word, until)
        after = self._memory.words.get(digest)
        if after is not before:
            if after is not None:
                self._olds.append((digest, after))
            if len(self.bells) and not stage.chance(stage.faults.front_mute):
                stage.at(0.001, self.bells.ring, digest)
        if stage.story is not None:
            how = "in vain" if after is before else "too late" if after is None else f"for {until - self.clock():.0f} s"
            stage.tell(f"{by} tells the front: {_named(word)}, {how}")
        return None

    def clock(self) -> float:
        return self._stage.now + self._ahead

    def close(self) -> None:
        del self._memory

    def heal(self) -> None:
        self._away_until = 0.0
        self._fragile = False

    def _suffer(self) -> None:
        stage, faults = self._stage, self._stage.faults
        if stage.chance(faults.front_forgets) and self._memory.words:
            self._memory.words.clear()
            self._disturbed("the front forgets everything")
        if stage.chance(faults.front_returns) and self._olds:
            digest, old = self._olds[int(stage.draw() * len(self._olds))]
            self._memory.words[digest] = old
            self._disturbed("the front goes back in time")
        if stage.chance(faults.front_away) and stage.now >= self._away_until:
            self._away_until = stage.now + stage.draw() * AWAY_MAX_SECONDS
            stage.reached.add("the front is away")
            stage.tell(f"the front is away for {self._away_until - stage.now:.0f} s")

    def _disturbed(self, how: str) -> None:
        self.disturbed_at = self._stage.now
        self._stage.reached.add(how)
        self._stage.tell(how)


def _named(word: bytes | None) -> str:
    if word is None:
        return "nothing there"
    if not word:
        return "somebody's mark"
    token, version, rank = int.from_bytes(word[2:10], "big"), int.from_bytes(word[10:18], "big"), word[18]
    return f"a tombstone of token {token}" if rank else f"a copy of token {token}, version {version}"
