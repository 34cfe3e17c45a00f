"""Which requests are one intent: keys, bodies, paths, callers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from samekey import CONTENT, AsyncGuard, Guard, Opaque
from samekey.http import Endpoint, Request
from samekey.testing.http.scene import Scene, Shop, problem, same_answer

FORM = "application/x-www-form-urlencoded"
OLD, NEW = "the secret of yesterday", "the secret of today"


class Identity(Scene):
    def test_a_retry_replays_and_nothing_runs_again(self) -> None:
        """C47: one key twice in sequence is one effect and one answer."""
        site, shop = self.open_shop()
        first, second = site.post(), site.post()

        assert (first.status, first.body, shop.count) == (201, b'{"charge": 1}', 1)
        assert first.header("idempotency-key") == '"k-1"'
        same_answer(first, second)

    def test_two_keys_are_two_effects(self) -> None:
        site, _ = self.open_shop()

        assert [site.post(key=key).body for key in ("a", "b")] == [b'{"charge": 1}', b'{"charge": 2}']

    def test_another_body_is_refused_and_names_what_differs(self) -> None:
        """C35: the same key with another body neither runs nor replays."""
        site, shop = self.open_shop()
        site.post(body={"amount": 200, "currency": "EUR"})
        other = site.post(body={"amount": 500, "currency": "EUR"})

        assert (other.status, problem(other), shop.count) == (422, "key-reused", 1)
        assert json.loads(other.body)["fields"] == ["amount"]
        assert other.header("idempotent-replayed") is None

    def test_another_path_is_another_operation(self) -> None:
        """C36: "refund" never gets the answer of "charge"."""
        site, _ = self.open_shop()

        assert [site.post(path).body for path in ("/charges", "/refunds")] == [b'{"charge": 1}', b'{"charge": 2}']

    def test_another_caller_is_isolated(self) -> None:
        """C37: two tenants may use one key; neither sees the other's answer."""
        site, _ = self.open_shop()

        assert [site.post(who=who).body for who in ("ann.1", "bob.1")] == [b'{"charge": 1}', b'{"charge": 2}']

    def test_without_a_key_header_the_content_may_be_the_key(self) -> None:
        """For senders that have no key: equal requests of one caller are one, and a header that is sent is not read."""
        site, shop = self.open_shop(key=CONTENT, ignore=["sent_at"])
        first = site.post(key=None, body={"amount": 200, "sent_at": 1})
        same_answer(first, site.post(key="k-2", body={"sent_at": 2, "amount": 200}))
        others = [
            site.post(key=None, body={"amount": 500}),
            site.post("/refunds", key=None, body={"amount": 200}),
            site.post(key=None, body={"amount": 200}, query="to=bob"),
            site.post(key=None, body={"amount": 200}, who="bob.1"),
        ]

        assert (first.status, first.header("idempotency-key")) == (201, None)
        assert [got.body for got in others] == [b'{"charge": %d}' % number for number in (2, 3, 4, 5)]
        assert site.post(key=None, body=b"x" * (1 << 21)).status == 413
        assert shop.count == 5

    def test_a_function_of_the_request_may_give_the_key(self) -> None:
        """The sender's own number is the key: a different body under it is refused, and so is a request without it."""

        def number(request: Request) -> Any:
            sent = json.loads(request.body)
            return CONTENT if "amount" not in sent else (request.header("x-batch"), sent["number"])

        site, shop = self.open_shop(key=number)
        batch = [("X-Batch", "b-\u00e9-7")]
        first = site.post(key=None, body={"number": 1, "amount": 200}, headers=batch)
        same_answer(first, site.post(key=None, body={"amount": 200, "number": 1}, headers=batch))
        other = site.post(key=None, body={"number": 1, "amount": 500}, headers=batch)

        assert (other.status, problem(other), shop.count) == (422, "key-reused", 1)
        same_answer(site.post(key=None, body={"ping": 1}), site.post(key=None, body={"ping": 1}))
        for body in (b"no JSON", {"amount": 200}, {"number": None, "amount": 200}):
            assert problem(site.post(key=None, body=body, headers=batch)) == "key-missing"
        assert problem(site.post(key=None, body={"number": [1], "amount": 2}, headers=batch)) == "key-malformed"
        assert shop.count == 2

    def test_the_ids_of_a_request_are_kept_with_its_record(self) -> None:
        """By them a person finds the record of a request. They never decide whether it is the same request."""
        site, shop = self.open_shop(attributes=lambda request: {"client": request.header("user-agent"), "region": "eu"})
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        ids = (("X-Request-Id", "req-7"), ("traceparent", f"00-{trace}-00f067aa0ba902b7-01"), ("User-Agent", "x" * 300))
        same_answer(site.post(headers=ids), site.post(headers=[("X-Request-Id", "req-8"), ("traceparent", "none")]))
        record = site.record()

        assert shop.count == 1
        assert record is not None
        assert dict(record.attributes) == {
            "client": "x" * 256, "region": "eu", "request_id": "req-7", "trace_id": trace
        }  # fmt: skip

    def test_a_caller_without_a_name_is_a_mistake_and_not_a_stranger(self) -> None:
        """A user object, or a coroutine that is not awaited: every caller would get 401 without a reason."""

        async def later(request: Request) -> Any:
            return object()

        for principal in (lambda request: object(), lambda request: True, later):
            site, shop = self.open_shop(principal=principal)
            got = site.post()

            assert (got.status, shop.count) == (500, 0)
        for unknown in (None, False, ""):
            site, _ = self.open_shop(principal=lambda request, unknown=unknown: unknown)
            assert (site.post().status, problem(site.post())) == (401, "no-principal")

    def test_a_new_token_of_the_same_caller_replays(self) -> None:
        """C39: a token that was refreshed between two tries is still the same caller."""
        site, shop = self.open_shop()

        same_answer(site.post(who="ann.1"), site.post(who="ann.2"))
        assert shop.count == 1

    def test_no_caller_is_answered_before_it_is_known(self) -> None:
        """Authentication comes before a replay, and without it nothing runs."""
        site, shop = self.open_shop()
        before = site.post(who=None)
        site.post()
        after = site.post(who="mallory.1")

        assert [problem(before), problem(after), shop.count] == ["no-principal", "no-principal", 1]
        assert (before.status, after.status) == (401, 401)

    def test_headers_that_change_with_every_try_change_nothing(self) -> None:
        """C40: a new traceparent or User-Agent is the same request."""
        site, _ = self.open_shop()
        first = site.post(headers=[("Traceparent", "00-1-1-01"), ("User-Agent", "a")])

        same_answer(first, site.post(headers=[("Traceparent", "00-2-2-01"), ("User-Agent", "b")]))

    def test_control_headers_of_a_client_are_ignored(self) -> None:
        site, shop = self.open_shop()
        got = site.post(headers=[("Idempotent-Replayed", "true"), ("Idempotency-Stored", "true")])

        assert (got.status, got.header("idempotent-replayed"), shop.count) == (201, None, 1)

    def test_json_that_was_written_anew_is_the_same_request(self) -> None:
        """C41: order of names, white space, 1 and 1.0, escapes."""
        site, _ = self.open_shop()
        first = site.post(body=b'{"amount": 1, "note": "caf\\u00e9", "n": [1, 2]}')

        same_answer(first, site.post(body='{"n":[1,2], "note":"café","amount":1.0}'.encode()))

    def test_a_new_secret_still_knows_the_old_requests(self) -> None:
        """C52: fingerprints under the secret of yesterday's deploy are compared under it."""
        shop = Shop()
        store = self.make_guard().store
        kind = AsyncGuard if self.protocol == "asgi" else Guard
        before = self.open(shop, guard=kind(store, secret=(OLD,)))
        after = self.open(shop, guard=kind(store, secret=(NEW, OLD)))
        first = before.post()

        same_answer(first, after.post())
        assert (problem(after.post(body={"amount": 500})), shop.count) == ("key-reused", 1)

    def test_a_form_in_another_order_is_the_same_request(self) -> None:
        site, _ = self.open_shop()
        first = site.post(body=b"amount=200&note=a+b", content_type=FORM)

        same_answer(first, site.post(body=b"note=a%20b&amount=200", content_type=FORM))
        assert problem(site.post(body=b"note=a%20b&amount=500", content_type=FORM)) == "key-reused"

    def test_multipart_with_another_boundary_is_the_same_request(self) -> None:
        def parts(mark: str, amount: str) -> bytes:
            return (
                f'--{mark}\r\nContent-Disposition: form-data; name="amount"\r\n\r\n{amount}\r\n'
                f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n'
                f"Content-Type: application/octet-stream\r\n\r\n\0\1\2\r\n--{mark}--\r\n"
            ).encode()

        site, shop = self.open_shop()
        first = site.post(body=parts("aaa", "200"), content_type="multipart/form-data; boundary=aaa")
        again = site.post(body=parts("bbbb", "200"), content_type='multipart/form-data; boundary="bbbb"')
        other = site.post(body=parts("aaa", "500"), content_type="multipart/form-data; boundary=aaa")

        same_answer(first, again)
        assert (problem(other), shop.count) == ("key-reused", 1)

    def test_what_changes_with_every_try_may_stand_in_any_form(self) -> None:
        """`ignore=` names fields of JSON, of a form, and of multipart; and the problem names the field that differs."""

        def multipart(amount: int, at: int) -> bytes:
            named = (("amount", amount), ("client_ts", at))
            parts = (
                f'--m\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in named
            )
            return ("".join(parts) + "--m--\r\n").encode()

        kinds: list[tuple[str, Callable[[int, int], bytes]]] = [
            ("application/json", lambda amount, at: b'{"amount": %d, "client_ts": %d}' % (amount, at)),
            (FORM, lambda amount, at: b"amount=%d&client_ts=%d" % (amount, at)),
            ("multipart/form-data; boundary=m", multipart),
        ]
        for kind, made in kinds:
            site, shop = self.open_shop(ignore={"client_ts"})
            first, again, other = (site.post(body=made(*one), content_type=kind) for one in ((1, 1), (1, 2), (2, 3)))

            same_answer(first, again)
            assert (problem(other), json.loads(other.body)["fields"], shop.count) == ("key-reused", ["amount"], 1)

    def test_what_one_head_of_a_part_says_is_not_what_two_say(self) -> None:
        """Headers of a part that are joined stay different from one header with the same text."""

        def part(between: str) -> bytes:
            head = f'Content-Disposition: form-data; name="x"{between}Content-Type: text/plain'
            return f"--m\r\n{head}\r\n\r\nhi\r\n--m--\r\n".encode()

        site, _ = self.open_shop()
        for number, between in enumerate(("; ", "\n", "\r", ", ")):
            keyed: Any = {"key": f"k-{number}", "content_type": "multipart/form-data; boundary=m"}
            assert site.post(body=part("\r\n"), **keyed).status == 201
            assert problem(site.post(body=part(between), **keyed)) == "key-reused"

    def test_other_bytes_are_compared_as_they_are(self) -> None:
        site, _ = self.open_shop()
        first = site.post(body=b"\x00\xff", content_type="application/octet-stream")

        same_answer(first, site.post(body=b"\x00\xff", content_type="application/octet-stream"))
        assert problem(site.post(body=b"\x00\xfe", content_type="application/octet-stream")) == "key-reused"

    def test_another_query_is_another_request(self) -> None:
        site, _ = self.open_shop()
        first = site.post(query="capture=1")

        same_answer(first, site.post(query="capture=1"))
        assert problem(site.post(query="capture=0")) == "key-reused"

    def test_chosen_headers_belong_to_the_request(self) -> None:
        """`vary_on`: an answer in French is not replayed to a German."""
        site, _ = self.open_shop(vary_on=("Accept-Language",))
        site.post(headers=[("Accept-Language", "fr")])

        assert problem(site.post(headers=[("Accept-Language", "de")])) == "key-reused"

    def test_two_equal_requests_without_a_key_both_run(self) -> None:
        """C49: two honest purchases are two."""
        site, _ = self.open_shop()

        assert [site.post(key=None).body, site.post(key=None).body] == [b'{"charge": 1}', b'{"charge": 2}']

    def test_a_missing_key_is_refused_where_one_is_required(self) -> None:
        """C48: nor does an empty one run unguarded, required or not."""
        shop = Shop()
        got, empty = self.open(shop, required=True).post(key=None), self.open(shop).post(key="")

        assert (got.status, problem(got)) == (400, "key-missing")
        assert (empty.status, problem(empty), shop.count) == (400, "key-malformed", 0)

    def test_quoted_and_bare_are_one_key(self) -> None:
        """C50: the draft quotes, nearly every client does not."""
        site, shop = self.open_shop()

        same_answer(site.post(key='"k-9"'), site.post(key="k-9"))
        assert shop.count == 1

    def test_strict_wants_a_quoted_string(self) -> None:
        site, shop = self.open_shop(strict=True)

        assert (problem(site.post(key="k")), site.post(key='"k"').status, shop.count) == ("key-malformed", 201, 1)

    def test_two_keys_in_one_request_are_refused(self) -> None:
        """Repeated, or joined by a proxy on the way."""
        site, shop = self.open_shop()
        for key in (("k", "k"), ("a", "b"), ("k, k",), ('"a", "b"',)):
            got = site.post(key=key)
            assert (got.status, problem(got)) == (400, "key-malformed"), key
        assert shop.count == 0

    def test_a_malformed_key_is_refused_before_anything_is_looked_up(self) -> None:
        site, shop = self.open_shop()
        badly_written = ("", '""', '"', '"a', 'a"b', "a b", "a;b=1")
        too_long = ("k" * 256, f'"{"k" * 256}"')
        not_printable = ("\x7f", "caf\xe9", '"a\x01"')
        for key in (*badly_written, *too_long, *not_printable):
            got = site.post(key=key)
            assert (got.status, problem(got)) == (400, "key-malformed"), key
        assert shop.count == 0
        assert site.post(key="k" * 255).status == 201

    def test_keys_that_look_like_code_are_only_keys(self) -> None:
        site, shop = self.open_shop()
        hostile = ("'OR'1'='1", "{tag}:1", "../../etc/passwd", "%00", "$(id)", "\\'--", "${jndi:x}", "<script>")
        for number, key in enumerate(hostile, 1):
            same_answer(site.post(key=key), site.post(key=key))
            assert shop.count == number

    def test_rules_may_differ_from_route_to_route(self) -> None:
        """A function of the request chooses; None leaves a request alone."""
        strict = Endpoint(boundary=Opaque(), single_tenant=True, required=True)
        shop = Shop()

        def choose(request: Request) -> Endpoint | None:
            return strict if request.path.startswith("/payments") else None

        site = self.open(shop, chosen=choose)
        assert [site.post("/payments", key=None).status, site.post("/free").status] == [400, 201]
        assert site.post("/free").body == b'{"charge": 2}'
        same_answer(site.post("/payments"), site.post("/payments"))
