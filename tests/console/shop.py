"""A shop's records for the console's tests: settled, in doubt, doubled, held, and texts that try to be code."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from samekey import Asks, Guard, Happened, NotDone, Opaque, Refused, current
from samekey.console import Access
from samekey.core.books import make_finding
from samekey.core.key import make_key

OPERATOR, VIEWER = "operator-token-0123456789", "viewer-token-0123456789"
ACCESS = Access(operator_token=OPERATOR, viewer_token=VIEWER)

# What a careless template would run, hide or break.
XSS = (
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "\"'><svg/onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "{{7*7}}${7*7}<%= 7*7 %>",
    "</title></textarea></script><script>window.hacked=1</script>",
    "' onmouseover='window.hacked=1",
    "a\u202eb\u2066c\u200d",
    "<a href=javascript:window.hacked=1>x</a>",
    "&lt;script&gt;window.hacked=1&lt;/script&gt;",
)


def lookup(record: Any) -> Any:
    return Happened({"id": "found"})


def fill(store: Any, *, doubts: int = 3, done: int = 5) -> Guard:
    """Records of a shop in this store; the guard stays open, for lookups."""
    guard = Guard(store)
    charge(guard, "order-1", amount=4900, party="cus_1", again=2)
    for number in range(done):
        charge(guard, f"done-{number}", amount=100 * number, party=f"cus_{number}")
    for number in range(doubts):
        charge(guard, f"doubt-{number}", amount=1000 + number, party="cus_doubt", error=TimeoutError())
    charge(guard, "closed-1", amount=1, party="cus_1", error=Refused("stolen card"))
    charge(guard, "released-1", amount=1, party="cus_1", error=NotDone())
    charge(
        guard, "opaque-1", operation="report.build", amount=77, party="cus_7", error=TimeoutError(), boundary=Opaque()
    )
    return guard


def charge(
    guard: Guard,
    key: str,
    *,
    amount: int = 100,
    party: str = "cus_1",
    tenant: str | None = None,
    operation: str = "order.charge",
    error: BaseException | None = None,
    again: int = 0,
    boundary: Any = None,
    attributes: dict[str, str] | None = None,
    payload: Any = None,
    result: Any = None,
) -> None:
    def effect() -> Any:
        current().note(
            amount_minor=amount,
            currency="EUR",
            party=party,
            provider_ref=f"pi_{key}"[:200] if key.isprintable() else "pi",
        )
        if error is not None:
            raise error
        return result or {"id": f"pi_{key}", "secret": "only for those allowed"}

    for _ in range(1 + again):
        try:
            guard.run(
                operation,
                effect,
                key=key,
                payload={"amount": amount, "key": key} if payload is None else payload,
                tenant=tenant,
                boundary=boundary or Asks(lookup),
                attributes=attributes or {"client_version": "web 4.2.0", "region": "eu", "source": "web 4.2.0"},
            )
        except (TimeoutError, Refused, NotDone):
            pass


def double(store: Any, key: str, operation: str = "order.charge", tenant: str | None = None) -> None:
    """A finding that this key's effect is there twice."""
    digest = make_key(operation, key, tenant).digest.hex()
    store.keep_finding(
        make_finding(
            "conflicting",
            at=time.time(),
            severity="critical",
            title="the provider has it more than once",
            operation=operation,
            tenant=tenant,
            digest=digest,
            evidence={"charges": ["pi_1", "pi_2"], "fix": "SELECT 1;"},
            proposal="refund all but one at the provider, then resolve the key",
            source="guard",
        )
    )


def digest(key: str, operation: str = "order.charge", tenant: str | None = None) -> str:
    return make_key(operation, key, tenant).digest.hex()


@asynccontextmanager
async def visiting(app: Any, *, token: str | None = OPERATOR, name: str = "ada") -> AsyncIterator[httpx.AsyncClient]:
    """A browser without JavaScript, signed in."""
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://console", follow_redirects=True) as client:
        if token is not None:
            answer = await client.post("/sign-in", data={"token": token, "who": name}, follow_redirects=False)
            assert answer.status_code == 303, answer.text
        yield client


def proof_of(page: str) -> str:
    found = re.search(r'name="proof" value="([0-9a-f]+)"', page)
    assert found is not None, "the page has no form"
    return found[1]


def field_of(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert found is not None, f"no field {name}"
    return found[1].replace("&#34;", '"').replace("&amp;", "&")
