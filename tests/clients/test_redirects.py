"""A redirect is the same operation at another address: its key goes with it, and only to where keys are honoured."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
import requests

from samekey import Guard, Keyed
from samekey.clients.aiohttp import KeyMiddleware
from samekey.clients.requests import KeyAdapter
from tests.clients.libraries import HERE
from tests.clients.provider import opened


@pytest.fixture
def elsewhere():
    """A provider under another name than the one in `hosts`."""
    with opened() as provider:
        provider.url = provider.url.replace("127.0.0.1", "localhost")
        yield provider


@pytest.mark.parametrize("status", [302, 303, 307, 308])
def test_another_host_gets_no_key(send, provider, elsewhere, status):
    provider.will(status, Location=f"{elsewhere.url}/there")

    assert send("POST", provider.url, body={"amount": 200}) == 201
    assert provider.keys != [None]
    assert elsewhere.keys == [None]


def test_another_host_is_not_sent_a_post_twice(send, provider, elsewhere):
    provider.will(307, Location=f"{elsewhere.url}/there")
    elsewhere.will(503, Retry_After="0")

    assert send("POST", provider.url, body={"amount": 200}) == 503
    assert len(elsewhere.seen) == 1


def test_the_callers_own_key_goes_where_its_library_takes_it(send, provider, elsewhere):
    provider.will(307, Location=f"{elsewhere.url}/there")

    send("POST", provider.url, headers={"Idempotency-Key": "mine"})
    assert provider.keys == elsewhere.keys == ["mine"]


@pytest.mark.parametrize("body", [None, {"amount": 200}], ids=["no body", "a body"])
@pytest.mark.parametrize("to", ["/there", "there?now=1#part", "{url}/there"])
def test_the_same_host_gets_the_same_key(send, provider, body, to):
    provider.will(307, Location=to.format(url=provider.url))
    provider.will(503)

    assert send("POST", f"{provider.url}/here", body=body) == 201
    assert [path.partition("?")[0] for _, path, *_ in provider.seen] == ["/here", "/there", "/there"]
    assert len(set(provider.keys)) == 1


def test_a_key_goes_there_and_back_again(send, provider, elsewhere):
    provider.will(307, Location=f"{elsewhere.url}/there")
    elsewhere.will(307, Location=f"{provider.url}/back")

    send("POST", provider.url, body={"amount": 200})
    assert [path for _, path, *_ in provider.seen] == ["/", "/back"]
    assert elsewhere.keys == [None]
    assert provider.keys[0] == provider.keys[1]
    assert provider.keys[0]


def test_with_requests_an_adapter_for_one_host_takes_its_key_off(provider, elsewhere):
    """What leads elsewhere goes through another adapter, which knows nothing of keys; what leads back has it again."""
    provider.will(307, Location=f"{elsewhere.url}/there")
    elsewhere.will(307, Location=f"{provider.url}/back")
    with requests.Session() as session:
        session.trust_env = False
        session.mount(provider.url, KeyAdapter(hosts=HERE))

        request = session.prepare_request(requests.Request("POST", provider.url, json={"amount": 200}))
        assert [session.send(request).status_code for _ in range(2)] == [201, 201]

    assert [path for _, path, *_ in provider.seen] == ["/", "/back", "/"]
    assert elsewhere.keys == [None]
    assert len({*provider.keys}) == 1
    assert provider.keys[0]


def test_with_requests_a_request_that_is_led_elsewhere_by_hand_gets_no_key(provider, elsewhere):
    """It was given one for where it was sent first, and has that again when it is led back."""
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", KeyAdapter(hosts=HERE))
        request = session.prepare_request(requests.Request("POST", provider.url, json={"amount": 200}))
        for request.url in (f"{provider.url}/", f"{elsewhere.url}/", f"{provider.url}/"):
            assert session.send(request).status_code == 201

    assert elsewhere.keys == [None]
    assert len(provider.keys) == 2
    assert len({*provider.keys}) == 1


def test_a_page_to_look_at_afterwards_gets_no_key(send, provider):
    provider.will(303, Location="/receipt")

    send("POST", provider.url, body={"amount": 200})
    assert [method for method, *_ in provider.seen] == ["POST", "GET"]
    assert provider.keys[1] is None


def test_a_host_without_keys_may_send_on_to_one_with_them(send, provider, elsewhere):
    elsewhere.will(307, Location=f"{provider.url}/there")

    assert send("POST", elsewhere.url, body={"amount": 200}) == 201
    assert elsewhere.keys == [None]
    assert provider.keys != [None]


def test_an_effect_may_be_redirected_as_often_as_it_is_tried(send, provider):
    with Guard("memory://") as guard:

        @guard.once(name="charge", key="order_id", boundary=Keyed())
        def charge(order_id):
            for _ in range(2):
                provider.will(307, 308, Location="/there")
                send("POST", provider.url, body={"order": order_id})

        charge("o-1")

    assert len(provider.seen) == 6
    assert len(set(provider.keys)) == 1


def test_with_aiohttp_a_redirect_that_was_not_followed_lends_its_key_once(provider):
    """Whoever follows it by hand has the same operation; whoever comes after that has another."""
    provider.will(307, Location="/there")

    async def go():
        async with aiohttp.ClientSession(middlewares=(KeyMiddleware(hosts=HERE),)) as session:
            for path in ("/here", "/there", "/there"):
                async with session.post(f"{provider.url}{path}", data=b"200", allow_redirects=False):
                    pass

    asyncio.run(go())
    first, followed, another = provider.keys
    assert first == followed != another
