"""The Django adapter: the suite over sync and async views, middleware and decorator; REST framework; Atomic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.asgi import get_asgi_application
from django.core.exceptions import PermissionDenied
from django.core.wsgi import get_wsgi_application
from django.db import connections, transaction
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.test import RequestFactory, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from samekey import Atomic, Guard, Misconfigured, Opaque, Policy, State
from samekey.http import Endpoint, rules
from samekey.http._rules import rules_of
from samekey.http.django import guarded
from samekey.testing.http import Called, Handle, HttpAdapterSuite, Scene
from samekey.testing.http.drivers import Sent, WsgiDriver
from samekey.testing.http.scene import Breaking
from tests.django_settings import APIView, Response, ValidationError, ViewSet, api_view
from tests.http.apps import django_answer

MIDDLEWARE = ["samekey.http.django.SamekeyMiddleware"]


def called(request: Any) -> Called:
    return Called(request.method, request.path, request.body)


class Django(Scene):
    """Makes applications of one view, under settings of their own."""

    def application(self, view: Any, **given: Any) -> Any:
        wsgi = self.protocol == "wsgi"
        urls = "tests.http.django_urls" if wsgi else "tests.http.django_async_urls"
        changed = override_settings(ROOT_URLCONF=urls, **given)
        changed.enable()
        self._undo.append(changed.disable)
        app = get_wsgi_application() if wsgi else get_asgi_application()
        if wsgi:
            return lambda environ, start: app({**environ, "samekey.view": view}, start)
        return lambda scope, receive, send: app({**scope, "samekey.view": view}, receive, send)

    def setup_method(self) -> None:
        super().setup_method()
        self._undo: list[Any] = []

    def teardown_method(self) -> None:
        super().teardown_method()
        for undo in reversed(self._undo):
            undo()


class DjangoSuite(Django, HttpAdapterSuite):
    pass


class TestSyncMiddleware(DjangoSuite):
    protocol = "wsgi"

    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        def view(request: Any) -> Any:
            return django_answer(handle(called(request)))

        return self.application(view, MIDDLEWARE=MIDDLEWARE, SAMEKEY={"guard": guard, "endpoint": endpoint})


class TestAsyncMiddleware(DjangoSuite):
    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        async def view(request: Any) -> Any:
            said = await sync_to_async(handle, thread_sensitive=False)(called(request))
            if isinstance(said.body, list):
                parts = said.body

                async def stream() -> Any:
                    for part in parts:
                        yield part

                response = StreamingHttpResponse(stream(), status=said.status)
                for name, value in said.headers:
                    response.headers[name] = value
                return response
            return django_answer(said)

        return self.application(view, MIDDLEWARE=MIDDLEWARE, SAMEKEY={"async_guard": guard, "endpoint": endpoint})


class TestSyncDecorator(DjangoSuite):
    protocol = "wsgi"

    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        @guarded(guard, endpoint)
        def view(request: Any) -> Any:
            return django_answer(handle(called(request)))

        return self.application(view, MIDDLEWARE=[])


class TestAsyncDecorator(DjangoSuite):
    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        @guarded(guard, endpoint)
        async def view(request: Any) -> Any:
            return django_answer(await sync_to_async(handle, thread_sensitive=False)(called(request)))

        return self.application(view, MIDDLEWARE=[])


class TestRestFramework(DjangoSuite):
    """Its responses are rendered late; what is kept is what was rendered."""

    protocol = "wsgi"

    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        @api_view(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
        def view(request: Any) -> Any:
            return django_answer(handle(called(request)))

        return self.application(view, MIDDLEWARE=MIDDLEWARE, SAMEKEY={"guard": guard, "endpoint": endpoint})


ENDPOINT = Endpoint(boundary=Opaque(), single_tenant=True)


class TestOwn(Django):
    protocol = "wsgi"

    def make_app(self, guard: Any, endpoint: Any, handle: Any) -> Any:
        return self.application(handle, MIDDLEWARE=MIDDLEWARE, SAMEKEY={"guard": guard, "endpoint": endpoint})

    def test_what_is_not_found_and_what_is_forbidden_are_answers(self) -> None:
        tries: list[int] = []

        def view(request: Any) -> Any:
            tries.append(1)
            if len(tries) == 1:
                raise Http404
            if len(tries) == 2:
                raise PermissionDenied
            return HttpResponse("done")

        site = self.open(view, chosen=ENDPOINT)
        assert [site.post().status for _ in range(4)] == [404, 403, 200, 200]
        assert len(tries) == 3

    def test_rest_framework_responses_are_kept_as_rendered(self) -> None:
        """C64: in a decorator they are not rendered yet."""
        effects: list[int] = []

        @api_view(["POST"])
        def view(request: Any) -> Any:
            effects.append(1)
            return Response({"amount": request.data["amount"]}, status=201)

        site = self.open(view, chosen=ENDPOINT)
        first, second = site.post(), site.post()

        assert (first.status, first.body, second.body, len(effects)) == (201, b'{"amount":200}', first.body, 1)
        assert second.header("content-type") == "application/json"

    def test_a_long_stream_that_breaks_is_a_doubt(self) -> None:
        for kind in ("text/plain", "text/event-stream"):

            def view(request: Any, kind: str = kind) -> Any:
                return StreamingHttpResponse(Breaking([b"x" * 600, b"y" * 600]), content_type=kind)

            policy = Policy(result_max_bytes=1000)
            site = self.open(view, chosen=Endpoint(boundary=Opaque(), single_tenant=True, policy=policy))
            got = site.post()

            assert isinstance(got.error, ConnectionError)
            assert getattr(site.record(tenant=None), "state", None) is State.IN_DOUBT

    def test_each_view_may_have_its_own_rules(self) -> None:
        assert rules_of(rules(None)(lambda request: None), ENDPOINT) is None

    def test_rules_stand_on_classes_and_their_methods_too(self) -> None:
        """Wherever a view may be decorated, `required=True` is heard."""
        strict = rules(Endpoint(boundary=Opaque(), single_tenant=True, required=True))

        def ran(request: Any) -> Any:
            return Response("ran")

        class Plain(View):  # type: ignore[misc]
            def post(self, request: Any) -> Any:
                return HttpResponse("ran")

        class Method(View):  # type: ignore[misc]
            @strict
            def post(self, request: Any) -> Any:
                return HttpResponse("ran")

        class Rest(APIView):  # type: ignore[misc]
            def post(self, request: Any) -> Any:
                return Response("ran")

        class Set(ViewSet):  # type: ignore[misc]
            @strict
            def create(self, request: Any) -> Any:
                return Response("ran")

        views = {
            "class": strict(Plain).as_view(),
            "method": Method.as_view(),
            "rest": strict(Rest).as_view(),
            "viewset": Set.as_view({"post": "create"}),
            "above": strict(api_view(["POST"])(ran)),
            "below": api_view(["POST"])(strict(ran)),
        }
        for name, view in views.items():
            urls = type("urls", (), {"urlpatterns": [path(name, view)]})
            given = {"guard": Guard("memory://"), "endpoint": ENDPOINT}
            with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=MIDDLEWARE, SAMEKEY=given):
                sent = [
                    WsgiDriver(get_wsgi_application()).send(Sent("POST", f"/{name}", headers=headers)).status
                    for headers in ((), (("Idempotency-Key", "k"),))
                ]
            assert sent == [400, 200], name

    def test_an_option_that_would_do_nothing_is_refused(self) -> None:
        early = Endpoint(boundary=Opaque(), single_tenant=True, settle="before-send")
        given = {"guard": Guard("memory://"), "endpoint": early}
        with override_settings(MIDDLEWARE=MIDDLEWARE, SAMEKEY=given), pytest.raises(Misconfigured, match="before-send"):
            get_wsgi_application()
        with pytest.raises(Misconfigured, match="before-send"):
            guarded(Guard("memory://"), early)

    def test_settings_are_needed(self) -> None:
        with override_settings(MIDDLEWARE=MIDDLEWARE), pytest.raises(Misconfigured, match=r"settings\.SAMEKEY"):
            get_wsgi_application()

    def test_settings_without_the_guard_of_the_protocol_say_which_one(self) -> None:
        given = {"guard": self.make_guard(), "endpoint": ENDPOINT}
        wants = pytest.raises(Misconfigured, match=r'has no "async_guard": .* or "async_guard" \(ASGI\)')
        with override_settings(MIDDLEWARE=MIDDLEWARE, SAMEKEY=given), wants:
            get_asgi_application()


class TestRestFrameworkDecorator(DjangoSuite):
    """Under `api_view`: the request, the renderer and the exceptions are REST framework's."""

    protocol = "wsgi"

    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        @api_view(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
        @guarded(guard, endpoint)
        def view(request: Any) -> Any:
            return django_answer(handle(called(request)))

        return self.application(view, MIDDLEWARE=[])


class TestDecorated(Django):
    protocol = "wsgi"

    def make_app(self, guard: Any, endpoint: Any, handle: Any) -> Any:
        return self.application(handle(guarded(guard, endpoint)), MIDDLEWARE=[])

    def test_rest_framework_responses_are_kept_as_rendered(self) -> None:
        """On a method, around one, and under `api_view`: nothing is rendered there yet."""
        effects: list[int] = []

        def charge(request: Any) -> Any:
            effects.append(1)
            if len(effects) % 3 == 1:
                raise ValidationError("no amount")  # an answer: the key is free again
            return Response({"amount": request.data["amount"]}, status=201)

        def on_a_method(guard: Any) -> Any:
            class Charges(APIView):  # type: ignore[misc]
                @method_decorator(guard)
                def post(self, request: Any) -> Any:
                    return charge(request)

            return Charges.as_view()

        def on_dispatch(guard: Any) -> Any:
            class Charges(APIView):  # type: ignore[misc]
                def post(self, request: Any) -> Any:
                    return charge(request)

            return method_decorator(guard, name="dispatch")(Charges).as_view()

        for view in (on_a_method, on_dispatch, lambda guard: api_view(["POST"])(guard(charge))):
            effects.clear()
            site = self.open(view, chosen=ENDPOINT)
            wrong, first, second = site.post(), site.post(), site.post()

            assert (wrong.status, wrong.body) == (400, b'["no amount"]')
            assert (first.status, first.body, second.body) == (201, b'{"amount":200}', first.body)
            assert (second.header("idempotent-replayed"), len(effects)) == ("true", 2)
            assert second.header("content-type") == "application/json"

    def test_a_method_itself_is_no_view(self) -> None:
        class Charges(View):  # type: ignore[misc]
            @guarded(Guard("memory://"), ENDPOINT)
            def post(self, request: Any) -> Any:
                raise AssertionError("never reached")

        site = self.open(lambda guard: Charges.as_view(), chosen=ENDPOINT)
        with pytest.raises(Misconfigured, match="method_decorator"):
            Charges.as_view()(RequestFactory().post("/charges"))
        assert site.post().status == 500

    def test_a_form_that_was_read_before_is_told(self) -> None:
        """Django's CSRF check reads a multipart form, and its bytes are gone: nothing is claimed, nothing runs."""
        parts = (
            b'--X\r\nContent-Disposition: form-data; name="csrfmiddlewaretoken"\r\n\r\n' + b"a" * 32 + b"\r\n--X--\r\n"
        )
        effects: list[int] = []
        guard = Guard("memory://")

        @guarded(guard, ENDPOINT)
        def view(request: Any) -> Any:
            effects.append(1)
            return HttpResponse("charged")

        request = RequestFactory().post(
            "/charges", parts, "multipart/form-data; boundary=X", HTTP_IDEMPOTENCY_KEY="k-1"
        )
        assert request.POST["csrfmiddlewaretoken"]
        with pytest.raises(Misconfigured, match="SamekeyMiddleware"):
            view(request)
        assert (effects, guard.peek("POST /charges", "k-1")) == ([], None)


class TestAtomic:
    """The decorator inside `transaction.atomic()`: record and rows commit together, or not at all."""

    @pytest.fixture
    def database(self, tmp_path: Path) -> Any:
        path = str(tmp_path / "shop.db")
        Guard(f"sqlite:///{path}").close()
        connections.databases["shop"] = {**connections.databases["default"], "NAME": path}
        with connections["shop"].cursor() as cursor:
            cursor.execute("CREATE TABLE charges (amount INTEGER)")
        yield path
        connections["shop"].close()
        del connections["shop"]
        del connections.databases["shop"]

    def test_record_and_rows_are_one(self, database: str) -> None:
        guard = Guard(f"sqlite:///{database}")
        shop = connections["shop"]
        endpoint = Endpoint(boundary=Atomic("shop"), connection=lambda request: shop.connection, single_tenant=True)

        @guarded(guard, endpoint)
        def view(request: Any) -> Any:
            with shop.cursor() as cursor:
                cursor.execute("INSERT INTO charges VALUES (200)")
            return HttpResponse("charged", status=int(request.GET.get("status", 200)))

        def post(query: str = "", *, key: str = "k-1", roll_back: bool = False) -> Any:
            request = RequestFactory().post(f"/charges{query}", b"{}", "application/json", HTTP_IDEMPOTENCY_KEY=key)
            with transaction.atomic(using="shop"):
                response = view(request)
                transaction.set_rollback(roll_back, using="shop")
            return response

        def rows() -> int:
            with shop.cursor() as cursor:
                return int(cursor.execute("SELECT count(*) FROM charges").fetchone()[0])

        refused = post("?status=400")
        assert (refused.status_code, rows()) == (400, 0)  # the row went with the refusal, the key is free
        post(key="k-2", roll_back=True)
        assert (rows(), guard.peek("POST /charges", "k-2")) == (0, None)  # rolled back together
        first, second = post(key="k-2"), post(key="k-2")
        assert (first.content, second.content, second.headers["Idempotent-Replayed"], rows()) == (
            b"charged",
            b"charged",
            "true",
            1,
        )
        guard.close()

    def test_on_sqlite_djangos_own_side_is_not_told_of_what_is_undone(self, database: str) -> None:
        """There samekey has Python's connection, not Django's: `on_commit` functions of an undone view run."""
        told: list[str] = []
        shop = connections["shop"]
        endpoint = Endpoint(
            boundary=Atomic("shop"), connection=lambda request: shop.connection, single_tenant=True, final=(402,)
        )

        with Guard(f"sqlite:///{database}") as guard:

            @guarded(guard, endpoint)
            def view(request: Any) -> Any:
                transaction.on_commit(lambda: told.append("mailed"), using="shop")
                transaction.set_rollback("rolls_back" in request.GET, using="shop")
                return HttpResponse("declined", status=402)

            def post(query: str, key: str) -> Any:
                request = RequestFactory().post(f"/charges{query}", b"{}", "application/json", HTTP_IDEMPOTENCY_KEY=key)
                with transaction.atomic(using="shop"):
                    return view(request)

            post("", "k-1")
            assert told == ["mailed"]
            post("?rolls_back", "k-2")  # as REST framework's exception handler does
            assert guard.peek("POST /charges", "k-2") is None
