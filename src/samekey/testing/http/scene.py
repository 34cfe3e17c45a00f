"""What every HTTP scenario uses: an application that counts its effects, a guard, and a client without sockets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from samekey import AsyncGuard, Guard, Opaque, Policy, Record
from samekey.http import Endpoint, Request
from samekey.http._body import PATH
from samekey.testing._asserts import require_asserts
from samekey.testing.http.drivers import AsgiDriver, Got, Sent, WsgiDriver

JSON = "application/json"


class Called(NamedTuple):
    """A request as the application under test hands it to its handler."""

    method: str
    path: str
    body: bytes


class Said(NamedTuple):
    """What a handler answers; a list of parts is an answer that is streamed."""

    status: int = 200
    body: bytes | list[bytes] = b'{"ok": true}'
    headers: tuple[tuple[str, str], ...] = (("Content-Type", JSON),)


class Ending(list[bytes]):
    """A stream that knows whether it came to its end."""

    ended = False

    def __iter__(self) -> Iterator[bytes]:
        yield from super().__iter__()
        self.ended = True


class Breaking(list[bytes]):
    """A stream whose source fails after these parts."""

    def __iter__(self) -> Iterator[bytes]:
        yield from super().__iter__()
        raise ConnectionError("the source of this stream is gone")


Handle = Callable[[Called], Said]


class Shop:
    """A handler that counts: every call is an effect."""

    def __init__(self, *answers: Said | Exception) -> None:
        self.effects: list[Called] = []
        self._answers = list(answers)
        self._mutex = threading.Lock()

    def __call__(self, called: Called) -> Said:
        with self._mutex:
            self.effects.append(called)
            number = len(self.effects)
            answer = self._answers[min(number, len(self._answers)) - 1] if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer or Said(201, json.dumps({"charge": number}).encode())

    @property
    def count(self) -> int:
        return len(self.effects)


def whose(request: Request) -> str | None:
    """The suite's authentication: `Bearer NAME.anything`; a caller that is not known has no principal."""
    token = (request.header("authorization") or "").removeprefix("Bearer ")
    name = token.partition(".")[0]
    return name if name in ("ann", "bob") else None


class Scene:
    """Base of the suite: subclasses give `make_app`."""

    protocol = "asgi"  # or "wsgi"

    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        """The application under test: every path and method goes to `handle(Called(...))`, guarded by the adapter."""
        raise NotImplementedError("give make_app()")

    def make_guard(self, **options: Any) -> Any:
        """A guard with a memory of its own, of the adapter's colour."""
        return AsyncGuard("memory://", **options) if self.protocol == "asgi" else Guard("memory://", **options)

    def open(self, handle: Handle, *, guard: Any = None, **rules: Any) -> Site:
        """The application with this handler, under these rules; closed with the test."""
        rules = {"boundary": Opaque(), "principal": whose, **rules}
        endpoint = rules["chosen"] if "chosen" in rules else Endpoint(**rules)
        guard = guard or self.make_guard()
        app = self.make_app(guard, endpoint, handle)
        site = Site(guard, WsgiDriver(app) if self.protocol == "wsgi" else AsgiDriver(app))
        self._sites.append(site)
        return site

    def open_shop(self, *answers: Said | Exception, **rules: Any) -> tuple[Site, Shop]:
        """The application with a shop that gives these answers, and the shop."""
        shop = Shop(*answers)
        return self.open(shop, **rules), shop

    def setup_method(self) -> None:
        require_asserts()
        self._sites: list[Site] = []

    def teardown_method(self) -> None:
        for site in self._sites:
            site.close()


class Site:
    """An application that is being asked."""

    def __init__(self, guard: Any, driver: Any) -> None:
        self.guard, self._driver = guard, driver

    def post(
        self,
        path: str = "/charges",
        body: Any = b'{"amount": 200}',
        *,
        key: str | Iterable[str] | None = "k-1",
        who: str | None = "ann.1",
        method: str = "POST",
        content_type: str = JSON,
        query: str = "",
        headers: Iterable[tuple[str, str]] = (),
        **how: bool,
    ) -> Got:
        """Send this request; `how` it is sent is documented at `Sent`."""
        keys = () if key is None else (key,) if isinstance(key, str) else tuple(key)
        whole = [*(("Idempotency-Key", one) for one in keys), ("Content-Type", content_type), *headers]
        if who is not None:
            whole.append(("Authorization", f"Bearer {who}"))
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        got: Got = self._driver.send(Sent(method, path, query, tuple(whole), sent, **how))
        return got

    def plant(self, result: Any) -> None:
        """Let this be what the store keeps for the key and the body that `post` sends."""

        async def effect() -> Any:
            return result

        asynchronous = isinstance(self.guard, AsyncGuard)
        same: Any = {"key": "k-1", "payload": {"amount": 200, PATH: "POST /charges"}, "tenant": "ann"}
        self._driver.call(lambda: self.guard.run("POST /charges", effect if asynchronous else lambda: result, **same))

    def record(
        self, key: str = "k-1", *, operation: str = "POST /charges", tenant: str | None = "ann"
    ) -> Record | None:
        found: Record | None = self._driver.call(lambda: self.guard.peek(operation, key, tenant))
        return found

    def close(self) -> None:
        self._driver.call(self.guard.close)
        self._driver.close()


def problem(got: Got) -> str:
    """The name of the problem that was answered."""
    assert got.header("content-type") == "application/problem+json", (got.status, got.body, got.error)
    answered = json.loads(got.body)
    assert answered["status"] == got.status
    assert answered["title"]
    return str(answered["type"]).rpartition("#")[2]


def same_answer(first: Got, second: Got) -> None:
    """A replay: same status, same bytes, and it says so."""
    assert (second.status, second.body) == (first.status, first.body), (first, second)
    assert second.header("idempotent-replayed") == "true"
    assert first.header("idempotent-replayed") is None
    assert first.header("idempotency-key") == second.header("idempotency-key")
    for got in (first, second):
        lengths = [value for name, value in got.headers if name.lower() == "content-length"]
        assert lengths in ([], [str(len(got.body))]), lengths
        assert got.status != 204 or not lengths


QUICK = Policy(patience=0)  # the caller that loses is answered at once
SMALL = Policy(result_max_bytes=1000)  # longer answers are not kept
TEXT = (("Content-Type", "text/plain"),)
