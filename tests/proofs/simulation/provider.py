"""Requests on their way to the provider, questions to it, and what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samekey.core.boundary import Boundary, Kind
from tests.proofs.schedules.books import Books, Provider, Request
from tests.proofs.schedules.scene import FRESH, Move
from tests.proofs.simulation.faults import FLIGHT_MAX_SECONDS
from tests.proofs.simulation.promises import Broken

if TYPE_CHECKING:
    from tests.proofs.simulation.stage import Simulation, Task

CALL_TIMEOUT_SECONDS = 10.0
LOOKUP_TIMEOUT_SECONDS = 20.0


class Counter:
    """Where requests land: the provider, its books, and the way there and back."""

    def __init__(self, stage: Simulation, boundary: Boundary) -> None:
        self._stage = stage
        self._keyed = boundary.terms.kind is Kind.KEYED
        mood = stage.draw()
        self.provider = Provider(
            dedups=self._keyed,
            broke=0.6 < mood <= 0.8,
            refuses=mood > 0.9,
            keeps_declines=boundary.terms.keeps_declines,
        )
        self.books = Books(broke=self.provider.broke)
        self.forgotten = 0  # charges of a life of the key that is over
        self._seen: dict[str, int] = {}  # attempt -> how many charges were on the books when it asked last
        self._asked: dict[str, int | None] = {}  # attempt -> the same when it sent its request; None: it never asked

    # -- a request

    def charge(self, task: Task, reference: str) -> None:
        stage, turn = self._stage, task.turn
        request = Request(task.attempt, reference, reference if self._keyed else "")
        if stage.story is not None:
            stage.tell(f"{task.attempt} sends its request")
        self._asked[task.attempt] = self._seen.get(task.attempt)
        stage.at(self._on_the_way(), self._lands, task, turn, request)
        if stage.chance(stage.faults.copied):
            stage.at(self._on_the_way(), self._lands, task, -1, request)
        timeout = TimeoutError("the provider does not answer")
        stage.at(CALL_TIMEOUT_SECONDS, stage.resume, task, turn, None, timeout)

    def _lands(self, task: Task, turn: int, request: Request) -> None:
        stage, books = self._stage, self.books
        if stage.healed and task.client.name != FRESH:
            return  # what was under way when the faults stopped is lost
        before = stage.scene
        if books.broke and stage.draw() > 0.5:
            books = books._replace(broke=False)
        charges = len(books.charges)
        self.books, ending = self.provider.arrive(books, request, stage.now)
        scene = stage.looks_now()
        if stage.story is not None:
            charged = len(self.books.charges) > charges
            stage.tell(f"the request of {request.by} lands: {'CHARGED' if charged else ending.how}")
        stage.promises.landed(before, Move("", scene, request.by))
        if stage.durable.asks_after_loss:
            self._check_that_it_asked_first()
        if turn >= 0 and not stage.chance(stage.faults.unheard):
            stage.at(stage.draw() * 0.1, stage.resume, task, turn, ending)

    def _check_that_it_asked_first(self) -> None:
        """After a failover that lost writes, `Asks` doubles an effect in one window only.

        The first attempt that claims at the replica asks, and the provider knows nothing, because the request of an
        attempt whose claim was lost is still on its way. Two effects in any other order break the promise: of an
        attempt that did not ask, of one that ran although the charge was on the books, or of two that claimed at one
        server.
        """
        stage, charges = self._stage, self.books.charges
        claimed_from = stage.durable.claimed_from
        for at, first in enumerate(charges[self.forgotten :], self.forgotten):
            for later, second in enumerate(charges[at + 1 :], at + 1):
                old, new = sorted((at, later), key=lambda one: claimed_from[charges[one].by] == "the replica")
                seen = self._asked[charges[new].by]
                lost = claimed_from[charges[old].by] != claimed_from[charges[new].by]
                if not lost or seen is None or seen > old:
                    raise Broken("one_effect", f"2 effects after a failover, by {first.by} and {second.by}")

    # -- a question

    def look(self, task: Task, reference: str) -> None:
        stage = self._stage
        stage.at(self._on_the_way(), self._reads_books, task, task.turn, reference)
        timeout = TimeoutError("the provider does not answer")
        stage.at(LOOKUP_TIMEOUT_SECONDS, stage.resume, task, task.turn, None, timeout)

    def _reads_books(self, task: Task, turn: int, reference: str) -> None:
        stage = self._stage
        verdict = self.provider.look(self.books, reference)
        self._seen[task.attempt] = len(self.books.charges)
        name = f"provider: {type(verdict).__name__}"
        stage.reached.add(name)
        if stage.story is not None:
            stage.tell(f"{task.attempt} asks the {name}")
        if not stage.chance(stage.faults.unheard):
            stage.at(self._on_the_way(), stage.resume, task, turn, verdict)

    def _on_the_way(self) -> float:
        stage = self._stage
        return 0.05 + stage.draw() * (FLIGHT_MAX_SECONDS if stage.chance(stage.faults.slow) else 0.5)
