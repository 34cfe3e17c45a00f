"""Who may come in: tokens, proxies, cookies, proofs of forms, and the limit on wrong tokens."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from samekey.console import Access, console_app
from samekey.console.access import SESSION_SECONDS, TRIES, TRIES_OF_ALL, TRIES_SECONDS, Role, Tries
from samekey.console.web import COOKIE
from samekey.core.commands import Read
from samekey.core.errors import Misconfigured
from samekey.core.key import make_key
from samekey.core.states import State
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from tests.console.shop import ACCESS, OPERATOR, VIEWER, digest, field_of, fill, proof_of, visiting
from tests.console.test_pages import PAGES


@pytest.fixture
def store():
    store = MemoryStore()
    with fill(store):
        yield store


@pytest.fixture
def app(store):
    return console_app(AsyncMemoryStore(store), ACCESS)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "needs a credential"),
        ({"operator_token": "short"}, "shorter than 16"),
        ({"operator_token": "x" * 16, "viewer_token": "x" * 16}, "are equal"),
        ({"user_header": "X-User"}, "--trust"),
        ({"operator_token": "x" * 16, "trust": ("10.0.0.1",)}, "--trust"),
        ({"user_header": "X-User", "trust": ("nowhere",)}, "not 'nowhere'"),
    ],
)
def test_without_a_sound_credential_there_is_no_console(given, says):
    with pytest.raises(Misconfigured, match=says):
        Access(**given)


def test_a_credential_is_not_in_a_repr():
    assert OPERATOR not in repr(ACCESS)
    assert VIEWER not in repr(ACCESS)


@pytest.mark.parametrize("page", [*PAGES, "/audit.csv", f"/record/{digest('order-1')}"])
async def test_without_a_sign_in_no_page_shows_anything(app, page):
    async with visiting(app, token=None) as client:
        answer = await client.get(page)

    assert "Sign in to the console" in answer.text
    for shown in ("order-1", "doubt-0", "cus_1", "order.charge", "memory://"):
        assert shown not in answer.text.replace(digest("order-1"), "")


async def test_live_updates_need_a_sign_in(app):
    async with visiting(app, token=None) as client:
        assert (await client.get("/live")).status_code == 401


@pytest.mark.parametrize(("token", "role"), [(OPERATOR, "operator"), (VIEWER, "viewer")])
async def test_a_token_is_the_token_of_a_role(app, token, role):
    async with visiting(app, token=token) as client:
        assert f'<span class="dim">{role}</span>' in (await client.get("/")).text


async def test_a_wrong_token_costs_a_try_and_the_audit_log_has_it(app, store):
    async with visiting(app, token=None) as client:
        answers = [await client.post("/sign-in", data={"token": f"wrong {n}", "who": "eve"}) for n in range(TRIES + 1)]
        right = await client.post("/sign-in", data={"token": OPERATOR, "who": "eve"})

    assert "4 more tries" in answers[0].text
    assert [answer.status_code for answer in answers] == [403] * TRIES + [429]
    assert right.status_code == 429  # also the right one waits
    assert COOKIE not in right.cookies
    assert [one.after for one in store.audit(20) if one.action == "sign_in"] == ["refused"] * TRIES


def test_wrong_tokens_are_forgotten_after_a_while_and_counted_in_all():
    now = [0.0]
    tries = Tries(lambda: now[0])
    for _ in range(TRIES):
        tries.wrong("10.0.0.1")
    assert (tries.left("10.0.0.1"), tries.left("10.0.0.2")) == (0, TRIES)
    assert tries.wait_seconds("10.0.0.1") == TRIES_SECONDS
    now[0] = TRIES_SECONDS + 1
    assert tries.left("10.0.0.1") == TRIES
    for number in range(TRIES_OF_ALL):
        tries.wrong(f"10.1.0.{number}")
    assert tries.left("10.2.0.1") == 0


def test_a_cookie_ends_and_cannot_be_changed_or_moved():
    person, cookie = ACCESS.begin("ada", Role.OPERATOR, 1000.0)
    assert ACCESS.person_of_cookie(cookie, 1000.0) == person
    assert ACCESS.person_of_cookie(cookie, 1000.0 + SESSION_SECONDS) is None
    body, _, signature = cookie.partition(".")
    for changed in (cookie[:-1] + "0", body, f"{body}.", f"{body[:-4]}AAAA.{signature}", "x" * 5000, "", "é.é"):
        assert changed == cookie or ACCESS.person_of_cookie(changed, 1000.0) is None
    other = Access(operator_token="another-token-0123456789", viewer_token=VIEWER)
    assert other.person_of_cookie(cookie, 1000.0) is None  # a changed token ends every sign-in


async def test_the_cookie_is_strict_and_out_of_reach_of_scripts(app):
    async with visiting(app, token=None) as client:
        data = {"token": OPERATOR, "who": "ada"}
        plain = await client.post("/sign-in", data=data, follow_redirects=False)
        safe = await client.post("https://console/sign-in", data=data, follow_redirects=False)

    cookie = plain.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secure" not in cookie
    assert "secure" in safe.headers["set-cookie"].lower()


async def test_signing_out_ends_the_sign_in_on_the_server(app):
    async with visiting(app) as client:
        kept = client.cookies[COOKIE]
        proof = proof_of((await client.get("/")).text)
        await client.post("/sign-out", data={"proof": "0" * 64})
        assert "Overview" in (await client.get("/")).text
        await client.post("/sign-out", data={"proof": proof})
        client.cookies.set(COOKIE, kept)
        assert "Sign in to the console" in (await client.get("/")).text


@pytest.mark.parametrize("next", ["//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:x"])
async def test_signing_in_never_leads_to_another_site(app, next):
    async with visiting(app, token=None) as client:
        data = {"token": OPERATOR, "who": "ada", "next": next}
        answer = await client.post("/sign-in", data=data, follow_redirects=False)

    assert answer.headers["location"] == "/"


# -- forms of other sites ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_form_of_another_site_changes_nothing(app, store, headers):
    place = f"/record/{digest('doubt-0')}"
    async with visiting(app) as client:
        page = (await client.get(place)).text
        form = {"proof": proof_of(page), "seen": field_of(page, "seen"), "outcome": "happened", "why": "x"}
        answer = await client.post(f"{place}/resolve", data=form, headers=headers)

    assert answer.status_code == 403
    assert store.carry_out(Read(make_key("order.charge", "doubt-0"))).state is State.IN_DOUBT
    assert store.audit(1)[0].after == "refused"


@pytest.mark.parametrize("proof", ["", "0" * 64, "é"])
async def test_a_form_without_the_proof_of_this_sign_in_changes_nothing(app, store, proof):
    place = f"/record/{digest('doubt-0')}"
    async with visiting(app) as client:
        page = (await client.get(place)).text
        form = {"proof": proof, "seen": field_of(page, "seen"), "outcome": "happened", "why": "x"}
        answer = await client.post(f"{place}/resolve", data=form)

    assert answer.status_code == 403
    assert store.carry_out(Read(make_key("order.charge", "doubt-0"))).state is State.IN_DOUBT


async def test_the_proof_of_another_sign_in_changes_nothing(app, store):
    place = f"/record/{digest('doubt-0')}"
    async with visiting(app) as ada, visiting(app, name="grace") as grace:
        page = (await ada.get(place)).text
        form = {"proof": proof_of(page), "seen": field_of(page, "seen"), "outcome": "happened", "why": "x"}
        answer = await grace.post(f"{place}/resolve", data=form)

    assert answer.status_code == 403
    assert store.carry_out(Read(make_key("order.charge", "doubt-0"))).state is State.IN_DOUBT


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=x", "text/plain"])
async def test_only_a_form_is_read(app, kind):
    async with visiting(app) as client:
        place = f"/record/{digest('doubt-0')}/resolve"
        answer = await client.post(place, content=b"proof=x", headers={"Content-Type": kind})

    assert answer.status_code == 403


async def test_a_body_without_end_is_refused(app):
    async def body():
        for _ in range(40):
            yield b"a" * 65536

    async with visiting(app) as client:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = await client.post(f"/record/{digest('doubt-0')}/resolve", content=body(), headers=headers)

    assert answer.status_code == 403


async def test_an_action_by_get_is_no_action(app):
    async with visiting(app) as client:
        for action in ("resolve", "ask", "reveal", "redact", "free"):
            assert (await client.get(f"/record/{digest('doubt-0')}/{action}")).status_code == 405


async def test_an_action_after_the_sign_in_ended_says_so(app):
    async with visiting(app, token=None) as client:
        answer = await client.post(f"/record/{digest('doubt-0')}/resolve", data={"outcome": "happened"})

    assert answer.status_code == 401
    assert "Your sign-in ended; nothing was changed." in answer.text


# -- a proxy -------------------------------------------------------------------------------------------------------

PROXY = Access(user_header="X-User", trust=("10.0.0.0/24",), operators=frozenset({"ada"}))


async def proxied(app, address, **headers):
    transport = httpx.ASGITransport(app=app, client=(address, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://console", follow_redirects=True) as client:
        return (await client.get("/", headers=headers)).text


async def test_a_name_from_the_proxy_is_believed_and_from_elsewhere_it_is_not(store):
    app = console_app(AsyncMemoryStore(store), PROXY)

    assert '<span class="dim">operator</span>' in await proxied(app, "10.0.0.7", **{"X-User": "ada"})
    assert '<span class="dim">viewer</span>' in await proxied(app, "10.0.0.7", **{"X-User": "vera"})
    for text in (
        await proxied(app, "10.0.1.7", **{"X-User": "ada"}),
        await proxied(app, "10.0.0.7"),
        await proxied(app, "10.0.0.7", **{"X-User": " "}),
        await proxied(app, "10.0.0.7", **{"X-User": "x" * 100}),
        await proxied(app, "10.0.0.7", **{"X-Forwarded-User": "ada"}),
    ):
        assert "Sign in at your proxy" in text
        assert "doubt" not in text.split("</svg>")[-1]


async def test_a_proxys_name_is_a_proof_in_the_audit_log(store):
    app = console_app(AsyncMemoryStore(store), PROXY)
    transport = httpx.ASGITransport(app=app, client=("10.0.0.7", 1))
    place = f"/record/{digest('doubt-0')}"
    async with httpx.AsyncClient(transport=transport, base_url="http://console", headers={"X-User": "ada"}) as client:
        page = (await client.get(place)).text
        form = {"proof": proof_of(page), "seen": field_of(page, "seen"), "outcome": "happened", "why": "it is there"}
        await client.post(f"{place}/resolve", data=form)

    assert store.audit(1)[0].who == "ada"


async def test_an_unknown_host_is_refused(store):
    """A page of another site whose name leads to this address reads nothing."""
    app = console_app(AsyncMemoryStore(store), ACCESS, hosts=["console"])
    async with visiting(app) as client:
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/", headers={"Host": "evil.example"})).status_code == 400


# -- headers, and an application around it -------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["/", "/sign-in", "/static/console.js", "/no-such-page"])
async def test_every_answer_has_the_headers(app, page):
    async with visiting(app) as client:
        answer = await client.get(page, follow_redirects=False)

    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert page.startswith("/static") or answer.headers["cache-control"] == "no-store"


async def test_it_is_mounted_into_an_application(store):
    outer = Starlette(routes=[Mount("/ops/console", console_app(AsyncMemoryStore(store), ACCESS))])
    transport = httpx.ASGITransport(app=outer)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop", follow_redirects=True) as client:
        data = {"token": OPERATOR, "who": "ada"}
        page = await client.post("/ops/console/sign-in", data=data)
        assert page.url.path == "/ops/console/"
        style = page.text.partition('rel="stylesheet" href="')[2].partition('"')[0]
        assert (await client.get(style)).status_code == 200
        record = await client.get(f"/ops/console/record/{digest('doubt-0')}")
        assert f'action="/ops/console/record/{digest("doubt-0")}/resolve"' in record.text
