"""The Flask adapter: the suite, and what is its own."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask, Response, abort, jsonify, request, session
from flask.views import MethodView
from werkzeug.exceptions import ServiceUnavailable
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from samekey import Guard, Misconfigured, NotDone, Opaque, Policy, Refused, State
from samekey.http import Endpoint, rules
from samekey.http.flask import Samekey
from samekey.testing.http import Handle, HttpAdapterSuite, Scene
from samekey.testing.http.scene import Breaking
from tests.http.apps import METHODS, flask_view


class TestFlask(HttpAdapterSuite):
    protocol = "wsgi"

    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        app = Flask("shop")
        view = flask_view(handle)
        for path in ("/charges", "/refunds", "/payments", "/free", "/slow"):
            app.add_url_rule(
                path, path[1:], lambda path=path: view(path), methods=METHODS, provide_automatic_options=False
            )
        Samekey(app, guard=guard, endpoint=endpoint)
        return app


ENDPOINT = Endpoint(boundary=Opaque(), single_tenant=True)


class TestOwn(Scene):
    protocol = "wsgi"

    def make_app(self, guard: Any, endpoint: Any, handle: Any) -> Any:
        app = Flask("shop")
        app.secret_key = "for the test alone"
        handle(app)
        Samekey(app, guard=guard, endpoint=endpoint)
        return app

    def test_dicts_and_sessions(self) -> None:
        """C64: what a view returns is kept as the bytes it became; the session's cookie is not."""
        effects = []

        def views(app: Flask) -> None:
            @app.post("/charges")
            def charge() -> Any:
                effects.append(1)
                session["who"] = "ann"
                return {"charged": 1}, 201

        site = self.open(views, chosen=ENDPOINT)  # type: ignore[arg-type]
        first, second = site.post(), site.post()

        assert (first.status, first.body, second.body, len(effects)) == (201, b'{"charged":1}\n', first.body, 1)
        assert "session=" in (first.header("set-cookie") or "")
        assert second.header("set-cookie") is None

    def test_abort_and_error_handlers_are_answers(self) -> None:
        """A 4xx that was raised frees the key, as one that was returned."""
        tries: list[str] = []

        def views(app: Flask) -> None:
            @app.errorhandler(KeyError)
            def missing(error: KeyError) -> Any:
                return jsonify(missing=str(error)), 404

            @app.post("/charges")
            def charge() -> Any:
                tries.append("")
                if len(tries) == 1:
                    abort(429)
                if len(tries) == 2:
                    raise KeyError("card")
                return "done"

        site = self.open(views, chosen=ENDPOINT)  # type: ignore[arg-type]
        assert [site.post().status for _ in range(4)] == [429, 404, 200, 200]
        assert len(tries) == 3

    def test_a_page_for_every_exception_hides_none_from_the_record(self) -> None:
        """What the exception says about the effect counts; the page is for people. An abort is a page and no more."""

        class Declined(Exception):
            pass

        for error, state, statuses in (
            (NotDone("no funds"), State.RELEASED, [503, 503]),
            (Refused("stolen card"), State.CLOSED, [403, 403]),
            (Declined("no"), State.CLOSED, [500, 500]),
            (ValueError("boom"), State.IN_DOUBT, [500, 409]),
            (ServiceUnavailable(), State.IN_DOUBT, [500, 409]),
        ):

            def views(app: Flask, error: Exception = error) -> None:
                app.errorhandler(Exception)(lambda error: ({"page": type(error).__name__}, 500))

                @app.post("/charges")
                def charge() -> Any:
                    raise error

            policy = Policy(closes=(Declined,))
            site = self.open(views, chosen=Endpoint(boundary=Opaque(), single_tenant=True, policy=policy))  # type: ignore[arg-type]
            got = [site.post(), site.post()]
            record = site.record(tenant=None)

            assert ([one.status for one in got], getattr(record, "state", None)) == (statuses, state), error
            if state is State.IN_DOUBT:
                assert b'"page"' in got[0].body
                assert got[0].header("idempotency-key") == '"k-1"'

    def test_what_is_streamed_is_closed(self) -> None:
        """Kept or not: its source may hold a file, or a transaction. It is closed before the record is settled."""
        closed: list[Any] = []

        class Source:
            def __init__(self, size: int) -> None:
                self._parts = iter([b"x" * size, b"y"])

            def __iter__(self) -> Any:
                return self._parts

            def close(self) -> None:
                record = site.record(tenant=None)
                closed.append(record and record.state)

        def views(app: Flask) -> None:
            app.post("/charges")(lambda: Response(Source(int(request.args["size"])), mimetype="text/plain"))

        for size in (10, 2000):
            policy = Policy(result_max_bytes=1000)
            site = self.open(views, chosen=Endpoint(boundary=Opaque(), single_tenant=True, policy=policy))  # type: ignore[arg-type]
            assert len(site.post(query=f"size={size}").body) == size + 1
        assert closed == [State.STARTED] * 2

    def test_a_long_stream_that_breaks_is_a_doubt(self) -> None:
        def views(app: Flask) -> None:
            parts = Breaking([b"x" * 600, b"y" * 600])
            app.post("/charges")(lambda: Response(iter(parts), content_type=request.args["kind"]))

        for kind in ("text/plain", "text/event-stream"):
            policy = Policy(result_max_bytes=1000)
            site = self.open(views, chosen=Endpoint(boundary=Opaque(), single_tenant=True, policy=policy))  # type: ignore[arg-type]
            got = site.post(query=f"kind={kind}")

            assert isinstance(got.error, ConnectionError)
            assert getattr(site.record(tenant=None), "state", None) is State.IN_DOUBT

    def test_each_view_may_have_its_own_rules(self) -> None:
        def views(app: Flask) -> None:
            @app.post("/free")
            @rules(None)
            def free() -> str:
                return "free"

            @app.post("/orders/<order>/pay")
            @rules(Endpoint(boundary=Opaque(), single_tenant=True, required=True))
            def pay(order: str) -> str:
                return order

        site = self.open(views, chosen=ENDPOINT)  # type: ignore[arg-type]
        assert [site.post("/orders/1/pay", key=None).status, site.post("/free", key=("a", "b")).status] == [400, 200]
        assert [site.post("/orders/1/pay").status, site.post("/orders/2/pay").status] == [200, 422]

    def test_an_operation_has_the_whole_path_in_its_name(self) -> None:
        """Two applications beside each other, mounted at two places, are not one operation."""

        def views(app: Flask) -> None:
            app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/v1": app.wsgi_app, "/v2": app.wsgi_app})  # type: ignore[method-assign]
            app.post("/<int:number>/pay")(lambda number: "paid")

        site = self.open(views, chosen=ENDPOINT)  # type: ignore[arg-type]
        assert [site.post(path).header("idempotent-replayed") for path in ("/v1/1/pay", "/v2/1/pay")] == [None, None]
        assert site.record(operation="POST /v2/{}/pay", tenant=None) is not None

    def test_a_key_does_not_widen_the_limit_of_the_application(self) -> None:
        effects: list[int] = []

        def views(app: Flask) -> None:
            app.config["MAX_CONTENT_LENGTH"] = 100

            @app.post("/charges")
            def charge() -> Any:
                effects.append(len(request.get_data()))
                return "charged"

        site = self.open(views, chosen=ENDPOINT)  # type: ignore[arg-type]
        for chunked, terminated in ((False, False), (False, True), (True, True)):
            assert site.post(body=b"x" * 200, chunked=chunked, terminated=terminated).status == 413
        assert (effects, site.record(tenant=None)) == ([], None)
        assert [site.post(body=b"x" * 100, chunked=one, terminated=True).status for one in (True, False)] == [200, 200]
        assert effects == [100]

    def test_a_form_that_was_read_before_is_not_taken_for_an_empty_body(self) -> None:
        """A CSRF check in `before_request` leaves nothing to compare: loud, where another form would have matched."""
        effects: list[str] = []

        def views(app: Flask) -> None:
            app.before_request(lambda: request.form and None)

            @app.post("/charges")
            def charge() -> Any:
                effects.append(request.form["amount"])
                return "charged"

        site = self.open(views, chosen=ENDPOINT)  # type: ignore[arg-type]
        form = "application/x-www-form-urlencoded"
        got = site.post(body=b"amount=200", content_type=form)

        assert (got.status, effects, site.record(tenant=None)) == (500, [], None)

    def test_a_body_that_was_read_before_is_compared_all_the_same(self) -> None:
        effects: list[int] = []

        def views(app: Flask) -> None:
            app.before_request(lambda: request.get_json() and None)

            @app.post("/charges")
            def charge() -> Any:
                effects.append(request.get_json()["amount"])
                return "charged"

        site = self.open(views, chosen=ENDPOINT)  # type: ignore[arg-type]
        assert [site.post().status, site.post().status, site.post(body={"amount": 500}).status] == [200, 200, 422]
        assert effects == [200]

    def test_rules_stand_on_classes_and_their_methods_too(self) -> None:
        strict = rules(Endpoint(boundary=Opaque(), single_tenant=True, required=True))

        def views(app: Flask) -> None:
            @strict
            class Whole(MethodView):
                def post(self) -> str:
                    return "ran"

                @rules(None)
                def patch(self) -> str:
                    return "ran"

            class Part(MethodView):
                @strict
                def post(self) -> str:
                    return "ran"

            app.add_url_rule("/whole", view_func=Whole.as_view("whole"))
            app.add_url_rule("/part", view_func=Part.as_view("part"))
            strict(app.post("/above")(lambda: "ran"))

        site = self.open(views, chosen=ENDPOINT)  # type: ignore[arg-type]
        assert [site.post(path, key=None).status for path in ("/whole", "/part", "/above")] == [400, 400, 400]
        assert site.post("/whole", key=("a", "b"), method="PATCH").status == 200

    def test_an_option_that_would_do_nothing_is_refused(self) -> None:
        early = Endpoint(boundary=Opaque(), single_tenant=True, settle="before-send")
        with pytest.raises(Misconfigured, match="before-send"):
            Samekey(Flask("shop"), guard=Guard("memory://"), endpoint=early)

        def views(app: Flask) -> None:
            app.post("/charges")(rules(early)(lambda: "charged"))

        assert self.open(views, chosen=ENDPOINT).post().status == 500  # type: ignore[arg-type]

    def test_what_is_not_found_claims_nothing(self) -> None:
        site = self.open(lambda app: None, chosen=ENDPOINT)  # type: ignore[arg-type, return-value]

        assert site.post("/nowhere").status == 404
        assert site.record(operation="POST /nowhere", tenant=None) is None
