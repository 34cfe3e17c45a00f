"""The store suite can fail: each of these stores breaks one sentence of the port, and the scenario named here tells."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from samekey.core.books import Count, Finding, FindingQuery
from samekey.core.commands import Ask, Open, Read, Settle, StoreCommand, Take, Wait
from samekey.core.ports import Query, Records, place_of
from samekey.core.record import Audit, Record
from samekey.core.register import expired
from samekey.stores._waiting import moved_on
from samekey.stores.memory import MemoryStore
from samekey.testing import ManualClock, StoreSuite
from samekey.testing.messages import MessageAdapterSuite
from samekey.testing.stores import crowds
from tests import variants

WAITED = 1.0  # seconds that it takes to see that somebody waits for nothing


class Around:
    """A connection to a memory, and what is wrong with it."""

    def __init__(self, memory: MemoryStore) -> None:
        self._memory = memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)


class Sound(Around):
    """Nothing."""


class Nameless(Around):
    name = ""


class KnowsNoLife(Around):
    incarnation = ""


class RefusesWithoutLooking(Around):
    """A refusal shows the record as it is kept, and not on the clock."""

    def carry_out(self, command: Any) -> Any:
        record = self._memory.carry_out(command)
        if not isinstance(command, Open) or record is None or record.attempt == command.attempt:
            return record
        return _unclocked(record)


class BatchesWithoutLooking(Around):
    def batch(self, commands: Sequence[StoreCommand]) -> list[Any]:
        return [_unclocked(one) if isinstance(one, Record) else one for one in self._memory.batch(commands)]


class ListsWithoutLooking(Around):
    def list(self, query: Query) -> Records:
        return Records(_unclocked(one) if isinstance(one, Record) else one for one in self._memory.list(query))


class CountsNoAsking(Around):
    def carry_out(self, command: Any) -> Any:
        record = self._memory.carry_out(command)
        if not isinstance(command, Ask) or record is None or record.asker == command.asker:
            return record
        return record._replace(ask_left=30.0)


class DatesByTheFirst(Around):
    def carry_out(self, command: StoreCommand) -> Any:
        record = self._memory.carry_out(command)
        return record._replace(now=record.created_at) if record and isinstance(command, Settle) else record


class ComparesDigestsAlone(Around):
    def carry_out(self, command: StoreCommand) -> Any:
        if not isinstance(command, Read):
            return self._memory.carry_out(command)
        found = self._memory._records.get(command.key.digest)
        record = self._memory.carry_out(command if found is None else Read(found.key))
        return None if record is None else record._replace(key=command.key)

    def batch(self, commands: Sequence[StoreCommand]) -> list[Any]:
        return [self.carry_out(one) for one in commands]


class AuditsInItsProcess(Around):
    """What people did is known to the connection over which they did it."""

    def __init__(self, memory: MemoryStore) -> None:
        super().__init__(memory)
        self._done: list[Audit] = []

    def carry_out(self, command: StoreCommand) -> Any:
        before = len(self._memory._audit)
        record: Record | None = self._memory.carry_out(command)
        self._done += self._memory._audit[before:]
        return record

    def audit(self, limit: int) -> list[Audit]:
        return self._done[: -limit - 1 : -1]


class WaitsForWhoeverAsks(Around):
    """Another asker is no news to it."""

    def wait(self, command: Wait, timeout: float) -> Record | None:
        ends, seen = time.monotonic() + min(timeout, WAITED), command.seen
        while True:
            record: Record | None = self._memory.carry_out(Read(command.key))
            asked = record is not None and record.being_asked and record.fence == seen.fence
            if time.monotonic() >= ends or (moved_on(record, seen) and not asked):
                return record
            time.sleep(0.001)


class WaitsForHalfAsLong(Around):
    """A waiter comes back early, and nothing has moved."""

    def wait(self, command: Wait, timeout: float) -> Record | None:
        return self._memory.wait(command, timeout if timeout < 0.2 else timeout / 2)


class WakesWaitersOfOtherKeys(Around):
    """A waiter comes back when any key moves."""

    def wait(self, command: Wait, timeout: float) -> Record | None:
        ends, versions = time.monotonic() + timeout, self._versions(command)
        while time.monotonic() < ends and versions == self._versions(command):
            if moved_on(self._memory.carry_out(Read(command.key)), command.seen):
                break
            time.sleep(0.001)
        record: Record | None = self._memory.carry_out(Read(command.key))
        return record

    def _versions(self, command: Wait) -> int:
        return sum(one.version for one in list(self._memory._records.values()) if one.key != command.key)


class ReadsLast(Around):
    """In a batch, what is asked for is looked up when all is written."""

    def batch(self, commands: Sequence[StoreCommand]) -> list[Any]:
        writes = [one for one in commands if not isinstance(one, Read)]
        written = iter(self._memory.batch(writes))
        replies = [None if isinstance(one, Read) else next(written) for one in commands]
        return [
            self._memory.carry_out(one) if isinstance(one, Read) else reply
            for one, reply in zip(commands, replies, strict=True)
        ]


class PagesByTimeAlone(Around):
    """Its cursor does not tell records of one moment apart."""

    def list(self, query: Query) -> Records:
        if query.before is None:
            return self._memory.list(query)
        whole = self._memory.list(replace(query, before=None, limit=1000))
        return Records([one for one in whole if place_of(one)[0] < query.before[0]][: query.limit])


class LooksThenSweeps(Around):
    """It deletes what had expired when it looked, whatever has become of it."""

    def sweep(self, limit: int) -> int:
        moment = self._memory._moment()
        seen = self._memory._records
        gone = {digest: one for digest, one in list(seen.items()) if expired(one, moment)}
        gone = dict(list(gone.items())[:limit])
        over = time.monotonic() + 0.05  # a round trip, until another caller has written
        while all(seen.get(digest) is one for digest, one in gone.items()) and time.monotonic() < over:
            time.sleep(0.001)
        for digest in gone:
            seen.pop(digest, None)
        return len(gone)


class SweepsItsTokens(Around):
    """It counts from one again."""

    def sweep(self, limit: int) -> int:
        self._memory._token = 0
        return self._memory.sweep(limit)


class TakesForItself(Around):
    """It answers a take that was refused as if it had been granted."""

    def carry_out(self, command: StoreCommand) -> Any:
        record = self._memory.carry_out(command)
        return record._replace(attempt=command.attempt) if record and isinstance(command, Take) else record


class CountsAnew(Around):
    """A count replaces the one that is there."""

    def add_counts(self, counts: Sequence[Count]) -> None:
        for count in counts:
            self._memory._counts.pop(count.series, None)
        self._memory.add_counts(counts)


class CountsForEver(Around):
    """It keeps whatever minute it is given."""

    def add_counts(self, counts: Sequence[Count]) -> None:
        for count in counts:
            self._memory._counts[count.series] = self._memory._counts.get(count.series, 0) + count.number


class FoldsNames(Around):
    """It takes "a" and "a " for one source, as a padded collation does."""

    def add_counts(self, counts: Sequence[Count]) -> None:
        self._memory.add_counts([replace(count, source=count.source.rstrip(" ")) for count in counts])


class KeepsTheLastFinding(Around):
    def keep_finding(self, finding: Finding) -> bool:
        new = finding.id not in self._memory._findings
        self._memory._findings[finding.id] = finding
        return new


class PagesFindingsByTimeAlone(Around):
    def findings(self, query: FindingQuery) -> Sequence[Finding]:
        whole = self._memory.findings(replace(query, before=None, limit=1000))
        return [one for one in whole if query.before is None or one.at < query.before[0]][: query.limit]


class AcceptsForEver(Around):
    """An acceptance counts although its end has passed."""

    def findings(self, query: FindingQuery) -> Sequence[Finding]:
        whole = self._memory.findings(replace(query, accepted=None))
        return [one for one in whole if query.accepted in (None, one.accepted_by is not None)]


class ForgetsRefusals(Around):
    """An action that changed no record leaves no entry."""

    def note_action(self, entry: Audit) -> None:
        """Nothing."""


class AcceptsUnaudited(Around):
    def accept_finding(self, id: str, *, by: str, why: str, until: float) -> Finding | None:
        found = self._memory.accept_finding(id, by=by, why=why, until=until)
        self._memory._audit.clear()
        return found


def _unclocked(record: Record) -> Record:
    return record._replace(now=0.0, lease_left=0.0, ask_left=0.0)


def _suite(store: type[Around]) -> StoreSuite:
    clock = ManualClock(1_700_000_000)
    memory = MemoryStore(clock)

    class Suite(StoreSuite):
        survives_process = False

        def make_store(self) -> Any:
            return store(memory)

        def pass_seconds(self, seconds: float) -> None:
            clock.advance(seconds)

    return Suite()


@pytest.mark.parametrize(
    ("store", "scenario"),
    [
        (Nameless, "a_store_has_a_name_and_knows_its_life"),
        (KnowsNoLife, "a_store_has_a_name_and_knows_its_life"),
        (RefusesWithoutLooking, "every_reply_is_read_on_the_store_s_clock"),
        (BatchesWithoutLooking, "every_reply_is_read_on_the_store_s_clock"),
        (ListsWithoutLooking, "every_reply_is_read_on_the_store_s_clock"),
        (CountsNoAsking, "the_store_counts_the_asking_down"),
        (DatesByTheFirst, "a_settle_is_dated_when_it_is_made"),
        (ComparesDigestsAlone, "a_record_of_another_key_is_not_ours"),
        (AuditsInItsProcess, "audit_keeps_every_action_of_a_person"),
        (WaitsForWhoeverAsks, "wait_returns_at_once_when_it_already_moved"),
        (WaitsForHalfAsLong, "wait_does_not_return_early"),
        (WakesWaitersOfOtherKeys, "wait_does_not_return_early"),
        (ReadsLast, "batch_answers_in_order"),
        (PagesByTimeAlone, "list_pages_without_gaps_or_repeats"),
        (LooksThenSweeps, "a_sweep_spares_what_is_made_anew_beneath_it"),
        (SweepsItsTokens, "sweep_removes_only_what_is_past_retention"),
        (TakesForItself, "take_of_a_settled_record_is_refused"),
        (CountsAnew, "counts_of_several_writers_add_up"),
        (CountsForEver, "counts_outside_the_time_they_are_kept_for_are_not_kept"),
        (CountsForEver, "a_list_of_counts_has_a_limit"),
        (FoldsNames, "every_name_is_counted_by_itself"),
        (KeepsTheLastFinding, "a_finding_is_new_once"),
        (PagesFindingsByTimeAlone, "findings_are_listed_newest_first_in_pages"),
        (AcceptsForEver, "an_acceptance_ends"),
        (AcceptsUnaudited, "a_finding_is_accepted_with_name_reason_and_end"),
        (ForgetsRefusals, "an_action_that_changed_nothing_is_in_the_audit_log"),
    ],
)
def test_a_store_that_breaks_a_sentence_is_told(store: type[Around], scenario: str, monkeypatch: pytest.MonkeyPatch):
    """The scenario of that sentence fails on it, and passes on the sound one."""
    monkeypatch.setattr(crowds, "AT_ONCE", WAITED / 2)
    getattr(_suite(Sound), f"test_{scenario}")()

    with pytest.raises((AssertionError, IndexError)):
        getattr(_suite(store), f"test_{scenario}")()


UNDER_O = """
import unittest
from samekey.stores.memory import MemoryStore
from samekey.testing import StoreSuite

class TestIt(StoreSuite, unittest.TestCase):
    survives_process = False

    def make_store(self):
        return MemoryStore()

unittest.main(argv=["it", "TestIt.test_settle_by_another_attempt_is_refused"])
"""


@pytest.mark.parametrize(("options", "told"), [([], "OK"), (["-O"], "python -O has removed the asserts")])
def test_without_its_asserts_the_suite_refuses_to_run(options: list[str], told: str):
    """It would pass whatever the store does."""
    command = [sys.executable, *options, "-c", UNDER_O]
    assert told in subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stderr


def test_the_dozen_of_the_variants_are_scenarios():
    of_stores = {name for name in variants.DOZEN if hasattr(StoreSuite, name)}
    of_messages = {name for name in variants.DOZEN if hasattr(MessageAdapterSuite, name)}

    assert of_stores | of_messages == variants.DOZEN
    assert (len(of_stores), len(of_messages)) == (12, 10)
