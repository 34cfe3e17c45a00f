"""What the chaos tests share: budgets, a server of their own, and what a verdict must be."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from samekey.drivers.postgres.migrate import migrate
from samekey.testing.servers import PrivatePostgres, postgres
from tests.figures import figure
from tests.proofs.chaos.trial import Verdict

FULL = os.environ.get("SAMEKEY_BUDGET") == "full"


def seconds(brief: float) -> float:
    return 60.0 if FULL else brief


@contextlib.contextmanager
def private_postgres() -> Iterator[PrivatePostgres]:
    if os.environ.get("SAMEKEY_TEST_PG"):
        pytest.skip("SAMEKEY_TEST_PG names a server that is not ours to restart")
    with postgres() as server:
        assert isinstance(server, PrivatePostgres)
        yield server


def migrated(server: PrivatePostgres) -> str:
    url = server.create_database()
    migrate(url)
    return url


def judged(what: str, verdict: Verdict) -> Verdict:
    """Nothing doubled, every key with one answer, every record one register, and nobody was surprised."""
    figure(f"chaos: {what}", verdict)
    assert verdict.troubles == [], (verdict.troubles, verdict.contradictions)
    assert verdict.doubled == [], (verdict.doubled, verdict.contradictions)
    assert verdict.differing == [], (verdict.differing, verdict.contradictions)
    assert verdict.unanswered == [], (verdict.unanswered, verdict.contradictions)
    assert verdict.contradictions == [], (verdict.contradictions, verdict.contradictions)
    assert verdict.sightings > 0
    assert verdict.answers > verdict.keys > 0
    assert verdict.done["kills"] > 0
    return verdict
