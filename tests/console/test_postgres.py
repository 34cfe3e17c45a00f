"""The console on a real PostgreSQL: every page, one decision, one conflict, and the audit log."""

from __future__ import annotations

import pytest

from samekey.console import console_app
from samekey.core.commands import Read
from samekey.core.key import make_key
from samekey.core.states import State
from samekey.drivers.postgres.migrate import migrate
from samekey.stores.postgres import PostgresStore
from samekey.testing.servers import postgres
from tests.console.shop import ACCESS, digest, double, field_of, fill, proof_of, visiting
from tests.console.test_pages import PAGES


@pytest.fixture(scope="module")
def url():
    with postgres() as server:
        address = server.create_database()
        migrate(address)
        yield address


async def test_pages_and_actions_on_postgresql(url):
    store = PostgresStore(url)
    with fill(store) as guard:
        double(store, "doubt-1")
        app = console_app(url, ACCESS, guard=guard)
        async with visiting(app, name="grace") as client:
            for page in PAGES:
                assert (await client.get(page)).status_code == 200, page
            for text in ("order-1", "pi_order-1", "cus_doubt", digest("order-1")[:9], "region=eu"):
                found = (await client.get("/operations", params={"q": text})).text
                assert "No record was found" not in found, text
            place = f"/record/{digest('doubt-0')}"
            page = (await client.get(place)).text
            form = {
                "proof": proof_of(page),
                "seen": field_of(page, "seen"),
                "outcome": "happened",
                "why": "in the books",
            }
            first = await client.post(f"{place}/resolve", data=form)
            second = await client.post(f"{place}/resolve", data={**form, "outcome": "not_done"})
        await app.state.console.store.close()
        record = store.carry_out(Read(make_key("order.charge", "doubt-0")))
        audit = store.audit(2)

    assert "Kept with your name and reason" in first.text
    assert "was not changed" in second.text
    assert record is not None
    assert record.state is State.COMPLETED
    assert [(one.action, one.after) for one in audit] == [("resolve", "refused"), ("resolve", "completed")]
