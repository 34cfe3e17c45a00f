"""Every client library: one key for each operation, the same in every attempt; and no POST without one is repeated."""

from __future__ import annotations

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from uuid import UUID

import httpx
import httpx2
import pytest
import requests

from samekey import Guard, Keyed, Misconfigured, Policy, current
from samekey.clients import Retry, same_key
from samekey.clients._rules import KEY_HEADER, Rules
from samekey.clients.aiohttp import KeyMiddleware
from samekey.clients.httpx import KeyTransport
from samekey.clients.httpx2 import KeyTransport as KeyTransport2
from samekey.clients.requests import KeyAdapter
from tests.clients.libraries import HERE, QUICK, Lost
from tests.clients.provider import DROPPED, opened


def test_one_key_for_all_attempts(send, provider):
    provider.will(503, 500, DROPPED)

    assert send("POST", provider.url, body={"amount": 200}) == 201
    assert len(provider.keys) == 4
    assert len(set(provider.keys)) == 1
    assert UUID(provider.keys[0]).version == 4
    assert {body for *_, body in provider.seen} == {provider.seen[0][3]}


def test_another_operation_has_another_key(send, provider):
    send("POST", provider.url, body={"amount": 200})
    send("PATCH", provider.url, body={"amount": 200})

    assert len(set(provider.keys)) == 2


@pytest.mark.parametrize("status", [409, 425, 429, 503])
def test_later_means_later_with_the_same_key(send, provider, status):
    provider.will(status, Retry_After="0")

    assert send("POST", provider.url) == 201
    assert provider.keys[0] == provider.keys[1]


@pytest.mark.parametrize("status", [400, 402, 404, 422])
def test_what_must_be_corrected_is_not_sent_again(send, provider, status):
    provider.will(status)

    assert send("POST", provider.url) == status
    assert len(provider.seen) == 1


@pytest.mark.parametrize("status", [409, 500, 503])
def test_a_post_without_a_key_is_sent_once(send, provider, status):
    """The host is not one that honours keys: it gets none, and nothing twice."""
    provider.will(status, Retry_After="0")

    assert send("POST", provider.url, hosts={"api.example.com"}) == status
    assert provider.keys == [None]


def test_a_post_without_a_key_is_not_repeated_when_its_answer_is_lost(send, provider):
    provider.will(DROPPED)

    with pytest.raises(Lost):
        send("POST", provider.url, hosts={"api.example.com"})
    assert provider.keys == [None]


def test_a_key_that_is_no_promise_there_repeats_nothing(send, provider):
    """A key of the caller's own, on its way to a host that is not said to honour it."""
    provider.will(500)

    assert send("POST", provider.url, hosts={"api.example.com"}, headers={"Idempotency-Key": "mine"}) == 500
    assert provider.keys == ["mine"]


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_methods_that_may_be_repeated_need_no_key(send, provider, method):
    provider.will(503, DROPPED)

    assert send(method, provider.url) == 201
    assert provider.keys == [None, None, None]


def test_the_callers_own_key_is_kept(send, provider):
    provider.will(503)

    send("POST", provider.url, headers={"idempotency-key": "mine"})
    assert provider.keys == ["mine", "mine"]


def test_attempts_end(send, provider):
    provider.will(503, 503, 503, 503)

    assert send("POST", provider.url, retry=Retry(attempts=3, first_wait_seconds=0)) == 503
    assert len(provider.seen) == 3


def test_a_long_retry_after_is_the_callers_to_keep(send, provider):
    provider.will(503, Retry_After="3600")

    assert send("POST", provider.url) == 503
    assert len(provider.seen) == 1


def test_a_stream_is_sent_once(send, provider):
    provider.will(503)

    assert send("POST", provider.url, stream=[b"one", b"two"]) == 503
    assert provider.seen[0][3] == b"onetwo"
    assert len(provider.seen) == 1


def test_another_header_and_quotes(send):
    with opened("PayPal-Request-Id") as provider:
        send("POST", provider.url, header="PayPal-Request-Id", quoted=True)

    assert provider.keys[0] is not None
    assert provider.keys[0][0] == provider.keys[0][-1] == '"'


def test_a_block_has_one_key_however_often_its_code_sends(send, provider):
    """A retry loop of the caller's own, around the client's."""
    with same_key("order-17"):
        for _ in range(3):
            send("POST", provider.url, body={"amount": 200})
    with same_key():
        for _ in range(2):
            send("POST", provider.url, body={"amount": 200})

    assert provider.keys[:3] == ["order-17"] * 3
    assert provider.keys[3] == provider.keys[4] != "order-17"


def test_with_requests_a_block_may_send_its_files_again(provider):
    with same_key("order-17"), requests.Session() as session:
        session.mount("http://", KeyAdapter(hosts=HERE))
        for _ in range(2):
            session.post(provider.url, files={"scan": b"..."})
        with pytest.raises(Misconfigured, match="second request"):
            session.post(provider.url, files={"scan": b"another"})

    assert provider.keys == ["order-17"] * 2


def test_a_session_of_requests_may_be_pickled(provider):
    with requests.Session() as session:
        session.mount("http://", KeyAdapter(hosts=HERE, retry=QUICK))
        packed = pickle.dumps(session)
    provider.will(503)
    with pickle.loads(packed) as session:
        session.post(provider.url)

    assert provider.keys[0] == provider.keys[1]


# -- inside a guarded effect -------------------------------------------------------------------------------------------


def test_a_guarded_effect_sends_its_provider_key(send, provider):
    seen = []
    with Guard("memory://") as guard:

        @guard.once(name="charge", key="order_id", boundary=Keyed())
        def charge(order_id):
            seen.append(current().provider_key())
            provider.will(503)
            return send("POST", provider.url, body={"order": order_id})

        charge("o-1")

    assert provider.keys == seen * 2


@pytest.mark.parametrize("key", [None, "order-17"])
def test_a_block_around_an_effect_does_not_reach_into_it(send, provider, key):
    """After a crash nobody would know the block's key, and a lookup asks with the effect's."""
    with Guard("memory://") as guard:

        @guard.once(name="charge", key="order_id", boundary=Keyed())
        def charge(order_id):
            send("POST", provider.url, body={"order": order_id})
            return current().provider_key()

        with same_key(key):
            own = charge("o-1")
            send("POST", provider.url, body={"order": "another"})

    assert provider.keys[0] == own != provider.keys[1]


def test_the_innermost_says_which_key(send, provider):
    with Guard("memory://") as guard:

        @guard.once(name="mail", key="order_id", boundary=Keyed())
        def mail(order_id):
            send("POST", f"{provider.url}/mail")
            with same_key("by-hand"):
                send("POST", f"{provider.url}/copy")
            return current().provider_key()

        @guard.once(name="charge", key="order_id", boundary=Keyed())
        def charge(order_id):
            with same_key(label="capture"):
                mailed = mail(order_id)
                send("POST", f"{provider.url}/capture")
            return [mailed, "by-hand", current().provider_key("capture")]

        used = charge("o-1")

    assert provider.keys == used


def sent_again_by_httpx(library, transport):
    def both(url, around):
        with library.Client(transport=transport(hosts=HERE)) as client:
            request = client.build_request("POST", url, content=b"tick")
            for _ in range(2):
                around(lambda: client.send(request).status_code)

    return both


def sent_again_by_requests(url, around):
    with requests.Session() as session:
        session.mount("http://", KeyAdapter(hosts=HERE))
        request = session.prepare_request(requests.Request("POST", url, data=b"tick"))
        for _ in range(2):
            around(lambda: session.send(request).status_code)


@pytest.mark.parametrize(
    "both",
    [sent_again_by_httpx(httpx, KeyTransport), sent_again_by_httpx(httpx2, KeyTransport2), sent_again_by_requests],
    ids=["httpx", "httpx2", "requests"],
)
def test_a_request_that_is_sent_again_has_the_key_of_where_it_is_sent(both, provider):
    """An object that was made once is one request in a loop, and another one in each effect."""
    both(provider.url, lambda send: send())
    assert provider.keys[0] == provider.keys[1]

    own = []
    with Guard("memory://") as guard:

        def in_an_effect(send):
            def effect():
                own.append(current().provider_key())
                return send()

            guard.run("tick", effect, key=len(own), payload=None, boundary=Keyed())

        both(provider.url, in_an_effect)

    assert provider.keys[2:] == own
    assert own[0] != own[1]


def test_with_requests_an_answer_may_be_pickled(provider):
    with requests.Session() as session:
        session.mount("http://", KeyAdapter(hosts=HERE))
        answer = pickle.loads(pickle.dumps(session.post(provider.url)))

    assert answer.request.headers["Idempotency-Key"] == provider.keys[0]


def test_a_plain_thread_is_outside_of_the_effect(send, provider):
    """What a pool sends has a key that nobody finds again - unless it runs in a copy of the effect's context."""
    with Guard("memory://") as guard, ThreadPoolExecutor(1) as pool:

        @guard.once(name="charge", key="order_id", boundary=Keyed())
        def charge(order_id):
            pool.submit(send, "POST", provider.url).result()
            pool.submit(copy_context().run, send, "POST", provider.url).result()
            return current().provider_key()

        own = charge("o-1")

    assert provider.keys[0] != own
    assert provider.keys[1] == own


def test_a_second_request_of_an_effect_needs_a_label(send, provider):
    with Guard("memory://") as guard:

        @guard.once(name="charge", key="order_id", boundary=Keyed())
        def charge(order_id):
            send("POST", f"{provider.url}/authorize", body={"order": order_id})
            send("POST", f"{provider.url}/authorize", body={"order": order_id})  # the same: a retry
            with pytest.raises(Misconfigured, match=r"second request under one key.* with same_key\(label="):
                send("POST", f"{provider.url}/capture", body={"order": order_id})
            with pytest.raises(Misconfigured, match="second request under one key"):
                send("POST", f"{provider.url}/authorize", body={"order": "another"})
            with same_key(label="capture"):
                send("POST", f"{provider.url}/capture", body={"order": order_id})
            return current().provider_key(), current().provider_key("capture")

        plain, labelled = charge("o-1")

    assert provider.keys == [plain, plain, labelled]


def test_two_streams_to_one_address_are_one_request(send, provider):
    """Nobody can look into a stream before it is sent: a label tells a second one from the first."""
    with Guard("memory://") as guard:

        @guard.once(name="upload", key="order_id", boundary=Keyed())
        def upload(order_id):
            send("POST", provider.url, stream=[b"one"])
            send("POST", provider.url, stream=[b"two"])
            with same_key(label="two"):
                send("POST", provider.url, stream=[b"two"])
            return current().provider_key(), current().provider_key("two")

        plain, labelled = upload("o-1")

    assert provider.keys == [plain, plain, labelled]


def test_an_effect_does_not_wait_past_its_lease(send, provider):
    provider.will(503, Retry_After="4")
    with Guard("memory://", policy=Policy(lease=3)) as guard:

        @guard.once(name="charge", key="order_id", boundary=Keyed())
        def charge(order_id):
            return send("POST", provider.url)

        assert charge("o-1") == 503


def test_an_effect_that_lost_its_hold_sends_nothing_again(send, provider):
    provider.will(503, Retry_After="0")
    with Guard("memory://") as guard:

        @guard.once(name="charge", key="order_id", boundary=Keyed())
        def charge(order_id):
            current().renewed(None, at=0.0)  # as when the lease is to be renewed and is somebody else's
            return send("POST", provider.url)

        assert charge("o-1") == 503
    assert len(provider.seen) == 1


CHILD = """
import os, sys, httpx
from samekey import Guard, Keyed, Policy
from samekey.clients.httpx import KeyTransport
from samekey.clients.httpx2 import KeyTransport as KeyTransport2

url, die = sys.argv[1:]
guard = Guard("sqlite:///keys.db", policy=Policy(lease=0.5, patience=20))

@guard.once(name="charge", key="order_id", boundary=Keyed())
def charge(order_id):
    with httpx.Client(transport=KeyTransport(hosts={"127.0.0.1"})) as client:
        status = client.post(url, json={"order": order_id}).status_code
    if die == "die":
        os._exit(9)
    return status

assert charge("o-1") == 201
"""


def test_a_key_survives_the_process(provider, tmp_path):
    """The first process dies after its request; the second sends the same key, and the provider knows it."""
    (tmp_path / "charge.py").write_text(CHILD)

    def run(word):
        return subprocess.run([sys.executable, "charge.py", provider.url, word], cwd=tmp_path, timeout=60).returncode

    assert run("die") == 9
    assert run("live") == 0
    assert len(provider.keys) == 2
    assert provider.keys[0] == provider.keys[1]


# -- what the user says ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hosts",
    [
        (),
        "api.example.com",
        {"https://api.example.com"},
        {"localhost:8000"},
        {"[::1]:8000"},
        {""},
        {"."},
        {"api example"},
        {"b\u00fccher.example"},  # requests would ask for it by its other name
        None,
        b"api.example.com",
        {b"api.example.com"},
        ["api.example.com", None],
    ],
)
def test_hosts_are_names(hosts):
    with pytest.raises(Misconfigured, match="hosts="):
        KeyTransport(hosts=hosts)


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("API.example.com", "api.example.com"),
        ("api.example.com.", "api.example.com"),
        ("api.example.com", "api.example.com."),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "::1"),
        ("[::1]", "0:0:0:0:0:0:0:1"),
        ("fd00::A", "fd00::a"),
    ],
)
def test_a_host_is_known_by_every_spelling(said, asked):
    assert Rules({said}, None, KEY_HEADER, False).honours(asked)
    assert not Rules({said}, None, KEY_HEADER, False).honours(f"x{asked}")


@pytest.mark.parametrize("header", ["", "Idempotency Key", "Idempotency-Key:", "Schl\u00fcssel", "a\nb", None, b"x"])
def test_a_header_that_is_none_is_refused(header):
    """requests would send it, nobody would read it, and the retry would be a second effect."""
    for client in (KeyTransport, KeyAdapter, KeyMiddleware):
        with pytest.raises(Misconfigured, match="header="):
            client(hosts=HERE, header=header)


def test_with_requests_retries_of_urllib3_are_refused():
    """They would send a POST again, whatever its key."""
    with pytest.raises(Misconfigured, match=r"max_retries= .*retry=Retry"):
        KeyAdapter(hosts=HERE, max_retries=3)
