"""The OpenAPI document of a FastAPI application: what its author wrote stands, and ours is told beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Body, Depends, FastAPI, Header
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from samekey import AsyncGuard, Opaque
from samekey.http import Endpoint
from samekey.http.fastapi import samekey_route

GUARD = AsyncGuard("memory://")
ENDPOINT = Endpoint(boundary=Opaque(), single_tenant=True)
PROBLEM = "application/problem+json"


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
