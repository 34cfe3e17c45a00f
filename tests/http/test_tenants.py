"""Two tenants, any keys, paths and bodies: an answer written for one is never seen by the other."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samekey import AsyncGuard, Guard, Opaque
from samekey.http import Endpoint, Request
from samekey.http._operation import operation_name, short
from samekey.http.asgi import SamekeyMiddleware as AsgiMiddleware
from samekey.http.endpoint import tenant_of
from samekey.http.wsgi import SamekeyMiddleware as WsgiMiddleware
from samekey.testing.http import Called, Said
from samekey.testing.http.drivers import Got, Sent, WsgiDriver, asgi_send
from tests.http.apps import bare_wsgi

LONG = "a" * 300
KEPT_FOR_LONG = tenant_of(LONG)  # what a record keeps of it: a name that somebody else may choose

# Few enough to collide often, odd enough to run together if parts were only joined.
NAMES = st.sampled_from(["ann", "bob", "a", "ab", "a/b", "b", "ann bob", '"ann"', "POST /x", LONG, KEPT_FOR_LONG])
KEYS = st.sampled_from(["k", "b", "/b", '"k"', "ann", "a/b", "x y", "%2F"])
PATHS = st.sampled_from(["/x", "/x/", "/a/b", "/a", "/b"])
BODIES = st.sampled_from([b"{}", b'{"a":1}', b"", b"[1]"])
REQUESTS = st.lists(st.tuples(NAMES, KEYS, PATHS, BODIES, st.sampled_from(["", "q=1"])), min_size=2, max_size=12)


def whose(request: Request) -> str | None:
    return request.header("x-user")


class Witness:
    """Answers with the name of whoever asked - which the body of a replay then carries."""

    def __init__(self) -> None:
        self.now = ""

    def __call__(self, called: Called) -> Said:
        return Said(200, json.dumps({"for": self.now}).encode())


def sent(name: str, key: str, path: str, body: bytes, query: str) -> Sent:
    bare = key if key.startswith('"') or " " not in key else f'"{key}"'
    headers = (("Idempotency-Key", bare), ("X-User", name), ("Content-Type", "application/json"))
    return Sent("POST", path, query, headers, body)


@given(REQUESTS)
@settings(max_examples=150, deadline=None)
def test_no_answer_crosses_over_wsgi(requests: Any):
    witness = Witness()
    endpoint = Endpoint(boundary=Opaque(), principal=whose)
    driver = WsgiDriver(WsgiMiddleware(bare_wsgi(witness), guard=Guard("memory://"), endpoint=endpoint))
    for one in requests:
        witness.now = one[0]
        got = driver.send(sent(*one))
        assert got.status in (200, 422)
        if got.status == 200:
            assert json.loads(got.body) == {"for": one[0]}
        else:
            assert b'"for"' not in got.body


@given(REQUESTS)
@settings(max_examples=60, deadline=None)
def test_no_answer_crosses_over_asgi(requests: Any):
    """All at once: waiting for somebody else's answer must not cross either."""

    async def answer_with_the_name(scope: Any, receive: Any, send: Any) -> None:
        name = dict(scope["headers"])[b"x-user"].decode()
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps({"for": name}).encode()})

    async def main() -> list[Got]:
        endpoint = Endpoint(boundary=Opaque(), principal=whose)
        guarded = AsgiMiddleware(answer_with_the_name, guard=AsyncGuard("memory://"), endpoint=endpoint)
        return await asyncio.gather(*(asgi_send(guarded, sent(*one)) for one in requests))

    for one, got in zip(requests, asyncio.run(main()), strict=True):
        assert got.status in (200, 422)
        if got.status == 200:
            assert json.loads(got.body) == {"for": one[0]}


def test_whoever_lost_their_rights_gets_no_replay_of_their_own_answer():
    known = {"ann"}
    endpoint = Endpoint(
        boundary=Opaque(), principal=lambda request: name if (name := whose(request)) in known else None
    )
    driver = WsgiDriver(WsgiMiddleware(bare_wsgi(Witness()), guard=Guard("memory://"), endpoint=endpoint))
    mine = sent("ann", "k", "/x", b"{}", "")
    before = [driver.send(mine).status, driver.send(mine).header("idempotent-replayed")]
    known.clear()
    after = driver.send(mine)

    assert before == [200, "true"]
    assert (after.status, b'"for"' in after.body) == (401, False)


def test_nobody_becomes_another_by_taking_the_name_that_is_kept_of_a_long_one():
    """A name too long for a record is kept with a digest; whoever is called that is somebody else."""
    assert KEPT_FOR_LONG != LONG
    assert tenant_of(KEPT_FOR_LONG) not in (KEPT_FOR_LONG, LONG)
    assert tenant_of(tenant_of(KEPT_FOR_LONG)) != tenant_of(KEPT_FOR_LONG)
    long = operation_name("POST", "/" + LONG)
    assert operation_name("POST", long.removeprefix("POST ")) != long


@pytest.mark.parametrize(
    "name", ["Ann\xa0Smith", "\u0646\u06cc\u0645\u200c\u0641\u0627\u0635\u0644\u0647", "\u00ad" * 200], ids=ascii
)
def test_a_name_that_is_written_with_joiners_and_odd_spaces_is_somebody(name):
    """Told to authenticate, somebody who has would never be served with a key."""
    assert tenant_of(name) == short(name)


@pytest.mark.parametrize("name", ["", "a\n", "a\x00", "a\x85", "\ud800", "\x00" * 300], ids=ascii)
def test_a_name_that_no_record_could_keep_is_nobody_s(name):
    assert tenant_of(name) is None
