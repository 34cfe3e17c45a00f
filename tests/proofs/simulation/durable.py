"""The store that says "go": the real register on a clock of its own, and a replica that may take its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from samekey.core import register
from samekey.core.boundary import Kind
from samekey.core.commands import Begin, Free, Open, Read, Settle, StoreCommand, Take, Testify, Wait
from samekey.core.errors import StoreUnavailable
from samekey.core.record import Record
from tests.proofs.schedules.scene import Move
from tests.proofs.schedules.search import one_effect
from tests.proofs.simulation.faults import FLIGHT_MAX_SECONDS, STORE_TIMEOUT_SECONDS
from tests.proofs.simulation.promises import LOST, Truths

if TYPE_CHECKING:
    from tests.proofs.simulation.stage import Simulation, Task


class Waiter(NamedTuple):
    task: Task
    turn: int
    seen: Record
    until: float


class Durable:
    """One record, its register and its waiters."""

    def __init__(self, stage: Simulation) -> None:
        self._stage = stage
        self.record: Record | None = None
        self.token = 0
        self.lost = False
        self.truths = Truths() if stage.layered else None
        self._writes: list[tuple[Record | None, int]] = [(None, 0)]  # what an asynchronous replica may fall back to
        self._waiters: list[Waiter] = []
        self.claimed_from: dict[str, str] = {}  # attempt -> the incarnation that granted its first claim
        self.asks_after_loss = False  # an Asks boundary, and this is the replica: `Counter` checks who asked first

    @property
    def incarnation(self) -> str:
        return "the replica" if self.lost else "the first"

    # -- commands

    def ask(self, task: Task, command: StoreCommand) -> None:
        """A command of this task; its reply is the record."""
        stage, turn = self._stage, task.turn
        delay = 0.001 + stage.draw() * 0.02
        if stage.chance(stage.faults.unanswered):
            task.unheard = True
            late = stage.draw()
            if late > 0.4:
                when = delay if late < 0.7 else stage.draw() * FLIGHT_MAX_SECONDS
                stage.at(when, self.carry_out, command, task.attempt)
            unavailable = StoreUnavailable("the store does not answer")
            stage.at(STORE_TIMEOUT_SECONDS, stage.resume, task, turn, None, unavailable)
            return
        if stage.chance(stage.faults.repeated):
            stage.at(delay, self.carry_out, command, task.attempt)
        stage.at(delay, self._answers, task, turn, command)

    def _answers(self, task: Task, turn: int, command: StoreCommand) -> None:
        record = self.carry_out(command, task.attempt)
        task.heard = self.incarnation
        on_the_way = self._stage.draw() * 0.04 - 0.02
        if on_the_way > 0.0:  # by the time it arrives, the record may be another
            self._stage.at(on_the_way, self._stage.resume, task, turn, record)
        else:
            self._stage.resume(task, turn, record)

    def carry_out(self, command: StoreCommand, by: str) -> Record | None:
        if type(command) is Read:
            return self._seen()
        stage, before = self._stage, self.record
        record = register.apply(before, command, self.moment())
        if record is not before:
            self._write(record, command, by)
        elif stage.story is not None and isinstance(command, (Begin, Free, Open, Settle, Take, Testify)):
            stage.tell(f"{by} {command.verb}s, in vain: {shown(record)}")
        return self._seen()

    def _write(self, record: Record | None, command: StoreCommand, by: str) -> None:
        stage, before = self._stage, self._stage.scene
        self.record = record
        if record is not None and record.token > self.token:
            self.token = record.token
        self._writes.append((record, self.token))
        if record is not None and record.attempt == by and type(command) in (Open, Take):
            self.claimed_from.setdefault(by, self.incarnation)
        if self.truths is not None:
            self.truths.now(record, stage.now)
        if stage.story is not None:
            stage.tell(f"{by} {command.verb}s: {shown(record)}")
        if type(command) is Free:
            stage.a_life_is_over()  # of the key, by a person's word: what settled it may go
        else:
            stage.promises.written(before, Move("", stage.looks_now(), by, command))
        self._wake()
        if stage.chance(stage.faults.failover):
            stage.at(stage.draw(), self._fail_over)  # this write is acknowledged first

    def moment(self) -> register.Moment:
        """The store's clock, which alone judges a lease."""
        now = self._stage.now
        return register.Moment(now, now, "", self.token + 1)

    def _seen(self) -> Record | None:
        record = self.record
        if record is None:
            return None
        seen = register.seen_at(record, self.moment())
        return seen._replace(after_loss=True) if self.lost else seen

    # -- a replica takes over

    def _fail_over(self) -> None:
        stage = self._stage
        if self.lost or stage.healed:
            return
        behind = 1 + int(stage.draw() * 3)
        rotated = any(record is not None and record.round for record, _ in self._writes)  # a round may be lost, too
        self.record, self.token = self._writes[max(0, len(self._writes) - 1 - behind)]
        self._writes.append((self.record, self.token))
        self.lost = True
        if self.truths is not None:
            self.truths.now(self.record, stage.now)
        stage.failed_over_at = stage.now
        stage.looks_now()
        kind = stage.boundary.terms.kind
        stage.promises.keep(LOST | {one_effect} if kind is Kind.KEYED and not rotated else LOST)
        self.asks_after_loss = kind is Kind.ASKS and not rotated
        stage.reached.add("a failover loses writes")
        stage.tell(f"a replica takes over, {behind} writes behind: {shown(self.record)}")
        self._wake()

    # -- waiting

    def wait(self, task: Task, about: tuple[Wait, float]) -> None:
        command, timeout = about
        waiter = Waiter(task, task.turn, command.seen, self._stage.now + timeout / task.client.rate)
        self._waiters.append(waiter)
        self._stage.at(0.001, self._looks, waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            self._stage.at(0.001, self._looks, waiter)

    def _looks(self, waiter: Waiter) -> None:
        if waiter not in self._waiters:
            return
        stage, record, seen = self._stage, self._seen(), waiter.seen
        moved = record is None or (record.fence, record.state, record.asker) != (seen.fence, seen.state, seen.asker)
        if moved or record is None or not (record.lease_live or record.being_asked) or stage.now >= waiter.until:
            self._waiters.remove(waiter)
            stage.resume(waiter.task, waiter.turn, record)
            return
        ends = record.lease_left if record.lease_live else record.ask_left
        stage.at(max(0.001, min(ends + 0.001, waiter.until - stage.now)), self._looks, waiter)


def shown(record: Record | None) -> str:
    if record is None:
        return "no record"
    marks = [word for word, on in (("unsure", record.unsure), ("begun", record.begun_at is not None)) if on]
    marks += [f"round {record.round}"] if record.round else []
    marks += [f"{one.attempt} testified {one.state}" for one in record.evidence]
    return f"{record.state}, token {record.token} of {record.attempt}{''.join(f', {mark}' for mark in marks)}"
