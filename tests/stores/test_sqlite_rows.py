"""A row of SQLite says what the record says, whatever happened to it: written piece by piece, read as a whole."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

import pytest

from samekey.core.commands import Ask, Begin, Redact, Renew, StoreCommand, Take, Testify
from samekey.core.fingerprint import Fingerprint
from samekey.core.record import Record
from samekey.core.register import Moment
from samekey.core.states import Role, State
from samekey.drivers import sqlite as driver
from samekey.stores.sqlite._rows import SELECT, execute, record_of
from samekey.testing.stores.scene import MARKED, B, C, Scene, settling

scene = Scene(0.02)
STEPS = 3  # after the claim: enough for a doubt that is asked about and settled, or a release that is taken and settled
ODD_NAMES = Fingerprint(b"\1" * 32, "1", (('%s "50 %"', b"\0\1\2\3"), ("über\\", b"abcd"), ("", b"\xff" * 4)))


CLAIMS = {
    "plain": scene.opening(boundary=MARKED),
    "with options": scene.opening(tenant="acme", sends=True, attributes=(("region", "eu"),)),
    "with odd names": scene.opening(fingerprint=ODD_NAMES),
    "without fields": scene.opening(fingerprint=Fingerprint(b"\2" * 32, "1", ())),
}


def _commands(seen: Record) -> Iterator[StoreCommand]:
    """Whatever somebody may want with it, with a word and without."""
    yield scene.opening(seen.key.text, by=C, tenant=seen.key.tenant, fingerprint=ODD_NAMES)  # past retention: made anew
    yield Take(seen, B, MARKED, 1.0, sends=True)
    yield Begin(seen)
    yield Renew(seen, 5.0)
    yield Ask(seen, B, 5.0)
    yield Testify(seen.key, "d" * 32, seen.token, State.COMPLETED, b"said", "late")
    yield Redact(seen, "ada", "asked to")
    for state in State:
        yield settling(seen, state, result=b"done", retain=0.5)
        yield settling(seen, state, retain=60.0, next_round=True)
        yield settling(seen, state, error="E")
        yield settling(seen, state, why="because")
        yield settling(seen, state, by=B)
        for role in (Role.PASSER_BY, Role.LOOKUP, Role.OPERATOR):
            yield settling(seen, state, role=role, by=B, result=b"found")


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_whatever_happens_to_a_record_its_row_says_it(claim: StoreCommand):
    """Every story of a claim and up to three commands that each change something."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    driver.migrate(connection, "memory")
    told: set[tuple[str, ...]] = set()

    def go_on(commands: Iterable[StoreCommand], step: int) -> None:
        moment = Moment(1000.0 + step, 50.0 + step, "boot", 1_000_000 + step)
        for command in commands:
            connection.execute("SAVEPOINT before")
            before, after = execute(connection.cursor(), command, moment)
            if after is not None and after is not before:
                row = connection.execute(SELECT, (after.key.digest,)).fetchone()
                assert record_of(row, after.key) == after, command
                told.add(tuple(move.after for move in after.moves))
                if step < STEPS:
                    go_on(_commands(after), step + 1)
            connection.execute("ROLLBACK TO before")
            connection.execute("RELEASE before")

    go_on([claim], 0)
    connection.close()

    assert ("started", "completed") in told
    assert ("started", "in_doubt", "started", "released") in told
