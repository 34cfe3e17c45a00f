"""A plan: what reconciliation proposes, as lines of JSON that a person reviews, and how it is carried out.

The key of a refund is the charge's reference, never the step or the plan: a plan that is applied twice, or by two
people at once, refunds once. What the provider's books say is read again inside the guarded effect, so a refund that
was made by hand is recognised.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samekey.core.boundary import Boundary, Opaque
from samekey.core.commands import Read
from samekey.core.errors import Misconfigured, SamekeyError
from samekey.core.key import make_key
from samekey.core.policy import FOREVER, Policy
from samekey.core.record import Record
from samekey.doubt.duckdb import Case, Outcome
from samekey.guard.guards import Guard
from samekey.ops import MovedOn, Ops, Resolution
from samekey.ops.story import mark

REFUND = "samekey.refund"  # the operation under which refunds run; they are kept for ever
STEPS_MAX = 1_000_000
STEPS = frozenset({"refund", "adopt", "release"})  # the others are for a person to look at


@dataclass(frozen=True, slots=True)
class Refund:
    """What a refund function gets."""

    charge: str  # the provider's reference
    minor: int
    currency: str
    keep: str | None
    provider_key: str  # to send to the provider


def write_plan(path: str | Path, outcome: Outcome, *, pack: str, statement: Sequence[str], made_at: float) -> int:
    """Write the plan file; how many steps can be applied after a review."""
    digest = hashlib.sha256()
    for file in statement:
        digest.update(Path(file).read_bytes())
    head = {
        "plan": 1,
        "id": digest.hexdigest()[:16],
        "statement_sha256": digest.hexdigest(),
        "cut": outcome.cut,
        "pack": pack,
        "made_at": made_at,
    }
    lines, steps = [head], 0
    for number, case in enumerate(outcome.cases, 1):
        steps += case.action in STEPS
        lines.append(step_of(number, case, pack))
    text = "".join(json.dumps(line) + "\n" for line in lines)
    written = Path(f"{path}.new")
    written.write_text(text, encoding="utf-8")
    written.replace(path)
    return steps


def step_of(number: int, case: Case, pack: str) -> dict[str, Any]:
    record = None if case.record is None else dict(zip(("operation", "key", "tenant"), case.record, strict=True))
    return {
        "step": number,
        "category": case.category,
        "action": case.action,
        "key": f"{pack}:{case.head}" if case.action == "refund" else None,
        "record": record,
        "charge": case.head,
        "minor": case.minor,
        "currency": case.currency,
        "keep": case.keep,
        "evidence": list(case.evidence),
        "if": {"mark": case.mark, "live_minor": case.minor, "disputed": False},
        "reviewed_by": None,
    }


def read_plan(path: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The head and the steps of a plan file; Misconfigured where it is none."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for _, line in zip(range(STEPS_MAX + 1), file, strict=False) if line.strip()]
        head, steps = lines[0], lines[1:]
        if head["plan"] != 1 or any(step["step"] < 1 for step in steps):
            raise ValueError("another version")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise Misconfigured(f"{path} is no plan of samekey: {error}") from error
    return head, steps


def review(path: str | Path, by: str, only: Iterable[int] = ()) -> int:
    """Write the reviewer's name into these steps, or into all that can be applied; how many."""
    head, steps = read_plan(path)
    wanted, reviewed = set(only), 0
    for step in steps:
        if step["action"] in STEPS and (not wanted or step["step"] in wanted):
            step["reviewed_by"] = by
            reviewed += 1
    text = "".join(json.dumps(line) + "\n" for line in (head, *steps))
    written = Path(f"{path}.new")
    written.write_text(text, encoding="utf-8")
    written.replace(path)
    return reviewed


@dataclass
class Applied:
    """What an applier did: counts by outcome, and what it could not do."""

    counts: Counter[str]
    problems: list[str]


def apply_plan(
    guard: Guard,
    path: str | Path,
    *,
    refund: Callable[[Refund], Any] | None = None,
    books: Callable[[str], tuple[int, bool]] | None = None,
    boundary: Boundary | None = None,
) -> Applied:
    """Carry out the reviewed steps. It may be killed, run again, and run by two people at once.

    `refund(step)` sends one refund; `books(reference)` returns how much of the charge is still there, in minor units,
    and whether it is disputed. `boundary` is that of the refund.
    """
    _, steps = read_plan(path)
    journal = Path(f"{path}.journal")  # saves time only: the guard's records decide
    done = set(journal.read_text(encoding="utf-8").split()) if journal.exists() else set[str]()
    applied = Applied(Counter(), [])
    for step in steps:
        name = str(step["step"])
        if step["action"] not in STEPS:
            continue
        if not step["reviewed_by"]:
            applied.counts["not reviewed"] += 1
        elif name in done:
            applied.counts["done before"] += 1
        else:
            try:
                how = _apply(guard, step, refund, books, boundary or Opaque())
            except SamekeyError as error:
                applied.counts["problem"] += 1
                applied.problems.append(f"step {name}: {error}")
                continue
            applied.counts[how] += 1
            with open(journal, "a", encoding="utf-8") as file:
                file.write(f"{name}\n")
                file.flush()
                os.fsync(file.fileno())
    return applied


def _apply(
    guard: Guard,
    step: dict[str, Any],
    refund: Callable[[Refund], Any] | None,
    books: Callable[[str], tuple[int, bool]] | None,
    boundary: Boundary,
) -> str:
    if step["action"] == "refund":
        return _refund(guard, step, refund, books, boundary)
    seen = _seen(guard, step)
    happened = step["action"] == "adopt"
    why = f"reconciliation found {step['charge']}" if happened else "the provider's statement has no such charge"
    given: dict[str, Any] = {"result": {"provider_ref": step["charge"]}} if happened else {}
    resolution = Resolution.HAPPENED if happened else Resolution.NOT_DONE
    Ops(guard.store).resolve(seen, resolution, who=step["reviewed_by"], why=why, **given)
    return "adopted" if happened else "released"


def _seen(guard: Guard, step: dict[str, Any]) -> Record:
    about = step["record"]
    seen: Record | None = guard.store.carry_out(Read(make_key(about["operation"], about["key"], about["tenant"])))
    if seen is None or mark(seen) != step["if"]["mark"]:
        raise MovedOn(f"the record of step {step['step']} is not the one that was compared", record=seen)
    return seen


def _refund(
    guard: Guard,
    step: dict[str, Any],
    refund: Callable[[Refund], Any] | None,
    books: Callable[[str], tuple[int, bool]] | None,
    boundary: Boundary,
) -> str:
    if refund is None:
        raise Misconfigured("a refund needs your function: refund=")
    from samekey import current

    send = refund

    def effect() -> dict[str, Any]:
        held = current()
        if books is not None:
            live, disputed = books(step["charge"])
            if disputed:
                return {"refunded": False, "why": "disputed"}
            if live != step["if"]["live_minor"]:
                return {"refunded": False, "why": "by_hand"}
        asked = Refund(step["charge"], step["minor"], step["currency"], step["keep"], held.provider_key())
        send(asked)
        return {"refunded": True, "why": ""}

    payload = {"minor": step["minor"], "currency": step["currency"]}
    policy = Policy(retention=FOREVER)
    answer = guard.run(REFUND, effect, key=step["key"], payload=payload, boundary=boundary, policy=policy)
    if answer.replayed:
        return "refunded before"
    return "refunded" if answer.result["refunded"] else answer.result["why"]
