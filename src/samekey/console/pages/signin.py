"""Signing in and out, and the choice of colours."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from samekey.console.access import SESSION_SECONDS, Role, check_name
from samekey.console.desk import Console, log
from samekey.console.shown import clock
from samekey.console.web import COOKIE, THEME, THEMES, Visit, address, foreign, form_of, person_of, render
from samekey.core.errors import SamekeyError

THEME_SECONDS = 365 * 24 * 3600


async def show(request: Request) -> Response:
    console: Console = request.app.state.console
    if person_of(console, request) is not None:
        return RedirectResponse(address(request, _next(request.query_params.get("next", ""))), status_code=303)
    return _form(request)


async def sign_in(request: Request) -> Response:
    console: Console = request.app.state.console
    form = await form_of(request)
    if form is None or foreign(request) is not None:
        return _form(request, wrong="The request came from another site. Sign in here.", status=403)
    given = {name: values[0] for name, values in form.items()}
    client = request.client.host if request.client else "unknown"
    if console.tries.left(client) == 0:
        until = clock(time.time() + console.tries.wait_seconds(client))
        log.warning("sign-in refused: too many wrong tokens from %s", client)
        return _form(request, wrong=f"Too many wrong tokens. Try again at {until} UTC.", status=429)
    role = console.access.role_of(given.get("token", "").strip())
    if role is None:
        left = console.tries.wrong(client)
        log.warning("sign-in refused: a wrong token from %s", client)
        await _noted(console, None, "refused", f"a wrong token from {client}")
        tries = "1 more try" if left == 1 else f"{left} more tries"
        return _form(request, wrong=f"This token is not known here. {tries} in the next 10 minutes.", status=403)
    name = check_name(given.get("who", ""))
    if name is None:
        return _form(request, wrong_name="Give your name: it is kept with every action.", status=400)
    person, cookie = console.access.begin(name, role, time.time())
    await _noted(console, Visit(console, request, person), "done", f"as {role} from {client}")
    response = RedirectResponse(address(request, _next(given.get("next", ""))), status_code=303)
    response.set_cookie(
        COOKIE,
        cookie,
        max_age=int(SESSION_SECONDS),
        path=address(request, "/"),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


async def sign_out(request: Request) -> Response:
    """By POST, from a form of this console; ends the sign-in on the server, too."""
    console: Console = request.app.state.console
    form, person = await form_of(request), person_of(console, request)
    proven = form is not None and person is not None and console.access.proves(person, form.get("proof", [""])[0])
    response = RedirectResponse(address(request, "/sign-in"), status_code=303)
    if person is not None and proven and foreign(request) is None:
        console.ended.add(person)
        response.delete_cookie(COOKIE, path=address(request, "/"))
    return response


async def set_theme(request: Request) -> Response:
    """A choice of colours: it changes nothing but the look, so it needs no proof."""
    form = await form_of(request)
    theme = "" if form is None else form.get("theme", [""])[0]
    response = RedirectResponse(address(request, _next("" if form is None else form.get("next", [""])[0])), 303)
    if theme in THEMES:
        response.set_cookie(THEME, theme, max_age=THEME_SECONDS, path=address(request, "/"), samesite="strict")
    return response


def _form(request: Request, *, wrong: str = "", wrong_name: str = "", status: int = 200) -> Response:
    console: Console = request.app.state.console
    return render(
        console,
        request,
        "sign_in.html",
        status=status,
        title="Sign in",
        person=None,
        figures=None,
        wrong=wrong,
        wrong_name=wrong_name,
        next=request.query_params.get("next", ""),
        both=bool(console.access.viewer_token and console.access.operator_token),
        roles=[role.value for role in Role],
    )


def _next(given: str) -> str:
    """A path of this console; never another site."""
    safe = given.startswith("/") and not given.startswith("//") and "\\" not in given and given.isprintable()
    return given if safe else "/"


async def _noted(console: Console, visit: Visit | None, outcome: str, why: str) -> None:
    try:
        await console.note(None if visit is None else visit.person, "sign_in", outcome, why)
    except SamekeyError:
        log.warning("a sign-in was not written into the audit log: the store does not answer")
