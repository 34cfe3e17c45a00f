"""What is replayed, and what is remembered."""

from __future__ import annotations

import pickle
from typing import Any

from samekey import Asks, Happened, Keyed, NotDone, Policy, Refused, Repeatable, State, current, notes_of
from samekey.http import Reply, answer
from samekey.testing.http.scene import SMALL, TEXT, Called, Said, Scene, Shop, problem, same_answer

SUCCESSES = (
    Said(200, b"{}", (("Content-Type", "application/json; charset=utf-8"),)),
    Said(201, b'{"id": 1}', (("Content-Type", "application/json"), ("Location", "/charges/1"))),
    Said(202, b"", TEXT),
    Said(204, b"", ()),
    Said(200, b"<p>done</p>", (("Content-Type", "text/html"),)),
    Said(200, bytes(range(256)), (("Content-Type", "application/pdf"),)),
    Said(303, b"", (("Content-Type", "text/plain"), ("Location", "/done"))),
)


EXPLODED: list[str] = []


class _Bomb:
    """Loading it leaves a mark."""

    def __reduce__(self) -> Any:
        return _explode, ("boom",)


def _explode(text: str) -> None:
    EXPLODED.append(text)


class Answers(Scene):
    def test_status_bytes_and_safe_headers_are_the_same(self) -> None:
        """C55: not one byte of the body is written anew, and Location is not lost."""
        body = b'{"amount": 1.10,  "z":1,"a":2}'
        headers = (("Content-Type", "application/json"), ("Location", "/charges/7"), ("ETag", '"v1"'), ("X-Run", "1"))
        site = self.open(Shop(Said(201, body, (*headers, ("Content-Length", str(len(body)))))))
        first, second = site.post(), site.post()

        same_answer(first, second)
        assert [second.header(name) for name in ("location", "etag", "x-run")] == ["/charges/7", '"v1"', None]
        assert first.header("x-run") == "1"
        assert second.header("content-length") == str(len(second.body))

    def test_what_a_handler_notes_is_in_the_record_and_not_in_the_answer(self) -> None:
        """By its notes a person finds the order of a customer, also where the answer was an error."""

        def handle(called: Called) -> Said:
            current().note(amount_minor=200, currency="EUR", provider_ref=f"ch-{called.path}")
            return Said(500 if called.path == "/refunds" else 201)

        site = self.open(handle)
        assert [site.post(path).status for path in ("/charges", "/refunds")] == [201, 500]

        for path in ("/charges", "/refunds"):
            record = site.record(operation=f"POST {path}")
            assert record is not None
            assert notes_of(record) == {"amount_minor": 200, "currency": "EUR", "provider_ref": f"ch-{path}"}

    def test_a_redactor_decides_what_is_kept_of_an_answer(self) -> None:
        """The first client gets the answer as it was made; replays, also those of a refusal, what may be kept of it."""

        def redact(reply: Reply) -> Reply:
            return reply._replace(body=(reply.body or b"").replace(b"4111", b"****"))

        paid, refused = Said(201, b'{"card": "4111"}'), Said(402, b'{"no": "4111"}')
        site = self.open(Shop(paid, refused), final=[402], policy=Policy(redact=redact))

        for key, status, first, again in (
            ("k-1", 201, paid.body, b'{"card": "****"}'),
            ("k-2", 402, refused.body, b'{"no": "****"}'),
        ):
            got, replayed = site.post(key=key), site.post(key=key)
            assert (got.status, got.body, got.header("idempotent-replayed")) == (status, first, None)
            assert (replayed.status, replayed.body, replayed.header("idempotent-replayed")) == (status, again, "true")
            record = site.record(key)
            assert record is not None
            assert b"4111" not in (record.result or b"")

    def test_an_answer_that_a_redactor_cannot_judge_is_not_kept(self) -> None:
        site = self.open(Shop(Said(201), Said(402)), final=[402], policy=Policy(redact=lambda reply: reply.body))

        for key, status in (("k-1", 201), ("k-2", 402)):
            assert site.post(key=key).status == status
            assert problem(site.post(key=key)) == "result-not-kept"

    def test_headers_may_be_chosen_to_be_kept(self) -> None:
        site = self.open(Shop(Said(headers=(("X-Charge", "ch_1"),))), keep_headers=("X-Charge",))
        site.post()

        assert site.post().header("x-charge") == "ch_1"

    def test_any_success_is_kept(self) -> None:
        """C56, C57, C58, C65: with a charset, empty, 201, HTML, binary, a redirect."""
        for success in SUCCESSES:
            site, shop = self.open_shop(success)
            first, second = site.post(), site.post()

            same_answer(first, second)
            assert (first.status, shop.count) == (success.status, 1)
            assert second.header("content-type") == first.header("content-type")
            for name, value in success.headers:
                assert (second.header(name) or "").startswith(value)

    def test_cookies_are_for_the_first_caller_alone(self) -> None:
        """C61: never replayed; and an answer with one is kept all the same."""
        cookies = (("Set-Cookie", "session=s3cret"), ("Set-Cookie", "theme=dark"))
        site, shop = self.open_shop(Said(headers=(("Content-Type", "application/json"), *cookies)))
        first, second = site.post(), site.post()

        same_answer(first, second)
        assert "session=s3cret" in (first.header("set-cookie") or "")
        assert "theme=dark" in (first.header("set-cookie") or "")
        assert (second.header("set-cookie"), shop.count) == (None, 1)
        record = site.record()
        assert record is not None and b"s3cret" not in (record.result or b"")

    def test_a_kept_answer_is_read_and_never_loaded(self) -> None:
        """C66: a writer to the store must not run code here. An unreadable record counts as done and not kept."""
        site, shop = self.open_shop()
        site.plant(pickle.dumps(_Bomb()))
        got = site.post()

        assert (got.status, problem(got), shop.count, EXPLODED) == (409, "result-not-kept", 0, [])

    def test_a_body_above_the_limit_is_refused_not_let_through(self) -> None:
        """C62: with a key 413; without one it is none of our business."""
        site, shop = self.open_shop(body_max_bytes=100)
        large = b'{"note": "' + b"x" * 200 + b'"}'
        got = site.post(body=large)

        assert (got.status, problem(got), shop.count) == (413, "body-too-large", 0)
        assert (site.post(body=large, key=None).status, shop.count) == (201, 1)

    def test_a_body_without_a_length_is_read_to_its_end_or_refused(self) -> None:
        """Chunked: never cut at the limit, and never taken for an empty one, so no other body is taken for it."""
        site, shop = self.open_shop(body_max_bytes=100)
        large, whole = b'{"note": "' + b"x" * 200 + b'"}', b'{"amount": 200}'
        refused = [site.post(body=large, chunked=True), site.post(body=large[:-2] + b'y"}', chunked=True)]

        assert shop.count == 0
        assert {problem(one) for one in refused} <= {"body-too-large", "body-incomplete"}
        first, other = site.post(body=whole, chunked=True), site.post(body=b'{"amount": 500}', chunked=True)
        assert [called.body for called in shop.effects] == ([whole] if first.status == 201 else [])
        assert (first.status, other.status) in ((201, 422), (400, 400))
        unended = site.post(body=whole, key="k-2", chunked=True, unended=True)
        assert unended.status == 400 or (unended.status, shop.effects[-1].body) == (201, whole)

    def test_a_key_on_other_methods_is_harmless(self) -> None:
        """C69: what is idempotent by itself is left alone, whatever its headers say."""
        for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"):
            site, shop = self.open_shop()
            first, second = site.post(method=method, body=b""), site.post(method=method, body=b"", key=("a", "b"))

            assert first.status == second.status < 300
            assert second.header("idempotent-replayed") is None
            assert shop.count in ((0, 2) if method == "OPTIONS" else (2,))  # some frameworks answer OPTIONS themselves

    def test_patch_is_guarded_too(self) -> None:
        site, _ = self.open_shop()

        same_answer(site.post(method="PATCH"), site.post(method="PATCH"))

    # -- streams

    def test_a_stream_is_kept_whole(self) -> None:
        site, _ = self.open_shop(Said(200, [b"one ", b"two ", b"three"], TEXT))
        first, second = site.post(), site.post()

        assert first.body == b"one two three"
        same_answer(first, second)

    def test_a_stream_too_long_to_keep_is_done_once(self) -> None:
        """The answer goes out whole and is marked as not kept; a retry gets a problem, and nothing runs."""
        site, shop = self.open_shop(Said(200, [b"x" * 600, b"y" * 600, b"z"], TEXT), policy=SMALL)
        first, second = site.post(), site.post()

        assert (first.status, first.header("idempotency-stored")) == (200, "false")
        assert first.body == b"x" * 600 + b"y" * 600 + b"z"
        assert (second.status, problem(second), shop.count) == (409, "result-not-kept", 1)

    def test_an_answer_too_long_to_keep_is_done_once(self) -> None:
        site, shop = self.open_shop(Said(200, b"x" * 2000, TEXT), policy=SMALL)
        first, second = site.post(), site.post()

        assert (first.status, len(first.body), first.header("idempotency-stored")) == (200, 2000, "false")
        assert (second.status, problem(second), shop.count) == (409, "result-not-kept", 1)

    def test_an_answer_that_just_fits_is_kept(self) -> None:
        """Its headers count too: one byte more, and it says that it is not kept."""
        bodies = {size: Said(200, b"x" * size, TEXT) for size in (900, 990)}
        kept, not_kept = [self.open(Shop(one), policy=SMALL).post() for one in (bodies[900], bodies[990])]

        assert (kept.header("idempotency-stored"), not_kept.header("idempotency-stored")) == (None, "false")

    def test_an_event_stream_says_that_it_is_not_kept(self) -> None:
        site, shop = self.open_shop(
            Said(200, [b"data: 1\n\n", b"data: 2\n\n"], (("Content-Type", "text/event-stream"),))
        )
        first, second = site.post(), site.post()

        assert (first.body, first.header("idempotency-stored")) == (b"data: 1\n\ndata: 2\n\n", "false")
        assert (problem(second), shop.count) == ("result-not-kept", 1)

    # -- what is remembered

    def test_a_client_error_frees_the_key(self) -> None:
        """C60: nothing was sent anywhere, so the next try is a first try - with the same body only."""
        for status in (401, 404, 409, 422, 429):
            site, shop = self.open_shop(Said(status), Said(201))
            first = site.post()
            record = site.record()
            other, second = site.post(body={"amount": 500}), site.post()

            assert (first.status, second.status, shop.count) == (status, 201, 2)
            assert record is not None and record.state is State.RELEASED
            assert problem(other) == "key-reused"
            same_answer(second, site.post())

    def test_a_client_error_after_reaching_out_is_unknown(self) -> None:
        """A handler that took the provider's key may have sent something: a 4xx answer does not rule that out."""
        shop = Shop()

        def handle(called: Called) -> Said:
            shop(called)
            current().provider_key()
            return Said(402)

        site = self.open(handle)
        first, second = site.post(), site.post()

        assert (first.status, second.status, problem(second), shop.count) == (402, 409, "in-doubt", 1)

    def test_the_handler_may_say_that_nothing_happened(self) -> None:
        shop = Shop()

        def handle(called: Called) -> Said:
            shop(called)
            current().provider_key()
            current().release()
            return Said(402 if shop.count == 1 else 201)

        site = self.open(handle)
        assert [site.post().status, site.post().status, shop.count] == [402, 201, 2]

    def test_the_handler_may_decide_that_its_answer_is_kept(self) -> None:
        shop = Shop()

        def handle(called: Called) -> Said:
            shop(called)
            current().keep()
            return Said(409, b'{"sold": "out"}')

        site = self.open(handle)
        first = site.post()
        assert first.status == 409
        same_answer(first, site.post())
        assert shop.count == 1

    def test_listed_statuses_are_final(self) -> None:
        site, shop = self.open_shop(Said(402, b'{"card": "stolen"}'), Said(201), final={402})
        first, second = site.post(), site.post()
        record = site.record()

        same_answer(first, second)
        assert (first.status, shop.count) == (402, 1)
        assert record is not None and record.state is State.CLOSED

    def test_a_server_error_is_unknown(self) -> None:
        """C60: with Opaque it is a doubt; with Repeatable the next try runs; neither replays a 5xx for ever."""
        for status in (500, 503):
            dark, light = Shop(Said(status), Said(201)), Shop(Said(status), Said(201))
            opaque, repeatable = self.open(dark), self.open(light, boundary=Repeatable())

            assert [opaque.post().status, problem(opaque.post()), dark.count] == [status, "in-doubt", 1]
            assert [repeatable.post().status, repeatable.post().status, light.count] == [status, 201, 2]

    def test_keyed_runs_again_under_the_same_provider_key(self) -> None:
        sent: list[str] = []

        def handle(called: Called) -> Said:
            sent.append(current().provider_key())
            return Said(502 if len(sent) == 1 else 201)

        site = self.open(handle, boundary=Keyed())
        assert [site.post().status, site.post().status] == [502, 201]
        assert sent[0] == sent[1]

    def test_an_effect_may_speak_for_itself(self) -> None:
        """NotDone frees the key; Refused closes it, and is answered the same from then on."""
        soft, hard = Shop(NotDone("no funds"), Said(201)), Shop(Refused("stolen card"), Said(201))
        free, closed = self.open(soft), self.open(hard)
        first, again = free.post(), free.post()
        refused, replayed = closed.post(), closed.post()

        assert (first.status, problem(first), again.status) == (503, "not-done", 201)
        assert first.header("retry-after") == "1"
        assert (refused.status, problem(refused), hard.count) == (403, "refused", 1)
        same_answer(refused, replayed)

    def test_an_effect_may_speak_for_itself_under_every_preset(self) -> None:
        """What is known is not kept as a 500: also where every exception is."""
        for remember in ("ietf_draft", "stripe_v1"):
            soft, hard = Shop(NotDone("no funds"), Said(201)), Shop(Refused("stolen card"), Said(201))
            listed = Shop(ConnectionRefusedError("refused"), Said(201))
            free, closed = self.open(soft, remember=remember), self.open(hard, remember=remember)
            known = self.open(listed, remember=remember, policy=Policy(releases=(ConnectionRefusedError,)))

            assert [free.post().status, free.post().status, soft.count] == [503, 201, 2]
            assert [closed.post().status, closed.post().status, hard.count] == [403, 403, 1]
            assert [known.post().status, known.post().status, listed.count] == [500, 201, 2]

    def test_the_draft_keeps_errors_too(self) -> None:
        for status in (400, 500):
            site, shop = self.open_shop(Said(status), Said(201), remember="ietf_draft")
            first = site.post()

            same_answer(first, site.post())
            assert (first.status, shop.count) == (status, 1)

    def test_stripe_v1_keeps_what_came_after_execution_began(self) -> None:
        """500s and late 400s are kept; rate limits and validation come before."""
        for status in (402, 500):
            site, shop = self.open_shop(Said(status), Said(201), remember="stripe_v1")
            same_answer(site.post(), site.post())
            assert shop.count == 1
        for status in (400, 401, 429):
            site = self.open(Shop(Said(status), Said(201)), remember="stripe_v1")
            assert [site.post().status, site.post().status] == [status, 201]

    def test_stripe_v1_keeps_an_exception_as_a_500(self) -> None:
        site, shop = self.open_shop(ValueError("boom"), Said(201), remember="stripe_v1")
        first, second = site.post(), site.post()

        assert (first.status, second.status, shop.count) == (500, 500, 1)
        same_answer(first, second)

    def test_keyed_carries_failed_work_on(self) -> None:
        site, _ = self.open_shop(Said(500), Said(402), Said(201, b'{"updated": true}'), boundary=Keyed())

        first, second, third = site.post(), site.post(), site.post()
        assert [first.status, second.status, third.status] == [500, 402, 201]
        same_answer(third, site.post())

    def test_a_lookup_can_give_the_answer(self) -> None:
        """Asks: what the provider has on its books is answered as if we had seen it."""
        site, shop = self.open_shop(
            Said(500), boundary=Asks(lambda record: Happened(answer(201, '{"id": "ch_1"}', location="/ch_1")))
        )
        site.post()
        got = site.post()

        assert (got.status, got.body, got.header("location"), shop.count) == (201, b'{"id": "ch_1"}', "/ch_1", 1)
