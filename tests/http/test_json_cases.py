"""The bodies of json_cases.txt through an adapter of each kind: no server error, no way around the key, one effect.

Each case is sent twice with one key, and once more written anew: with a space behind it, which says nothing in JSON
and is another byte elsewhere. The application is an ordinary one - it gives the body to `json.loads`, and answers 400
to what that refuses.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import NamedTuple

import pytest

from samekey import Opaque
from samekey.http import Endpoint
from samekey.testing.http import Called, Said
from samekey.testing.http.drivers import Got, Sent
from tests.http.sites import ADAPTERS, driven

CASES_MIN = 318


class Verdict(NamedTuple):
    """Statuses of the first try, of its repetition and of the one written anew; effects of all three together."""

    first: str
    again: str
    anew: str
    effects: int


VERDICTS = {
    "accept": Verdict("201", "201 replayed", "201 replayed", 1),
    "refuse": Verdict("400", "400", "422 key-reused", 0),
    "bytes": Verdict("201", "201 replayed", "422 key-reused", 1),
}


def body_of(expression: ast.expr) -> bytes:
    match expression:
        case ast.Constant(value=bytes() as literal):
            return literal
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return body_of(left) + body_of(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int() as times)):
            return body_of(left) * times
    raise ValueError(ast.dump(expression))


def read_cases() -> dict[str, tuple[str, bytes]]:
    cases: dict[str, tuple[str, bytes]] = {}
    for line in Path(__file__).with_name("json_cases.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            word, name, written = line.split(maxsplit=2)
            assert name not in cases, f"{name} is there twice"
            cases[name] = word, body_of(ast.parse(written, mode="eval").body)
    return cases


CASES = read_cases()


class Shop:
    """Reads what it is given as JSON; what can be read is an effect."""

    effects = 0

    def __call__(self, called: Called) -> Said:
        try:
            json.loads(called.body)
        except (ValueError, RecursionError):
            return Said(400)
        self.effects += 1
        return Said(201)


def outcome(got: Got) -> str:
    if got.error is not None:
        return f"raised {got.error!r}"
    if got.header("content-type") == "application/problem+json":
        return f"{got.status} {json.loads(got.body)['type'].rpartition('#')[2]}"
    return f"{got.status} replayed" if got.header("idempotent-replayed") else str(got.status)


def test_there_are_enough():
    assert len(CASES) >= CASES_MIN
    assert {word for word, _ in CASES.values()} == VERDICTS.keys()


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_verdict_is_the_pinned_one(adapter: str):
    """One loop over all cases, because a test for each is slow; every case that differs is listed."""
    shop, wrong = Shop(), dict[str, tuple[Verdict, Verdict]]()
    with driven(adapter, Endpoint(boundary=Opaque(), single_tenant=True), shop) as driver:
        for name, (word, body) in CASES.items():
            headers = (("Idempotency-Key", name), ("Content-Type", "application/json"))
            before = shop.effects
            first, again, anew = (
                outcome(driver.send(Sent("POST", "/orders", "", headers, sent))) for sent in (body, body, body + b" ")
            )
            verdict = Verdict(first, again, anew, shop.effects - before)
            if verdict != VERDICTS[word]:
                wrong[name] = verdict, VERDICTS[word]

    assert wrong == {}
