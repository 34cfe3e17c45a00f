"""Every page answers its question, and every action is a compare-and-set with a name and a reason."""

from __future__ import annotations

import json

import pytest

from samekey import Guard
from samekey.console import console_app
from samekey.core.commands import Read
from samekey.core.key import make_key
from samekey.core.states import State
from samekey.ops import Ops, Resolution
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from tests.console.shop import ACCESS, VIEWER, XSS, charge, digest, double, field_of, fill, proof_of, visiting

PAGES = ("/", "/operations", "/doubts", "/claims", "/duplicates", "/intake", "/messages", "/stores", "/audit")


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def guard(store):
    with fill(store) as guard:
        yield guard


@pytest.fixture
def app(store, guard):
    return console_app(AsyncMemoryStore(store), ACCESS, guard=guard)


def state_of(store, key, operation="order.charge", tenant=None):
    return store.carry_out(Read(make_key(operation, key, tenant))).state


@pytest.mark.parametrize("page", PAGES)
async def test_every_page_answers(app, page):
    async with visiting(app) as client:
        answer = await client.get(page)

    assert answer.status_code == 200
    assert "Skip to the content" in answer.text


async def test_the_overview_says_first_whether_something_is_doubled(app, store):
    async with visiting(app) as client:
        assert "Nothing is known to be doubled. 4 effects are in doubt." in (await client.get("/")).text

        double(store, "doubt-0")
        await app.state.console.watch.current(fresh=True)

        assert "Yes: one effect is there twice. 4 in doubt." in (await client.get("/")).text


async def test_an_empty_store_says_no(store):
    async with visiting(console_app(AsyncMemoryStore(), ACCESS)) as client:
        assert "No. Nothing is doubled, and nothing is in doubt." in (await client.get("/")).text
        assert "Nothing is in doubt." in (await client.get("/doubts")).text
        assert "There is no record yet." in (await client.get("/operations")).text


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("order-1", "key"),
        ("pi_order-1", "provider reference"),
        ("cus_doubt", "customer"),
        (digest("order-1")[:9], "digest"),
        ("region=eu", "attribute"),
        ("amount_minor=4900", "note"),
        ("party=cus_doubt", "note"),
    ],
)
async def test_the_search_box_reads_what_it_is_given(app, text, reading):
    async with visiting(app) as client:
        await client.get("/operations")  # the console has seen the operations
        page = (await client.get("/operations", params={"q": text})).text

    assert f'<span class="chip on">{reading}</span>' in page
    assert "No record was found" not in page


async def test_a_text_that_finds_nothing_says_how_it_was_read(app):
    async with visiting(app) as client:
        page = (await client.get("/operations", params={"q": "order-99999"})).text

    assert "No record was found for" in page
    assert "Read as key, provider reference, customer, request id" in page


async def test_results_come_in_pages_by_position(store, guard):
    for number in range(60):
        charge(guard, f"many-{number}")
    app = console_app(AsyncMemoryStore(store), ACCESS)
    seen: list[str] = []
    async with visiting(app) as client:
        place = "/operations"
        while place:
            page = (await client.get(place)).text
            seen += [part.split('"')[0] for part in page.split('class="key" href="/record/')[1:]]
            place = page.partition('id="older" href="')[2].partition('"')[0].replace("&amp;", "&")

    assert len(seen) == len(set(seen)) == 60 + 12


async def test_a_record_tells_its_story_and_hides_its_result(app):
    async with visiting(app) as client:
        page = (await client.get(f"/record/{digest('order-1')}")).text

    assert "It happened once. Later calls with this key are answered from memory." in page
    assert "Claimed by attempt" in page
    assert "Caller was told" in page
    assert "only for those allowed" not in page


async def test_a_result_is_shown_with_a_reason_and_the_audit_log_has_it(app, store):
    async with visiting(app) as client:
        place = f"/record/{digest('order-1')}"
        proof = proof_of((await client.get(place)).text)
        refused = await client.post(f"{place}/reveal", data={"proof": proof, "why": " "})
        shown = await client.post(f"{place}/reveal", data={"proof": proof, "why": "ticket 4410"})

    assert "only for those allowed" not in refused.text
    assert "only for those allowed" in shown.text
    entries = [(one.action, one.after, one.text) for one in store.audit(10)]
    assert ("reveal", "done", "order-1") in entries
    assert ("reveal", "refused", "order-1") in entries


@pytest.mark.parametrize(
    ("outcome", "state"), [("happened", State.COMPLETED), ("refused", State.CLOSED), ("not_done", State.RELEASED)]
)
async def test_a_doubt_is_settled_with_name_and_reason(app, store, outcome, state):
    async with visiting(app, name="grace") as client:
        place = f"/record/{digest('doubt-0')}"
        page = (await client.get(place)).text
        form = {"proof": proof_of(page), "seen": field_of(page, "seen"), "outcome": outcome, "why": "seen in its books"}
        answer = await client.post(f"{place}/resolve", data=form)

    assert answer.status_code == 200
    assert "Kept with your name and reason" in answer.text
    assert state_of(store, "doubt-0") is state
    assert (store.audit(1)[0].who, store.audit(1)[0].why) == ("grace (name not proven)", "seen in its books")


async def test_of_two_operators_one_wins_and_the_other_reads_a_sentence(app, store):
    place = f"/record/{digest('doubt-0')}"
    async with visiting(app, name="ada") as ada, visiting(app, name="grace") as grace:
        pages = [(await one.get(place)).text for one in (ada, grace)]
        forms = [{"proof": proof_of(page), "seen": field_of(page, "seen")} for page in pages]
        first = await ada.post(f"{place}/resolve", data={**forms[0], "outcome": "happened", "why": "pi_1 is there"})
        second = await grace.post(f"{place}/resolve", data={**forms[1], "outcome": "not_done", "why": "no charge seen"})

    assert "Kept with your name" in first.text
    assert second.status_code == 200
    assert "was not changed: ada (name not proven) (operator) was first." in second.text
    assert "What you gave, never happened, was not stored." in second.text
    assert state_of(store, "doubt-0") is State.COMPLETED
    refused = store.audit(1)[0]
    assert (refused.who, refused.action, refused.after) == ("grace (name not proven)", "resolve", "refused")
    assert "no charge seen" in refused.why


async def test_the_provider_is_asked_with_the_lookup_of_the_guard(app, store):
    async with visiting(app) as client:
        place = f"/record/{digest('doubt-1')}"
        proof = proof_of((await client.get(place)).text)
        answer = await client.post(f"{place}/ask", data={"proof": proof})

    assert "The record is now completed." in answer.text
    assert state_of(store, "doubt-1") is State.COMPLETED
    assert any(one.action == "ask" and one.text == "doubt-1" for one in store.audit(5))


async def test_what_cannot_be_asked_says_why(app, store):
    async with visiting(app) as client:
        place = f"/record/{digest('opaque-1', 'report.build')}"
        proof = proof_of((await client.get(place)).text)
        answer = await client.post(f"{place}/ask", data={"proof": proof})

    assert answer.status_code == 200
    assert state_of(store, "opaque-1", "report.build") is State.IN_DOUBT


async def test_a_settled_record_is_redacted_and_freed(app, store):
    place = f"/record/{digest('done-1')}"
    async with visiting(app) as client:
        page = (await client.get(place)).text
        form = {"proof": proof_of(page), "seen": field_of(page, "seen"), "why": "privacy request 7"}
        await client.post(f"{place}/redact", data=form)
        assert store.carry_out(Read(make_key("order.charge", "done-1"))).result is None
        page = (await client.get(place)).text
        form["seen"] = field_of(page, "seen")
        wrong = await client.post(f"{place}/free", data={**form, "typed": "done-2"})
        assert "was not changed" in wrong.text
        await client.post(f"{place}/free", data={**form, "typed": "done-1"})

    assert store.carry_out(Read(make_key("order.charge", "done-1"))) is None


async def test_a_doubt_cannot_be_freed(app, store):
    place = f"/record/{digest('doubt-0')}"
    async with visiting(app) as client:
        page = (await client.get(place)).text
        form = {"proof": proof_of(page), "seen": field_of(page, "seen"), "why": "away with it", "typed": "doubt-0"}
        answer = await client.post(f"{place}/free", data=form)

    assert "was not changed" in answer.text
    assert state_of(store, "doubt-0") is State.IN_DOUBT


# -- bulk ---------------------------------------------------------------------------------------------------------


async def bulk(client, *, scope, outcome, pick=(), **filters):
    page = (await client.get("/doubts", params=filters)).text
    data = {"proof": proof_of(page), "scope": scope, "outcome": outcome, "pick": list(pick), "after": "", **filters}
    return await client.post("/doubts/preview", data=data)


async def carried(client, preview, **more):
    names = ("proof", "outcome", "plan", "signature")
    dialog = preview.text.partition('id="preview"')[2]
    return await client.post("/doubts/carry-out", data={**{name: field_of(dialog, name) for name in names}, **more})


async def test_chosen_doubts_are_previewed_and_then_settled(app, store):
    async with visiting(app) as client:
        preview = await bulk(client, scope="chosen", outcome="happened", pick=[digest("doubt-0"), digest("doubt-1")])
        assert "Settle 2" in preview.text
        assert state_of(store, "doubt-0") is State.IN_DOUBT  # a preview writes nothing
        answer = await carried(client, preview, why="all of them are in the books")

    assert "2 of 2 were settled as happened." in answer.text
    assert [state_of(store, f"doubt-{number}") for number in range(3)] == [
        State.COMPLETED,
        State.COMPLETED,
        State.IN_DOUBT,
    ]


async def test_all_needs_a_filter(app, store):
    async with visiting(app) as client:
        refused = await bulk(client, scope="all", outcome="happened")
        allowed = await bulk(client, scope="all", outcome="not_done", operation="order.charge")

    assert "needs a filter" in refused.text
    assert "Release 3" in allowed.text
    assert "30.03 EUR by their notes" in allowed.text


async def test_above_fifty_the_number_is_typed(store, guard):
    for number in range(60):
        charge(guard, f"slow-{number}", error=TimeoutError())
    async with visiting(console_app(AsyncMemoryStore(store), ACCESS)) as client:
        preview = await bulk(client, scope="all", outcome="happened", operation="order.charge")
        assert "Type 63 to confirm" in preview.text
        refused = await carried(client, preview, why="they are all there", typed="36")
        assert "the number 63 was not typed" in refused.text
        assert state_of(store, "slow-0") is State.IN_DOUBT
        answer = await carried(client, preview, why="they are all there", typed="63")

    assert "63 of 63 were settled as happened." in answer.text


async def test_what_moved_on_since_the_preview_is_left_out_and_listed(app, store):
    async with visiting(app) as client:
        preview = await bulk(client, scope="page", outcome="not_done")
        ops = Ops(store)
        ops.resolve(ops.show(make_key("order.charge", "doubt-1")), Resolution.HAPPENED, who="grace", why="first")
        answer = await carried(client, preview, why="none of them")

    assert "3 of 4 were released." in answer.text
    assert "1 had moved on since the preview and was left alone." in answer.text
    assert state_of(store, "doubt-1") is State.COMPLETED


async def test_a_plan_of_another_sign_in_or_another_word_is_refused(app, store):
    async with visiting(app, name="ada") as ada, visiting(app, name="grace") as grace:
        preview = await bulk(ada, scope="page", outcome="happened")
        mine = proof_of((await grace.get("/doubts")).text)
        stolen = await carried(grace, preview, why="mine now", proof=mine)
        changed = await carried(ada, preview, why="the other outcome", outcome="not_done")

    assert "was not made by this console for your sign-in" in stolen.text
    assert "was not made by this console for your sign-in" in changed.text
    assert state_of(store, "doubt-0") is State.IN_DOUBT


async def test_bulk_asks_the_provider(app, store):
    async with visiting(app) as client:
        preview = await bulk(
            client, scope="chosen", outcome="ask", pick=[digest("doubt-0"), digest("opaque-1", "report.build")]
        )
        answer = await carried(client, preview, why="it answers again")

    assert "1 of 2 were asked about." in answer.text
    assert state_of(store, "doubt-0") is State.COMPLETED


# -- what a page must not show -------------------------------------------------------------------------------------


async def test_stored_text_is_text(store):
    with fill(store, doubts=0, done=0) as guard:
        for number, text in enumerate(XSS):
            plain = text if text.isprintable() else "plain"
            charge(
                guard,
                f"{number}{text}",
                party=plain[:200],
                tenant=f"t{text}" if text.isprintable() else None,
                attributes={"client_version": plain, "source": plain},
                error=TimeoutError() if number % 2 else None,
                result={"id": text},
            )
    app = console_app(AsyncMemoryStore(store), ACCESS, name=XSS[0])
    async with visiting(app, name=XSS[2][:60]) as client:
        pages = [(await client.get(page)).text for page in PAGES]
        for number, text in enumerate(XSS):
            tenant = f"t{text}" if text.isprintable() else None
            page = (await client.get(f"/record/{digest(f'{number}{text}', tenant=tenant)}")).text
            found = (await client.get("/operations", params={"q": text})).text
            pages += [page, found if text.isprintable() else ""]  # the search box keeps what was typed into it

    for page in pages:
        for harm in (
            "<script>window",
            "<img src=x",
            "<svg/onload",
            "<a href=javascript",
            'href="javascript',
            "' onmouseover=",
        ):
            assert harm not in page
        assert "\u202e" not in page
        assert "49$" not in page


async def test_another_tenants_record_looks_as_if_there_were_none(store):
    with Guard(store) as guard:
        charge(guard, "theirs", tenant="blue")
        charge(guard, "ours", tenant="acme", error=TimeoutError())
    app = console_app(AsyncMemoryStore(store), ACCESS, tenant="acme")
    async with visiting(app) as client:
        ours = await client.get(f"/record/{digest('ours', tenant='acme')}")
        theirs = await client.get(f"/record/{digest('theirs', tenant='blue')}")
        nothing = await client.get(f"/record/{digest('no such key', tenant='blue')}")
        found = await client.get("/operations", params={"q": "theirs", "tenant": "blue"})
        listed = await client.get("/operations")

    assert ours.status_code == 200
    assert (theirs.status_code, nothing.status_code) == (404, 404)
    assert theirs.text.replace(digest("theirs", tenant="blue"), "") == nothing.text.replace(
        digest("no such key", tenant="blue"), ""
    )
    assert "No record was found" in found.text
    assert "theirs" not in listed.text


async def test_a_viewer_cannot_act(app, store):
    place = f"/record/{digest('doubt-0')}"
    async with visiting(app, token=VIEWER, name="vera") as client:
        page = (await client.get(place)).text
        proof = proof_of(page)
        answers = [
            await client.post(
                f"{place}/resolve", data={"proof": proof, "seen": "x", "outcome": "happened", "why": "me"}
            ),
            await client.post(f"{place}/ask", data={"proof": proof}),
            await client.post(f"{place}/reveal", data={"proof": proof, "why": "me"}),
            await client.post(f"{place}/free", data={"proof": proof, "why": "me", "typed": "doubt-0"}),
            await client.post("/doubts/preview", data={"proof": proof, "scope": "page", "outcome": "happened"}),
            await client.post("/doubts/carry-out", data={"proof": proof}),
            await client.post("/duplicates/accept", data={"proof": proof}),
            await client.post("/stores/sweep", data={"proof": proof, "why": "me"}),
        ]

    assert 'name="outcome"' not in page
    assert [answer.status_code for answer in answers] == [403] * len(answers)
    assert state_of(store, "doubt-0") is State.IN_DOUBT
    refused = [one for one in store.audit(20) if one.after == "refused"]
    assert len(refused) == len(answers)
    assert {one.who for one in refused} == {"vera (name not proven)"}


async def test_a_read_only_console_writes_nothing(store, guard):
    app = console_app(AsyncMemoryStore(store), ACCESS, read_only=True)
    before = len(store.audit(100))
    async with visiting(app) as client:
        page = (await client.get(f"/record/{digest('doubt-0')}")).text
        answer = await client.post(
            f"/record/{digest('doubt-0')}/resolve", data={"proof": proof_of(page), "outcome": "happened", "why": "x"}
        )

    assert answer.status_code == 403
    assert "read only" in answer.text
    assert len(store.audit(100)) == before
    assert state_of(store, "doubt-0") is State.IN_DOUBT


async def test_a_finding_is_accepted_with_a_reason_and_an_end(app, store):
    double(store, "doubt-0")
    (finding,) = Ops(store).findings.list()
    async with visiting(app) as client:
        page = (await client.get("/duplicates", params={"finding": finding.id})).text
        assert "SELECT 1;" in page
        form = {"proof": proof_of(page), "finding": finding.id, "days": "30", "why": "refunded as re_1"}
        answer = await client.post("/duplicates/accept", data=form)

    assert "The finding is accepted for 30 days." in answer.text
    assert Ops(store).findings.list(accepted=False) == []
    assert store.audit(1)[0].action == "accept"


async def test_repeats_are_split_by_client_version(store):
    with fill(store, doubts=0, done=0) as guard:
        for number in range(3):
            attributes = {"client_version": "ios 8.14"}
            charge(guard, f"new-key-{number}", payload={"cart": 1}, attributes=attributes)
    app = console_app(AsyncMemoryStore(store), ACCESS)
    async with visiting(app) as client:
        page = (await client.get("/duplicates", params={"by": "client_version"})).text

    assert "2 of 2 repeats are from ios 8.14." in page


async def test_the_audit_is_saved_as_csv_without_formulas(app, store):
    async with visiting(app, name="=1+1") as client:
        answer = await client.get("/audit.csv")

    assert answer.headers["content-type"].startswith("text/csv")
    assert "'=1+1 (name not proven)" in answer.text


async def test_the_sweep_deletes_what_is_past_its_retention(app, store):
    async with visiting(app) as client:
        page = (await client.get("/stores")).text
        answer = await client.post("/stores/sweep", data={"proof": proof_of(page), "why": "disk"})

    assert "0 records past their retention were deleted." in answer.text
    assert store.audit(1)[0].action == "sweep"


async def test_a_plan_is_json_of_digests_and_marks(app):
    """The form carries no text of a record."""
    async with visiting(app) as client:
        preview = await bulk(client, scope="page", outcome="happened")

    plan = json.loads(field_of(preview.text.partition('id="preview"')[2], "plan"))
    assert all(len(digest) == 32 and len(seen) == 8 for digest, seen in plan)
