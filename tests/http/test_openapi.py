"""The OpenAPI documents of FastAPI and Litestar: what the author wrote wins, ours fills the fields that are left."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Body, Depends, FastAPI, Header
from fastapi.openapi.utils import get_openapi
from fastapi.responses import RedirectResponse
from litestar import Litestar, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Body as LitestarBody
from litestar.params import HeaderParameter
from pydantic import BaseModel

from samekey import CONTENT, AsyncGuard, Opaque, Policy
from samekey.http import Endpoint
from samekey.http.fastapi import samekey_route
from samekey.http.litestar import SamekeyPlugin

GUARD = AsyncGuard("memory://")
ENDPOINT = Endpoint(boundary=Opaque(), single_tenant=True)
PROBLEM = "application/problem+json"


@dataclass
class Charge:
    amount: int


class Conflict(BaseModel):
    seat: int


def guarded_router(endpoint: Endpoint = ENDPOINT, **options: Any) -> APIRouter:
    return APIRouter(route_class=samekey_route(guard=GUARD, endpoint=endpoint), **options)


def told(
    handler: Callable[..., Any] = lambda: None,
    endpoint: Endpoint = ENDPOINT,
    include: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """The operation of one route, in an application that includes its router."""
    router, app = guarded_router(endpoint), FastAPI()
    router.post("/charges", **options)(handler)
    app.include_router(router, **(include or {}))
    return app.openapi()["paths"]["/charges"]["post"]


def plain() -> None:
    """A handler of nothing."""


def test_an_extra_of_the_route_stands_beside_ours() -> None:
    page = {"name": "page", "in": "query", "schema": {"type": "integer"}}
    extra = {
        "x-internal": True,
        "parameters": [page],
        "responses": {"409": {"description": "The seat is taken"}, "418": {"description": "A teapot"}},
    }
    operation = told(plain, openapi_extra=extra)
    responses = operation["responses"]

    assert operation["x-internal"] is True
    assert [one["name"] for one in operation["parameters"]] == ["page", "Idempotency-Key"]
    assert responses["418"] == {"description": "A teapot"}
    assert responses["409"]["description"] == "The seat is taken"
    assert PROBLEM in responses["409"]["content"]
    assert {"400", "413", "422", "503"} <= responses.keys()
    assert extra["parameters"] == [page], "what the author gave is not changed"
    assert extra["responses"]["409"] == {"description": "The seat is taken"}  # type: ignore[index]


def test_responses_that_were_described_are_kept() -> None:
    own = {"schema": {"type": "object", "properties": {"code": {"type": "string"}}}}
    described = {
        400: {"description": "Not a seat"},
        409: {"model": Conflict},
        "422": {"description": "Wrong", "content": {PROBLEM: own}},
    }
    responses = told(plain, responses=described)["responses"]

    assert responses["400"]["description"] == "Not a seat"
    assert "is missing" in responses["400"]["content"][PROBLEM]["schema"]["description"]
    assert responses["409"]["description"].startswith("Conflict. A request is outstanding")
    assert responses["409"]["content"].keys() == {"application/json", PROBLEM}
    assert responses["409"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Conflict"}
    assert responses["422"].pop("headers").keys() == {"Idempotency-Key"}
    assert responses["422"] == {"description": "Wrong", "content": {PROBLEM: own}}


def test_a_response_that_is_a_reference_stays_one() -> None:
    shared = {"$ref": "#/components/responses/Conflict"}
    assert told(plain, openapi_extra={"responses": {"409": shared}})["responses"]["409"] == shared
    assert "content" not in told(plain, responses={409: shared})["responses"]["409"]


def test_422_tells_of_both() -> None:
    """FastAPI answers it for what does not validate, and we for a key that is used again."""

    def validated(amount: Annotated[int, Body()]) -> None: ...

    answered = told(validated)["responses"]["422"]
    assert answered["description"] == "Validation Error. Idempotency-Key is already used"
    assert answered["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/HTTPValidationError"}
    assert answered["content"][PROBLEM]["schema"]["properties"].keys() >= {"type", "title"}

    assert told(plain)["responses"]["422"]["description"] == "Idempotency-Key is already used"


@pytest.mark.parametrize("where", ["handler", "extra", "include"])
def test_a_header_that_the_author_declared_is_told_once(where: str) -> None:
    """Their words for it, and ours where they have none; it is required if either says so."""

    def declared(idempotency_key: Annotated[str | None, Header(max_length=64)] = None) -> None: ...

    required = Endpoint(boundary=Opaque(), single_tenant=True, required=True)
    if where == "handler":
        operation = told(declared, required)
    elif where == "include":
        operation = told(plain, required, include={"dependencies": [Depends(declared)]})
    else:
        header = {
            "name": "idempotency-key",
            "in": "header",
            "required": False,
            "schema": {"type": "string", "maxLength": 64},
        }
        operation = told(plain, required, openapi_extra={"parameters": [header]})
    (header,) = operation["parameters"]

    assert (header["name"], header["required"]) == ("idempotency-key", True)
    assert "64" in str(header["schema"])
    assert "not done twice" in header["description"]


def test_a_description_of_the_header_is_the_authors() -> None:
    def declared(key: Annotated[str, Header(alias="Idempotency-Key", description="A UUID, please")]) -> None: ...

    (header,) = told(declared)["parameters"]
    assert (header["name"], header["description"], header["required"]) == ("Idempotency-Key", "A UUID, please", True)


def test_what_stands_around_a_route_is_the_authors_word_too() -> None:
    """Responses of the router, of those it is included in, and of the application."""
    inner = guarded_router(responses={400: {"description": "of the router"}})
    outer = APIRouter()
    app = FastAPI(responses={503: {"description": "of the application"}})
    inner.post("/charges")(plain)
    outer.include_router(inner, prefix="/seats", responses={409: {"description": "of the inclusion"}})
    app.include_router(outer, prefix="/v1", responses={422: {"description": "of the outer inclusion"}})
    operation = app.openapi()["paths"]["/v1/seats/charges"]["post"]
    responses = operation["responses"]

    assert {status: responses[status]["description"] for status in ("400", "409", "422", "503")} == {
        "400": "of the router",
        "409": "of the inclusion",
        "422": "of the outer inclusion",
        "503": "of the application",
    }
    assert all(PROBLEM in responses[status]["content"] for status in ("400", "409", "422", "503"))
    assert [one["name"] for one in operation["parameters"]] == ["Idempotency-Key"]


def test_an_application_that_is_mounted_tells_of_its_own() -> None:
    app, mounted = FastAPI(), FastAPI()
    router = guarded_router()
    router.post("/charges", responses={409: {"description": "taken"}})(plain)
    mounted.include_router(router)
    app.mount("/v2", mounted)

    assert mounted.openapi()["paths"]["/charges"]["post"]["responses"]["409"]["description"] == "taken"
    assert "/charges" not in app.openapi()["paths"]


def test_a_document_that_the_author_makes_has_it_too() -> None:
    """As FastAPI's documentation shows it; what is changed there is changed there alone."""
    app, router = FastAPI(), guarded_router()
    router.post("/charges")(plain)
    router.post("/refunds")(plain)
    app.include_router(router)

    def made() -> dict[str, Any]:
        document = get_openapi(title="shop", version="1", routes=app.routes)
        refunds: Any = document["paths"]["/refunds"]["post"]["responses"]
        refunds["409"]["content"][PROBLEM]["schema"]["properties"]["code"] = {"type": "string"}
        return document

    app.openapi = made  # type: ignore[method-assign]
    assert made() == made()
    paths = app.openapi()["paths"]

    assert [one["name"] for one in paths["/charges"]["post"]["parameters"]] == ["Idempotency-Key"]
    assert "code" not in paths["/charges"]["post"]["responses"]["409"]["content"][PROBLEM]["schema"]["properties"]


def litestar_operation(endpoint: Endpoint = ENDPOINT, guard: AsyncGuard = GUARD, **options: Any) -> Any:
    @post("/charges", **options)
    async def charge(data: Annotated[Charge, LitestarBody()]) -> Charge:
        return data

    app = Litestar([charge], plugins=[SamekeyPlugin(guard=guard, endpoint=endpoint)])
    return app.openapi_schema.to_schema()["paths"]["/charges"]["post"]


OPERATIONS = {
    "fastapi": lambda endpoint=ENDPOINT, **options: told(plain, endpoint, **options),
    "litestar": litestar_operation,
}


@pytest.mark.parametrize("framework", OPERATIONS)
def test_problems_and_their_headers_are_described(framework: str) -> None:
    responses = OPERATIONS[framework]()["responses"]

    for status in ("400", "401", "403", "409", "413", "422", "503"):
        assert PROBLEM in responses[status]["content"], status
        assert "Idempotency-Key" in responses[status]["headers"], status
        assert ("Retry-After" in responses[status]["headers"]) is (status in ("409", "503"))
    assert responses["409"]["content"][PROBLEM]["schema"]["required"] == ["type", "title", "status", "detail"]
    assert "event" not in responses["400"]["content"][PROBLEM]["schema"]["description"], "webhooks only"


@pytest.mark.parametrize("framework", OPERATIONS)
def test_where_the_content_is_the_key_no_key_header_is_described(framework: str) -> None:
    made = OPERATIONS[framework](Endpoint(boundary=Opaque(), single_tenant=True, key=CONTENT), status_code=202)

    assert [one for one in made.get("parameters", ()) if one["in"] == "header"] == []
    assert made["responses"]["202"]["headers"].keys() == {"Idempotent-Replayed", "Idempotency-Stored"}


@pytest.mark.parametrize("framework", OPERATIONS)
def test_headers_of_the_answer_are_described(framework: str) -> None:
    responses = OPERATIONS[framework](status_code=202)["responses"]

    assert responses["202"]["headers"].keys() == {"Idempotency-Key", "Idempotent-Replayed", "Idempotency-Stored"}


@pytest.mark.parametrize("framework", OPERATIONS)
@pytest.mark.parametrize(
    ("retention", "text"),
    [
        (24 * 3600, "expires 24 hours after"),
        (timedelta(days=30), "expires 30 days after"),
        (3600, "expires 1 hour after"),
        (90, "expires 1.5 minutes after"),
    ],
)
def test_a_client_reads_when_a_key_expires(framework: str, retention: Any, text: str) -> None:
    endpoint = Endpoint(boundary=Opaque(), single_tenant=True, policy=Policy(retention=retention))
    (header,) = (one for one in OPERATIONS[framework](endpoint)["parameters"] if one["in"] == "header")

    assert text in header["description"]


def test_a_redirect_has_the_headers_of_its_own_status() -> None:
    assert "headers" in told(plain, response_class=RedirectResponse)["responses"]["307"]


def test_the_policy_of_the_guard_counts_where_the_endpoint_has_none() -> None:
    guard = AsyncGuard("memory://", policy=Policy(retention=7200))

    assert "2 hours" in litestar_operation(guard=guard)["parameters"][-1]["description"]


def test_in_litestar_too_the_words_of_the_author_win() -> None:
    described = {409: ResponseSpec(Charge, description="The seat is taken")}
    responses = litestar_operation(responses=described)["responses"]

    assert responses["409"]["description"] == "The seat is taken"
    assert responses["409"]["content"].keys() == {"application/json", PROBLEM}
    assert responses["409"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Charge"}
    assert responses["400"]["content"].keys() == {"application/json", PROBLEM}, "Litestar's own validation, and ours"


def test_in_litestar_a_header_that_the_author_declared_is_described_once() -> None:
    @post("/charges")
    async def charge(key: Annotated[str | None, HeaderParameter(name="idempotency-key")] = None) -> None: ...

    @post("/free", opt={"samekey": None})
    async def free() -> None: ...

    required = Endpoint(boundary=Opaque(), single_tenant=True, required=True)
    app = Litestar([charge, free], plugins=[SamekeyPlugin(guard=GUARD, endpoint=required)])
    paths = app.openapi_schema.to_schema()["paths"]
    (header,) = paths["/charges"]["post"]["parameters"]

    assert (header["name"].lower(), header["required"]) == ("idempotency-key", True)
    assert "not done twice" in header["description"]
    assert "parameters" not in paths["/free"]["post"]
    assert "409" not in paths["/free"]["post"]["responses"]
