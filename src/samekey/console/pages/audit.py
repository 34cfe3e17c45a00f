"""Audit: who did it, and why? Refused actions, too."""

from __future__ import annotations

import csv
import io

from starlette.responses import Response

from samekey.console.web import Visit
from samekey.core.errors import SamekeyError
from samekey.core.key import make_key
from samekey.core.ports import LIST_MAX
from samekey.core.record import Audit
from samekey.ops.story import when

PAGE = 50
ACTIONS = {
    "resolve": "Settled a doubt",
    "ask": "Asked the provider",
    "bulk": "Acted on several",
    "reveal": "Showed a result",
    "redact": "Dropped a result",
    "free": "Freed a key",
    "sweep": "Swept",
    "accept": "Accepted a finding",
    "sign_in": "Signed in",
    "redeliver": "Sent a message again",
    "put_back": "Put a trigger back",
}
OUTCOMES = {
    ("resolve", "completed"): "settled as happened",
    ("resolve", "closed"): "settled as refused",
    ("resolve", "released"): "released: it never happened",
    ("redact", "completed"): "done",
    ("redact", "closed"): "done",
    ("free", ""): "done",
    ("accept", "accepted"): "accepted",
}


async def entries(visit: Visit) -> list[Audit]:
    """The last entries of the log, as far as the filter and the tenant pick them."""
    console = visit.console
    who, action, key = visit.asked("who"), visit.asked("action"), visit.asked("key")
    return [
        one
        for one in await console.ops.audit(LIST_MAX)
        if console.tenant in (None, one.tenant)
        and who in ("", one.who)
        and action in ("", one.action)
        and key in ("", one.text)
    ]


async def audit(visit: Visit) -> Response:
    everything = await visit.console.ops.audit(LIST_MAX)
    found = await entries(visit)
    start = int(visit.asked("from")) if visit.asked("from").isdigit() else 0
    page = found[start : start + PAGE]
    return await visit.page(
        "audit.html",
        title="Audit",
        entries=[(one, digest_of(one)) for one in page],
        start=start,
        older=start + PAGE if len(found) > start + PAGE else None,
        newer=max(0, start - PAGE) if start else None,
        full=len(everything) == LIST_MAX,
        people=sorted({one.who for one in everything if visit.console.tenant in (None, one.tenant)}),
        actions=ACTIONS,
        action_options=list(ACTIONS.items()),
        outcome=outcome,
        most=LIST_MAX,
    )


async def save(visit: Visit) -> Response:
    """The same as CSV. A cell that a spreadsheet would take for a formula is quoted."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("at", "who", "action", "operation", "tenant", "key", "before", "after", "why"))
    for one in await entries(visit):
        writer.writerow([when(one.at), *(_cell(value) for value in one[1:])])
    return Response(
        text.getvalue(),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="samekey-audit.csv"'},
    )


def _cell(value: str | None) -> str:
    text = value or ""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def outcome(one: Audit) -> str:
    if one.after == "refused":
        return "refused: nothing was changed"
    return OUTCOMES.get((one.action, one.after), one.after or "done")


def digest_of(one: Audit) -> str:
    """The digest of the record that an entry is about; "" where it is about none."""
    if not one.text or not one.operation or one.action == "accept":
        return ""
    try:
        return make_key(one.operation, one.text, one.tenant).digest.hex()
    except SamekeyError:
        return ""
