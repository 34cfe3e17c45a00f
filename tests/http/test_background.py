"""Background tasks of Starlette, FastAPI and Litestar: their exceptions change neither the answer nor the record."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, HTTPException
from litestar import Litestar, Response, post
from litestar.background_tasks import BackgroundTask as LitestarTask
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from samekey import AsyncGuard, Opaque, State
from samekey.http import Endpoint
from samekey.http.asgi import SamekeyMiddleware
from samekey.http.fastapi import samekey_route
from samekey.http.litestar import SamekeyPlugin
from samekey.testing.http.drivers import Got, Sent, asgi_send

ENDPOINT = Endpoint(boundary=Opaque(), single_tenant=True)
POST = Sent("POST", "/charges", headers=(("Idempotency-Key", "k-1"),))


class Story:
    """What the application did, in order; `task` raises what it is given."""

    def __init__(self, raises: type[Exception] = ValueError) -> None:
        self.told: list[str] = []
        self._raises = raises

    async def task(self) -> None:
        self.told.append("task")
        raise self._raises(500) if self._raises is HTTPException else self._raises("the mail could not be sent")

    async def session(self) -> AsyncIterator[str]:
        try:
            yield "session"
        except BaseException:
            self.told.append("rolled back")
            raise
        self.told.append("committed")


def starlette(story: Story, guard: AsyncGuard, where: str) -> Any:
    async def charge(request: Any) -> Any:
        if where == "streamed":
            return StreamingResponse(iter(["charged"]), background=BackgroundTask(story.task))
        return JSONResponse("charged", background=BackgroundTask(story.task))

    ours = Middleware(SamekeyMiddleware, guard=guard, endpoint=ENDPOINT)
    if where == "route":
        return Starlette(routes=[Route("/charges", charge, methods=["POST"], middleware=[ours])])
    return Starlette(routes=[Route("/charges", charge, methods=["POST"])], middleware=[ours])


def fastapi(story: Story, guard: AsyncGuard, where: str, *, session: Any = None) -> Any:
    app = FastAPI()
    if where == "middleware":
        app.add_middleware(SamekeyMiddleware, guard=guard, endpoint=ENDPOINT)
        router = APIRouter()
    else:
        router = APIRouter(route_class=samekey_route(guard=guard, endpoint=ENDPOINT))

    @router.post("/charges")
    async def charge(tasks: BackgroundTasks, session: Annotated[str, Depends(session or story.session)]) -> str:
        tasks.add_task(story.task)
        return "charged"

    app.include_router(router)
    return app


def litestar(story: Story, guard: AsyncGuard, where: str) -> Any:
    @post("/charges", status_code=200)
    async def charge() -> Response[str]:
        return Response("charged", background=LitestarTask(story.task))

    return Litestar([charge], plugins=[SamekeyPlugin(guard=guard, endpoint=ENDPOINT)], openapi_config=None)


APPS = {
    "starlette route": (starlette, "route"),
    "starlette middleware": (starlette, "middleware"),
    "starlette stream": (starlette, "streamed"),
    "fastapi route class": (fastapi, "route"),
    "fastapi middleware": (fastapi, "middleware"),
    "litestar": (litestar, "plugin"),
}


async def sent_twice(app: Any, guard: AsyncGuard) -> tuple[Got, Got, State]:
    first, second = await asgi_send(app, POST), await asgi_send(app, POST)
    record = await guard.peek("POST /charges", "k-1")
    assert record is not None
    return first, second, record.state


@pytest.mark.parametrize("raises", [ValueError, HTTPException])
@pytest.mark.parametrize("name", APPS)
async def test_a_background_task_that_fails_changes_neither_the_answer_nor_the_record(name: str, raises: Any):
    make, where = APPS[name]
    story, guard = Story(raises), AsyncGuard("memory://")
    first, second, state = await sent_twice(make(story, guard, where), guard)

    assert (first.status, second.status, second.body, state) == (200, 200, first.body, State.COMPLETED)
    assert second.header("idempotent-replayed") == "true"
    logged = [first.error, getattr(first.error, "__cause__", None)]  # Starlette wraps what it has a handler for
    assert any(isinstance(one, raises) for one in logged), "the server still logs it"
    assert story.told == (["task", "committed"] if make is fastapi else ["task"])


@pytest.mark.parametrize("where", ["route", "middleware"])
async def test_a_yield_dependency_that_fails_after_the_task_still_decides(where: str):
    async def session() -> AsyncIterator[str]:
        yield "session"
        raise ConnectionError("the commit failed")

    story, guard = Story(), AsyncGuard("memory://")
    first, second, state = await sent_twice(fastapi(story, guard, where, session=session), guard)

    assert (first.status, second.status, state) == (500, 409, State.IN_DOUBT)
    assert isinstance(first.error, ConnectionError)


async def test_a_response_that_is_used_again_keeps_its_own_task():
    """An application may build its response once and return it for every request."""
    story, guard = Story(), AsyncGuard("memory://")
    response = JSONResponse("charged", background=BackgroundTask(story.task))

    async def charge(request: Any) -> Any:
        return response

    app = Starlette(
        routes=[Route("/charges", charge, methods=["POST"])],
        middleware=[Middleware(SamekeyMiddleware, guard=guard, endpoint=ENDPOINT)],
    )
    keys = [POST._replace(headers=(("Idempotency-Key", key),)) for key in ("a", "b")]
    got = [await asgi_send(app, one) for one in (*keys, *keys)]

    assert [one.status for one in got] == [200] * 4
    assert [type(one.error) for one in got] == [ValueError, ValueError, type(None), type(None)]
    assert story.told == ["task", "task"]
