"""What HTTP means, without any framework: keys, bodies, answers, presets."""

from __future__ import annotations

import gzip
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from samekey import CONTENT, Atomic, Keyed, KeyMalformed, Misconfigured, Opaque
from samekey.core.canonical import canonical
from samekey.core.key import make_key
from samekey.http import Endpoint, Reply, Request, answer, rules
from samekey.http._body import digest, payload_of
from samekey.http._environ import headers_in
from samekey.http._kept import pack, unpack
from samekey.http._key import parse_key
from samekey.http._operation import operation_name
from samekey.http._problems import PROBLEMS
from samekey.http._remember import PRESETS, meaning_of
from samekey.http._rules import check_rules, choose
from samekey.http.endpoint import key_header, tenant_of

JSON = b"application/json"


# -- keys


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=255).filter(str.strip))
def test_every_printable_key_comes_back_through_its_header(key: str):
    assert parse_key(key_header(key)) == key


@given(st.binary(max_size=300))
def test_any_bytes_are_a_key_or_malformed(value: bytes):
    try:
        key = parse_key(value)
    except KeyMalformed:
        return
    assert key
    assert len(key) <= 255
    assert key.isascii()
    assert key.isprintable()


@pytest.mark.parametrize("value", [b'"k"', b"k", b' "k" ', b"k\t", b'"k";v=1', b'"k"; a; b="x;y"', b'"k";a=?1'])
def test_one_key_many_ways(value: bytes):
    assert parse_key(value) == "k"


@pytest.mark.parametrize("value", [b"k,k", b"k;a", b'"k" x', b'"k";', b'"k";=1', b'"\\n"', b'"k"k', b"(a)b, c", b'k"'])
def test_what_is_not_one_string_is_malformed(value: bytes):
    with pytest.raises(KeyMalformed):
        parse_key(value)


# -- headers


def test_headers_come_out_of_a_wsgi_environ():
    environ = {
        "REQUEST_METHOD": "POST",
        "HTTP_IDEMPOTENCY_KEY": "",
        "HTTP_X_NAME": "J\u00f6rg \u20ac",
        "CONTENT_TYPE": "text/plain",
        "CONTENT_LENGTH": "",
        "HTTP_CONTENT_TYPE": "application/json",  # a header spelled Content_Type is nobody's content type
        "wsgi.input": None,
    }

    assert headers_in(environ) == [
        (b"idempotency-key", b""),
        (b"x-name", b"J\xf6rg \\u20ac"),
        (b"content-type", b"text/plain"),
    ]


def test_a_header_that_comes_several_times_is_joined():
    request = Request("POST", "/", headers=[(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])

    assert (request.header("A"), request.header("b"), request.header("c")) == ("1, 3", "2", None)
    assert request.values(b"a") == [b"1", b"3"]


# -- bodies


def same(first: bytes, second: bytes, content_type: bytes = JSON, other_type: bytes | None = None) -> bool:
    return written(first, content_type) == written(second, other_type or content_type)


def written(body: bytes, content_type: bytes = JSON, content_encoding: bytes = b"", **beside: Any) -> bytes:
    payload, written = payload_of(body, content_type, content_encoding, **beside)

    assert written == canonical(payload)
    return written


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b'{"a":1,"b":2}', b'{ "b": 2, "a": 1.0 }'),
        (b'"\\u00e9"', '"é"'.encode()),
        (b"[1]", b"[1.0]"),
        (b'{"a":NaN}', b'{"a":NaN}'),  # no JSON: but the same bytes
        (b'{"a":1,"a":1}', b'{"a":1,"a":1}'),
        (b"{", b"{"),
    ],
)
def test_one_intent(first: bytes, second: bytes):
    assert same(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b'{"amount":1,"amount":100}', b'{"amount":100}'),  # which one counts is the reader's choice
        (b"0.1", b"0.1000000000000000055"),
        (b"1E400", b"1E401"),
        (b'{"a":1}'.decode().encode("utf-16"), b'{"a":1}'),
        (b"100000000000000000000", b"100000000000000000001"),
        (b'{"a":null}', b"{}"),
        (b"", b"null"),
        (b'{"1":"x"}', b'"x"'),  # members never look like what stands beside the body
        (b"[" * 100 + b"]" * 100, b"[" * 101 + b"]" * 101),
        (b'"\\ud800"', b'"\\udfff"'),
    ],
)
def test_two_intents(first: bytes, second: bytes):
    assert not same(first, second)


def test_the_media_type_belongs_to_the_intent():
    assert not same(b"{}", b"{}", JSON, b"application/merge-patch+json")
    assert not same(b"a=1", b"a=1", b"application/x-www-form-urlencoded", b"text/plain")
    assert same(b"{}", b"{}", JSON, b"Application/JSON; charset=utf-8")


@pytest.mark.parametrize("kind", [JSON, b"application/x-www-form-urlencoded", b"text/plain"])
def test_a_compressed_body_is_the_same_intent_as_the_plain_one(kind: bytes):
    plain, other = b'{"amount": 200}', b'{"amount": 500}'

    assert written(plain, kind, b"identity") == written(plain, kind)
    for encoding in (b"gzip", b"GZIP", b"x-gzip"):
        assert written(gzip.compress(plain), kind, encoding) == written(plain, kind)
        assert written(gzip.compress(plain, 1), kind, encoding) == written(gzip.compress(plain, 9), kind, encoding)
        assert written(gzip.compress(other), kind, encoding) != written(plain, kind)


def test_a_damaged_or_unknown_encoding_is_compared_as_bytes():
    whole = gzip.compress(b"{}")
    damaged = [b"{}", whole[:-1], whole + b"x", whole + whole, whole[:-4] + b"abcd", b""]

    for body in damaged:
        assert payload_of(body, JSON, b"gzip")[0] == {1: digest(body), 2: "application/json gzip"}
    for encoding in (b"br", b"gzip, gzip", b"gzip, identity"):
        assert payload_of(whole, JSON, encoding)[0] == {1: digest(whole), 2: f"application/json {encoding.decode()}"}


def test_a_compressed_body_above_the_limit_is_413():
    endpoint = Endpoint(boundary=Opaque(), single_tenant=True, body_max_bytes=1000)
    headers = [(b"content-encoding", b"gzip"), (b"content-type", JSON)]
    most, bomb = (gzip.compress(b'"' + b"x" * size + b'"') for size in (998, 999))
    fits = endpoint.asked(Request("POST", "/", headers=headers, body=most), "k", None)
    refused = endpoint.asked(Request("POST", "/", headers=headers, body=bomb), "k", None)

    assert not isinstance(fits, Reply)
    assert isinstance(refused, Reply)
    assert refused.status == 413


def test_forms_keep_the_order_of_equal_names():
    form = b"application/x-www-form-urlencoded"
    assert same(b"a=1&b=2&a=3", b"b=2&a=1&a=3", form)
    assert not same(b"a=1&a=3", b"a=3&a=1", form)
    assert not same(b"a=%ff", b"a=%fe", form)


TYPES = [
    JSON,
    b"application/problem+json",
    b"application/x-www-form-urlencoded",
    b"multipart/form-data; boundary=x",
    b"",
]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the first text drawn loads all of Unicode
@given(
    st.binary(max_size=40) | st.sampled_from([b"{}", b'{"1":2,"a":[1.50]}', b"a=1&b=2", b'{"a":1,"a":1}', b"[7]"]),
    st.sampled_from(TYPES),
    st.sampled_from([b"", b"gzip"]),
    st.dictionaries(st.sampled_from([3, 4, 5]), st.text(max_size=5) | st.lists(st.text(max_size=5))),
)
def test_the_bytes_of_a_payload_are_its_canonical_form(body: bytes, content_type: bytes, encoding: bytes, beside: Any):
    """They are put together from pieces, because the whole would be walked value by value."""
    assert written(body, content_type, encoding, beside=beside)


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ('Content-Disposition: form-data; name="at"', "at"),
        ('content-disposition:form-data; name="at"; filename="a.bin"\r\nContent-Type: text/plain', "at"),
        ('Content-Disposition: form-data; name="at"; name="amount"', None),
        ('Content-Disposition: form-data; name="at"\r\nContent-Disposition: form-data; name="amount"', None),
        ('Content-Disposition: form-data; filename="; name=\\"at\\""; name="amount"', None),
        ("Content-Disposition: form-data; name=at", None),
        ('Content-Disposition: form-data; name=""', None),
        ('Content-Disposition : form-data; name="at"', None),
        ("Content-Disposition: form-data; name*=utf-8''at", None),
        ("X-Nothing: at", None),
    ],
)
def test_a_part_has_a_name_if_everybody_reads_the_same_one(head: str, name: str | None):
    """What is ignored by its name must not be another field for the application."""
    body = f"--m\r\n{head}\r\n\r\nhi\r\n--m--\r\n".encode()
    payload, _ = payload_of(body, b"multipart/form-data; boundary=m")

    assert same(body, b"\r\n" + body, b"multipart/form-data; boundary=m")
    assert [key for key in payload if isinstance(key, str)] == [name or "\r\n".join(sorted(head.split("\r\n")))]


@pytest.mark.parametrize(("opens", "ends"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_a_body_as_deep_as_may_be_is_still_somebody_s_intent(opens: bytes, ends: bytes):
    for depth in (63, 64, 65):
        body = opens * depth + b"1" + ends * depth
        assert written(body) == written(body) != written(body.replace(b"1", b"2"))


# -- answers as they are kept

HEADERS = st.lists(
    st.tuples(
        st.from_regex(rb"[a-z][a-z0-9-]{0,20}", fullmatch=True),
        st.binary(max_size=50).filter(lambda value: b"\n" not in value and b"\r" not in value),
    ),
    max_size=5,
)


@given(st.integers(200, 599), HEADERS, st.binary(max_size=200))
def test_an_answer_comes_back_as_it_was_kept(status: int, headers: Any, body: bytes):
    kept = {name for name, _ in headers}
    assert unpack(pack(Reply(status, headers, body), kept)) == Reply(status, headers, body)


def test_a_part_of_something_says_which_part_it_is_again():
    """A 206 that does not is of no use to its client."""
    endpoint, part = Endpoint(boundary=Opaque(), single_tenant=True), (b"content-range", b"bytes 0-1/9")

    replayed = endpoint.replay(endpoint.packed(Reply(206, [part], b"ab"), 1 << 20), "k")

    assert (replayed.status, replayed.headers[0], replayed.body) == (206, part, b"ab")


def test_a_header_that_would_be_two_is_not_kept():
    broken = [(b"link", b"a\nset-cookie: b"), (b"etag", b"a\rb"), (b"vary", b"accept")]

    assert unpack(pack(Reply(200, broken, b""), {name for name, _ in broken})).headers == [(b"vary", b"accept")]
    assert unpack(answer(200, b"", **{"a\nb": "c", "etag": "d\n\ne"})).headers == [
        (b"content-type", b"application/json")
    ]


@pytest.mark.parametrize("damaged", [b"", b"200", b"abc\n\n", b"200\nno colon\n\n", b"20\n\n"])
def test_a_damaged_answer_is_not_guessed_at(damaged: bytes):
    with pytest.raises(ValueError, match="not a kept answer"):
        unpack(damaged)


def test_what_a_person_gave_as_the_result_is_answered_as_json():
    assert unpack({"id": "ch_1"}).body == b'{"id": "ch_1"}'
    assert unpack(answer(201, "x", content_type="text/plain", location="/a")) == Reply(
        201, [(b"content-type", b"text/plain"), (b"location", b"/a")], b"x"
    )


# -- operations


def test_an_operation_has_a_name_every_store_can_keep():
    assert operation_name("POST", "/orders/{}") == "POST /orders/{}"
    assert operation_name("POST", "/caf\xe9 \n") == "POST /caf%C3%A9%20%0A"
    first, second = operation_name("POST", "/" + "a" * 300), operation_name("POST", "/" + "a" * 301)
    assert len(first) <= 255
    assert first != second
    assert operation_name("POST", "/\ud800").isascii()


def test_a_name_of_its_own_makes_the_path_part_of_the_request():
    endpoint = Endpoint(boundary=Opaque(), single_tenant=True, operation="charge")
    one, two = (endpoint.asked(Request("POST", path), "k", None) for path in ("/v1/charges", "/v2/charges"))

    assert not isinstance(one, Reply)
    assert not isinstance(two, Reply)
    assert one.operation == two.operation == "charge"
    assert canonical(one.payload) != canonical(two.payload)


# -- presets


@dataclass
class Hold:
    """As much of a hold as the presets ask about."""

    decision: str | None
    reached_out: bool


@pytest.mark.parametrize(
    ("preset", "meanings"),
    [
        ("success_only", {200: "keep", 303: "keep", 400: "release", 429: "release", 500: "unknown", 503: "unknown"}),
        ("ietf_draft", {200: "keep", 303: "keep", 400: "keep", 429: "release", 500: "keep", 503: "unknown"}),
        ("stripe_v1", {200: "keep", 402: "keep", 400: "release", 401: "release", 429: "release", 500: "keep"}),
    ],
)
def test_what_each_preset_remembers(preset: str, meanings: dict[int, str]):
    none: frozenset[int] = frozenset()
    for status, meaning in meanings.items():
        assert meaning_of(status, preset, none, Hold("", reached_out=False)) == meaning


@given(st.sampled_from(PRESETS), st.integers(400, 599), st.booleans())
def test_whoever_reached_out_never_frees_the_key_by_a_status(preset: str, status: int, final: bool):
    """Only the handler's own word does."""
    finals = frozenset({status} if final else ())
    meaning = meaning_of(status, preset, finals, Hold("", reached_out=True))
    said = meaning_of(status, preset, finals, Hold("release", reached_out=True))

    assert meaning != "release"
    assert said == "release"


# -- rules


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "whose key"),
        ({"single_tenant": True, "principal": lambda request: "ann"}, "whose key"),
        ({"single_tenant": True, "remember": "everything"}, "remember= is one of"),
        ({"single_tenant": True, "remember": "stripe_v2"}, "declare boundary=Keyed"),
        ({"single_tenant": True, "policy": {"lease": 30}}, "policy= takes a Policy, not dict"),
        ({"single_tenant": True, "boundary": Atomic("db"), "connection": "db"}, "connection= takes a function"),
        ({"single_tenant": True, "keep_headers": ("Set-Cookie",)}, "set-cookie must never"),
        ({"single_tenant": True, "final": (200,)}, "final="),
        ({"single_tenant": True, "settle": "never"}, "settle="),
        ({"single_tenant": True, "connection": lambda request: None}, "Atomic and connection="),
        ({"single_tenant": True, "boundary": Atomic("db")}, "Atomic and connection="),
        ({"principal": "ann"}, "principal= takes a function"),
        # Each of these guarded nothing, or did nothing, and said nothing.
        ({"single_tenant": True, "methods": "POST"}, "methods= takes a collection"),
        ({"single_tenant": True, "methods": ()}, "methods= lists"),
        ({"single_tenant": True, "methods": ["PO ST"]}, "methods= lists"),
        ({"single_tenant": True, "methods": None}, "methods= takes a collection"),
        ({"single_tenant": True, "header": "Idempotency Key"}, "header= names a header"),
        ({"single_tenant": True, "header": ""}, "header= names a header"),
        ({"single_tenant": True, "header": "Schl\xfcssel"}, "header= names a header"),
        ({"single_tenant": True, "header": "Idempotency_Key"}, "WSGI reads _ and -"),
        ({"single_tenant": True, "vary_on": "Accept"}, "vary_on= takes a collection"),
        ({"single_tenant": True, "vary_on": ["X_Region"]}, "WSGI reads _ and -"),
        ({"single_tenant": True, "vary_on": [""]}, "vary_on= names a header"),
        ({"single_tenant": True, "keep_headers": "X-Total"}, "keep_headers= takes a collection"),
        ({"single_tenant": True, "keep_headers": ["X Total"]}, "keep_headers= names a header"),
        ({"single_tenant": True, "final": 402}, "final= takes a collection"),
        ({"single_tenant": True, "final": {"402"}}, "final= lists"),
        ({"single_tenant": True, "operation": ""}, "operation=: .* is empty"),
        ({"single_tenant": True, "operation": "x" * 300}, "operation=: .* 255 is the limit"),
        ({"single_tenant": True, "operation": 7}, "operation=: .* string"),
        ({"single_tenant": True, "aliases": "POST /charges"}, "aliases= takes a collection"),
        ({"single_tenant": True, "aliases": [""]}, "aliases=: .* is empty"),
        ({"single_tenant": True, "problems_at": None}, "problems_at="),
        ({"single_tenant": True, "body_max_bytes": "1MB"}, "body_max_bytes="),
        ({"single_tenant": True, "body_max_bytes": -1}, "body_max_bytes="),
    ],
)
def test_rules_that_cannot_work_are_told_at_once(given: dict[str, Any], told: str):
    with pytest.raises(Misconfigured, match=told):
        Endpoint(**{"boundary": Opaque(), **given})


async def chooses_too_late(request: Request) -> Endpoint | None:
    return None


class ChoosesTooLate:
    async def __call__(self, request: Request) -> Endpoint | None:
        return None


@pytest.mark.parametrize("chooser", [chooses_too_late, ChoosesTooLate()])
def test_whoever_chooses_rules_does_so_at_once(chooser: Any):
    with pytest.raises(Misconfigured, match="a plain function of the request"):
        check_rules(chooser)


def test_what_is_chosen_is_an_endpoint_or_none():
    endpoint, request = Endpoint(boundary=Opaque(), single_tenant=True), Request("POST", "/")

    assert choose(check_rules(lambda request: endpoint), request) is endpoint
    assert choose(check_rules(lambda request: None), request) is None
    with pytest.raises(Misconfigured, match="gives an Endpoint or None, not bool"):
        choose(check_rules(lambda request: True), request)


def test_rules_of_a_view_are_looked_at_where_they_are_declared():
    """Not by the first request, which would be answered with a 500."""
    with pytest.raises(Misconfigured, match=r"endpoint= takes an Endpoint, .* not Opaque"):
        rules(Opaque())  # type: ignore[arg-type]
    with pytest.raises(Misconfigured, match="or a function that chooses one, not the class Endpoint"):
        check_rules(Endpoint)  # its brackets forgotten


def test_rules_in_any_collection_and_any_case():
    endpoint = Endpoint(
        boundary=Opaque(), single_tenant=True, methods=["post"], vary_on={"Accept"}, keep_headers=["X-Total", "X_Old"],
        final=[402],
    )  # fmt: skip
    request = Request("POST", "/", headers=[(b"idempotency-key", b"k")])

    assert endpoint.opening(request) == "k"
    assert endpoint.final == {402}
    assert endpoint.packed(Reply(200, [(b"x-total", b"7"), (b"x-other", b"8")], b""), 99) == b"200\nx-total: 7\n\n"


def test_the_boundary_must_be_said():
    with pytest.raises(TypeError, match="boundary"):
        Endpoint(single_tenant=True)  # type: ignore[call-arg]
    with pytest.raises(Misconfigured, match="boundary="):
        Endpoint(boundary=None, single_tenant=True)  # type: ignore[arg-type]
    Endpoint(boundary=Keyed(), single_tenant=True)


@pytest.mark.parametrize("who", [None, False, "", "a\nb", "\ud800"])
def test_whoever_has_no_name_is_nobody(who: Any):
    endpoint = Endpoint(boundary=Opaque(), principal=lambda request: who)
    refused = endpoint.asked(Request("POST", "/"), "k", who)

    assert isinstance(refused, Reply)
    assert refused.status == 401


@pytest.mark.parametrize("one", ["x", "\xe9", "\U0001f511"])
def test_a_long_name_is_somebody_too(one: str):
    """Of a certificate, say: it is kept short, and still nobody else's."""
    endpoint = Endpoint(boundary=Opaque(), principal=lambda request: "")
    asked = [endpoint.asked(Request("POST", "/"), "k", one * many) for many in (300, 301, 300)]
    tenants = [one.tenant or "" for one in asked if not isinstance(one, Reply)]

    assert [len(tenants), tenants[0] == tenants[2], tenants[0] == tenants[1]] == [3, True, False]
    assert all(make_key("POST /", "k", tenant) for tenant in tenants)


class Awaitable:
    def __await__(self) -> Any:
        raise AssertionError


@pytest.mark.parametrize("who", [1.5, True, object(), b"ann", Awaitable()])
def test_what_is_no_name_at_all_is_a_mistake(who: Any):
    with pytest.raises(Misconfigured, match="principal= gives"):
        Endpoint(boundary=Opaque(), principal=lambda request: who).asked(Request("POST", "/"), "k", who)


def test_a_caller_may_have_a_name_of_several_parts():
    """A tenant and a user of it; no two pairs become one name."""
    names = [tenant_of(who) for who in (("a", "b"), ("a/b", "c"), ("a", "b/c"), ("a", 7), ("a\\", "b"))]

    assert len({*names} - {None}) == 5, names
    assert tenant_of(("a", 7)) == tenant_of(["a", "7"])
    assert [tenant_of(()), tenant_of(("a", ""))] == [None, None]
    with pytest.raises(Misconfigured, match="principal= gives"):
        tenant_of(("a", None))


def test_every_problem_has_its_heading():
    page = (Path(__file__).parents[2] / "docs" / "problems.md").read_text(encoding="utf-8")
    headings = [line[3:] for line in page.splitlines() if line.startswith("## ")]

    assert headings == [problem.name for problem in PROBLEMS]
    assert all(f"`{problem.status}`" in page.split(f"## {problem.name}\n")[1].split("\n## ")[0] for problem in PROBLEMS)


def test_a_problem_type_is_the_address_of_its_heading():
    site = tomllib.loads((Path(__file__).parents[2] / "zensical.toml").read_text(encoding="utf-8"))["project"]
    refused = Endpoint(boundary=Opaque(), single_tenant=True, required=True).opening(Request("POST", "/"))

    assert isinstance(refused, Reply)
    assert json.loads(refused.body or b"")["type"] == f"{site['site_url']}problems/#key-missing"


def test_problem_types_may_be_addresses_of_another_page():
    endpoint = Endpoint(boundary=Opaque(), single_tenant=True, required=True, problems_at="https://api.example/p#")
    refused = endpoint.opening(Request("POST", "/"))

    assert isinstance(refused, Reply)
    assert json.loads(refused.body or b"")["type"] == "https://api.example/p#key-missing"


def test_rules_for_a_key_that_cannot_work_are_refused():
    async def later(request: Request) -> str:
        return "k"

    wrong: list[tuple[dict[str, Any], str]] = [
        ({"key": "order_id"}, "CONTENT or a function"),
        ({"key": later}, "not an async one"),
        ({"key": CONTENT, "required": True}, "no header is read"),
        ({"key": CONTENT, "strict": True}, "no header is read"),
        ({"attributes": {"a": "b"}}, "function of the request"),
    ]
    for given_rules, why in wrong:
        with pytest.raises(Misconfigured, match=why):
            Endpoint(boundary=Opaque(), single_tenant=True, **given_rules)
