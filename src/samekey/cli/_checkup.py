"""What `doctor --app` checks: the operations of a guard, their times, and the routes of a web application.

Pure: the registry and what was measured in, sentences out. A finding makes the exit code 1; a note does not.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from datetime import date
from typing import Any, NamedTuple

from samekey.core.boundary import Kind
from samekey.core.policy import FOREVER
from samekey.doubt.pack import pack_of
from samekey.guard.operations import Declared
from samekey.http import _operation as naming
from samekey.http.endpoint import METHODS
from samekey.ops.story import span

HORIZON_MARGIN = 1.1
MONTH_SECONDS = 30 * 24 * 3600.0
RETRIES_SECONDS = {"webhook": 3 * 24 * 3600.0, "http": 24 * 3600.0}  # how long senders of these usually try again
CLOCK_OFF_SECONDS = 30.0


class Checked(NamedTuple):
    findings: list[str]
    notes: list[str]
    unknown: list[str]  # what a person must declare before it can be checked


def check_operations(operations: Iterable[Declared], longest: dict[str, float], today: date | None = None) -> Checked:
    """Rules that can lead to a second effect, or to a doubt that need not be."""
    checked = Checked([], [], [])
    for one in operations:
        policy, operation = one.policy, one.operation
        if policy is None or operation is None:
            continue
        kind, kept = operation.terms.kind, policy.retention_seconds
        repeats = RETRIES_SECONDS.get(one.by, 0.0)
        if kept < repeats:
            checked.findings.append(
                f"{one.name} is remembered for {span(kept)}, and its senders try again for {span(repeats)}: "
                "a late retry would run it again. Give Policy(retention=) a longer time"
            )
        elif one.by in ("decorator", "run", "hold") and operation.apart is not None and kept < MONTH_SECONDS:
            checked.notes.append(
                f"{one.name} has a business key and is remembered for {span(kept)}: after that the same key runs "
                "again. Policy(retention=FOREVER) remembers it"
            )
        if one.by == "message" and kept < FOREVER.total_seconds():
            _check_horizon(checked, one, kept, policy.lease_seconds)
        _check_pack(checked, one, one.horizon or repeats, today)
        if policy.store_down == "run" and kind is not Kind.REPEATABLE:
            checked.findings.append(
                f"{one.name} runs unguarded while the store is down (store_down='run'), and running it twice is not "
                "harmless"
            )
        took = max((seconds for name, seconds in longest.items() if one.covers(name)), default=0.0)
        if took > policy.lease_seconds:
            checked.findings.append(
                f"{one.name} took up to {span(took)}, and its lease is {span(policy.lease_seconds)}: where a renewal "
                "fails, another caller counts it as in doubt. Give Policy(lease=) more than the timeout of its provider"
            )
        elif took > policy.patience_seconds > 0:
            checked.notes.append(
                f"{one.name} took up to {span(took)}, and callers wait {span(policy.patience_seconds)} for another's "
                "answer: some get InProgress"
            )
        if kind is Kind.OPAQUE and one.by != "webhook":
            checked.notes.append(f"{one.name} is Opaque: after a crash a person decides about each doubt")
        elif kind is Kind.KEYED and not operation.terms.asks:
            window = span(operation.terms.window or 0.0)
            checked.notes.append(f"{one.name} has no lookup: a doubt older than {window} waits for a person")
    return checked


def _check_pack(checked: Checked, one: Declared, retries: float, today: date | None) -> None:
    """What the provider's contract says about these rules. With a lookup a late retry is asked about: only a note."""
    pack = pack_of(one.boundary)
    if pack is None:
        return
    misfits = list(pack.warnings(retries_seconds=retries))
    (checked.notes if one.lookup is not None else checked.findings).extend(f"{one.name}: {text}" for text in misfits)
    checked.notes.extend(f"{one.name}: {text}" for text in pack.warnings(today=today) if text not in misfits)


def undeclared(unsettled: Iterable[str], operations: Iterable[Declared]) -> list[str]:
    """Operations with unsettled records that no worker can look at: this guard has no rules for them."""
    ruled = [one for one in operations if one.operation is not None]
    return sorted(name for name in unsettled if not any(one.covers(name) for one in ruled))


def _check_horizon(checked: Checked, one: Declared, kept: float, lease: float) -> None:
    """A key must be remembered for longer than its broker can deliver the message again."""
    if one.horizon is None or one.horizon == float("inf"):
        known = "is not declared" if one.horizon is None else "has no end"
        checked.unknown.append(
            f"{one.name} is remembered for {span(kept)}, and how long its broker may deliver a message again {known}: "
            "give the handler horizon= (samekey.messages.horizon), or Policy(retention=FOREVER)"
        )
    elif kept < HORIZON_MARGIN * one.horizon + lease:
        checked.findings.append(
            f"{one.name} is remembered for {span(kept)}, and its broker may deliver a message again for "
            f"{span(one.horizon)}: a late delivery would run it again. Give Policy(retention=) a longer time"
        )


def achieved(guarantee: str, operations: Iterable[Declared], findings: list[str]) -> str:
    """Which guarantee is reached, in one sentence."""
    kinds = {one.operation.terms.kind for one in operations if one.operation is not None}
    effects = "one effect for each key" if kinds - {Kind.REPEATABLE} else "effects that may be repeated"
    unsure = "; after a crash some wait for a person" if Kind.OPAQUE in kinds else ""
    but = f"; {len(findings)} findings weaken it" if findings else ""
    return f"{effects}, and the store's part is: {guarantee}{unsure}{but}"


def check_clock(store: float | None, here: float) -> str | None:
    """The store's clock judges leases and retention; one that is far off is a fault of a machine."""
    if store is None or abs(store - here) <= CLOCK_OFF_SECONDS:
        return None
    ahead = "ahead of" if store > here else "behind"
    return f"the store's clock is {span(abs(store - here))} {ahead} this machine's: one of the two is wrong"


# -- routes --------------------------------------------------------------------------------------------------------


def unguarded_routes(module: Any, operations: Iterable[Declared]) -> list[str]:
    """POST and PATCH routes of the web applications in this module that no rules of the guard cover."""
    entries = [one for one in operations if one.by == "http"]
    found: set[str] = set()
    for app in list(vars(module).values()):
        for method, path, view in _routes(app):
            if hasattr(view, "__samekey__"):
                continue  # its own rules, or @rules(None): not to be guarded
            name = naming.operation_name(method, path)
            if _outside(app, view) or not any(one.covers(name) for one in entries):
                found.add(f"{method} {path}")
    return sorted(found)


def _outside(app: Any, view: Any) -> bool:
    """FastAPI guards by a class of routes: a route that was added before it is not covered."""
    from_fastapi = sys.modules.get("samekey.http.fastapi")
    if from_fastapi is None or not isinstance(app, from_fastapi.FastAPI):
        return False
    guarded = [route for route in app.routes if getattr(route, "samekey_reads_rules", False)]
    return bool(guarded) and not any(getattr(route, "endpoint", None) is view for route in guarded)


def _routes(app: Any) -> Iterator[tuple[str, str, Any]]:
    """Method, path and function of each route: Flask's map, or the routes of Starlette and FastAPI."""
    url_map, views = getattr(app, "url_map", None), getattr(app, "view_functions", None)
    if url_map is not None and isinstance(views, dict):
        for rule in url_map.iter_rules():
            for method in {*METHODS} & {*(rule.methods or ())}:
                yield method, re.sub(r"<[^>]+>", naming.PARAMETER, rule.rule), views.get(rule.endpoint)
        return
    routes = getattr(app, "routes", None)
    if not isinstance(routes, list):
        return
    for route in routes:
        path, methods = getattr(route, "path", None), getattr(route, "methods", None)
        if isinstance(path, str) and methods:
            for method in {*METHODS} & {*methods}:
                yield method, re.sub(r"\{[^}]+\}", naming.PARAMETER, path), getattr(route, "endpoint", None)
