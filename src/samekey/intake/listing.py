"""The list of runs over HTTP: filters and cursors of the public trigger API."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from typing import Any

from samekey.intake.requests import PAGE_MAX, PAGE_SIZE
from samekey.intake.runs import Problem, Run
from samekey.intake.show import STATES, shown
from samekey.intake.times import duration

_LISTS = {"filter[taskIdentifier]": "task", "filter[tag]": "tag", "filter[batch]": "batch"}


def asked_page(query: Mapping[str, str]) -> dict[str, Any]:
    """What `Intake.list` takes, from a query; raises Problem for what cannot be read."""
    try:
        size = int(query.get("page[size]", PAGE_SIZE))
    except ValueError:
        raise Problem(400, "page[size] must be a number") from None
    if not 1 <= size <= PAGE_MAX:
        raise Problem(400, f"page[size] must be 1 to {PAGE_MAX}")
    asked: dict[str, Any] = {"size": size}
    if query.get("page[after]"):
        asked["before"] = place_of(query["page[after]"])  # the next page has older runs
    elif query.get("page[before]"):
        asked["after"] = place_of(query["page[before]"])
    for name, ours in _LISTS.items():
        if query.get(name):
            asked[ours] = tuple(query[name].split(","))
    if query.get("filter[status]"):
        given = query["filter[status]"].split(",")
        # A status that runs of ours never have matches none of them.
        asked["state"] = tuple(STATES.get(status, f"never {status}") for status in given)
    for name, ours in (("filter[createdAt][from]", "from"), ("filter[createdAt][to]", "to")):
        if query.get(name):
            try:
                asked[ours] = int(query[name]) / 1000
            except ValueError:
                raise Problem(400, f"{name} must be milliseconds since 1970") from None
    if query.get("filter[createdAt][period]"):
        asked["from"] = time.time() - duration("filter[createdAt][period]", query["filter[createdAt][period]"])
    return asked


def page_shown(runs: Sequence[Run], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The page, newest first, with its cursors; the last page has no next one."""
    newest = sorted(runs, key=lambda run: (run.created_at, run.id), reverse=True)
    pagination = {}
    if newest and (len(newest) == asked["size"] or "after" in asked):
        pagination["next"] = cursor_of(newest[-1])
    if newest and ("before" in asked or ("after" in asked and len(newest) == asked["size"])):
        pagination["previous"] = cursor_of(newest[0])
    return {"data": [shown(run, whole=False) for run in newest], "pagination": pagination}


def cursor_of(run: Run) -> str:
    return base64.urlsafe_b64encode(f"{run.created_at!r}|{run.id}".encode()).decode().rstrip("=")


def place_of(cursor: str) -> tuple[float, str]:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        at, _, run_id = text.partition("|")
        return float(at), run_id
    except ValueError:
        raise Problem(400, "this cursor cannot be read") from None
