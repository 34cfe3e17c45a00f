"""One visit: who asks, what the form holds, and how a page or a refusal is answered.

A page is a function of a `Visit`. `looks` lets a person in who is signed in; `acts` also checks that the request came
from this console's own form, that the person may act, and writes every refusal into the audit log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from samekey.console import shown
from samekey.console.access import Person
from samekey.console.desk import Console, log
from samekey.console.figures import Figures
from samekey.core.errors import CallerError, SamekeyError, StoreError
from samekey.core.record import Record
from samekey.ops.story import mark, since, span, when

COOKIE, THEME = "samekey_console", "samekey_theme"
THEMES = ("auto", "light", "dark")
BODY_MAX_BYTES = 1 << 20  # a plan of a bulk action names up to 10,000 records
FIELDS_MAX = 30_000
PAGE_SECONDS = 20.0  # of one request; a store that takes longer counts as silent
HERE = Path(__file__).parent


@dataclass(slots=True)
class Notice:
    """A sentence on top of a page: what happened, what was done about it, what to do."""

    says: str
    more: str = ""
    kind: str = ""  # doubt, doubled, completed, started
    icon: str = "info"
    links: tuple[tuple[str, str], ...] = ()  # address, text


@dataclass(slots=True)
class Visit:
    """One request of one person."""

    console: Console
    request: Request
    person: Person
    form: Mapping[str, list[str]] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)

    def asked(self, name: str) -> str:
        """A parameter of the address."""
        return self.request.query_params.get(name, "").strip()

    def given(self, name: str) -> str:
        """A field of the form."""
        return self.form.get(name, [""])[0].strip()

    @property
    def tenant(self) -> str | None:
        """The tenant that a page is about: the console's own, or the one of the filter."""
        return self.console.tenant if self.console.tenant is not None else self.asked("tenant") or None

    def link(self, path: str, **params: Any) -> str:
        return address(self.request, path, **params)

    async def page(self, template: str, *, status: int = 200, **context: Any) -> Response:
        """The page, with the counts of the navigation; they are left out where they cannot be read."""
        figures: Figures | None = context.pop("figures", None)
        if figures is None:
            try:
                figures = await self.console.watch.current()
            except SamekeyError:
                figures = None
        return render(
            self.console,
            self.request,
            template,
            status=status,
            visit=self,
            person=self.person,
            figures=figures,
            **context,
        )


Handler = Callable[[Visit], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]


def looks(handler: Handler) -> Endpoint:
    """A page for everyone who is signed in."""

    async def endpoint(request: Request) -> Response:
        console: Console = request.app.state.console
        person = person_of(console, request)
        if person is None:
            return to_sign_in(request)
        return await _answered(Visit(console, request, person), handler)

    return endpoint


def acts(handler: Handler, *, action: str) -> Endpoint:
    """An action: only by POST, only from a form of this console, only for operators."""

    async def endpoint(request: Request) -> Response:
        console: Console = request.app.state.console
        person = person_of(console, request)
        form = await form_of(request)
        if person is None:
            return _signed_out(console, request)
        visit = Visit(console, request, person, form or {})
        refusal = foreign(request)
        if form is None:
            refusal = "The form was not understood, so nothing was changed."
        elif refusal is None and not console.access.proves(person, visit.given("proof")):
            refusal = "This form was not made for your sign-in, so nothing was changed. Open the page again."
        if refusal is None:
            refusal = console.refusal(person)
        if refusal is not None:
            try:
                await console.note(person, action, "refused", refusal)
            except SamekeyError:
                log.warning("a refusal was not written into the audit log")
            return await refused(visit, refusal)
        return await _answered(visit, handler)

    return endpoint


async def _answered(visit: Visit, handler: Handler) -> Response:
    try:
        async with asyncio.timeout(PAGE_SECONDS):
            return await handler(visit)
    except StoreError as error:
        return silent(visit, str(error))
    except TimeoutError:
        return silent(visit, f"it did not answer within {PAGE_SECONDS:.0f} s")
    except CallerError as error:
        return await refused(visit, error.message, status=400)


async def refused(visit: Visit, why: str, *, status: int = 403) -> Response:
    return await visit.page("refused.html", status=status, title="Not done", why=why)


def silent(visit: Visit, why: str) -> Response:
    """The store does not answer: the page shows nothing, rather than nothing found."""
    return render(
        visit.console,
        visit.request,
        "silent.html",
        status=503,
        visit=visit,
        person=visit.person,
        figures=None,
        title="No answer",
        why=why,
    )


# -- who asks ---------------------------------------------------------------------------------------------------


def person_of(console: Console, request: Request) -> Person | None:
    access = console.access
    address = request.client.host if request.client else None
    header = request.headers.get(access.user_header) if access.user_header else None
    person = access.person_of_proxy(address, header)
    if person is None:
        person = access.person_of_cookie(request.cookies.get(COOKIE), time.time())
    return None if person is None or person in console.ended else person


def to_sign_in(request: Request) -> Response:
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    asked = f"?{request.url.query}" if request.url.query else ""
    place = address(request, "/sign-in", next=path + asked) if path not in ("", "/") else address(request, "/sign-in")
    if request.headers.get("hx-request"):
        return Response(status_code=204, headers={"HX-Redirect": place})
    return RedirectResponse(place, status_code=303)


def _signed_out(console: Console, request: Request) -> Response:
    """An action without a sign-in: nothing is changed, and what was typed stays in the page."""
    return render(console, request, "signed_out.html", status=401, person=None, figures=None, title="Signed out")


def foreign(request: Request) -> str | None:
    """Why this request did not come from a page of this console; None if it did."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    ours = urlsplit(origin or "").netloc == request.headers.get("host", "")
    if site is not None:  # a browser writes it, and no page can change it
        # Without a referrer, a browser sends "null" as the origin of a form, also of our own.
        ours = site == "same-origin" and (origin in (None, "null") or ours)
    elif origin is None:
        ours = True  # no browser of today: the proof in the form decides
    return None if ours else "The request came from another site, so nothing was changed."


async def form_of(request: Request) -> Mapping[str, list[str]] | None:
    """The fields of a form; None if the body is too long or no form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        return None
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > BODY_MAX_BYTES:
                return None
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except (ValueError, ClientDisconnect):
        return None
    form: dict[str, list[str]] = {}
    for name, value in pairs:
        form.setdefault(name, []).append(value)
    return form


# -- answers ----------------------------------------------------------------------------------------------------


def address(request: Request, path: str, **params: Any) -> str:
    """An address of this console, wherever it is mounted; parameters without a value are left out."""
    root = request.scope.get("root_path", "").rstrip("/")
    asked = "&".join(
        f"{name}={quote(str(value), safe='')}" for name, value in params.items() if value not in (None, "")
    )
    return f"{root}{path}" + (f"?{asked}" if asked else "")


def render(console: Console, request: Request, template: str, *, status: int = 200, **context: Any) -> Response:
    theme = request.cookies.get(THEME, "auto")
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    person: Person | None = context.get("person")
    context = {
        "visit": None,
        "notices": [],
        **context,
        "console": console,
        "theme": theme if theme in THEMES else "auto",
        "here": path,
        "link": lambda to, **params: address(request, to, **params),
        "proof": "" if person is None else console.access.proof(person),
        "now": time.time(),
    }
    if context["visit"] is not None:
        context["notices"] = context["visit"].notices
    return HTMLResponse(_templates().get_template(template).render(context), status_code=status)


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "visible": shown.visible,
        "lines": lambda text: "\n".join(shown.visible(line) for line in str(text).split("\n")),
        "number": shown.number,
        "percent": shown.percent,
        "clock": shown.clock,
        "day": shown.day,
        "iso": shown.iso,
        "brief": shown.brief,
        "initials": shown.initials,
        "span": span,
        "when": when,
        "evidence": shown.evidence_text,
    }
    environment.globals |= {
        "STATES": shown.STATES,
        "mark": mark,
        "since": since,
        "amount_of": amount_of,
        "options": options,
    }
    return environment


def options(names: Iterable[str]) -> list[tuple[str, str]]:
    """The choices of a select, from names alone."""
    return [(name, name) for name in names]


def amount_of(record: Record, console: Console) -> str:
    """What the effect noted about money; "" where it noted none."""
    noted = shown.money(shown.noted(record, console.sealer))
    return "" if noted is None else shown.amount(*noted)
