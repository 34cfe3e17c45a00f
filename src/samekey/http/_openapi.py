"""The header and our problems in an OpenAPI operation, beside what its author wrote. Pure: dictionaries in and out.

Whatever the author wrote stays, field by field - a description, a media type, a parameter -, and ours is told in every
field that is left. What the framework puts there by itself is nobody's word: it is told together with ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from samekey.http._problems import BAD_SIGNATURE, PROBLEMS
from samekey.http.endpoint import Endpoint

PROBLEM_JSON = "application/problem+json"

# What `_key.py` takes, as far as a client should care: parameters behind a quoted key are left out.
BARE = r"^[!#-+\--:<-~]{1,255}$"
QUOTED = r'^"(?! *")([ !#-\[\]-~]|\\["\\]){1,255}"$'


class Extra(dict[str, Any]):
    """What is put into an operation on top of what the framework makes; `own` is the author's part of it."""

    own: dict[str, Any] | None


def extra(
    endpoint: Endpoint,
    own: dict[str, Any] | None,
    described: Mapping[Any, Mapping[str, Any]],
    *,
    validates: bool,
) -> Extra:
    """The author's `own` extra with ours in it.

    `described` are responses by status that the framework puts into the operation before it; it `validates` if it
    adds a 422 of its own where none is described.
    """
    made = Extra(own or {})
    made.own = own
    made["parameters"] = Parameters(made.get("parameters", ()), header_parameter(endpoint))
    made["responses"] = answers = dict(made.get("responses", {}))
    listed = {str(status): response for status, response in described.items()}
    for status, titles in titles_by_status().items():
        by_framework = None
        if status in listed:
            by_framework = HTTPStatus(int(status)).phrase
        elif status == "422" and validates and not listed.keys() & {"4XX", "default"}:
            by_framework = "Validation Error"
        answers[status] = response_beside(answers.get(status, {}), listed.get(status, {}), titles, by_framework)
    return made


def response_beside(
    own: dict[str, Any], listed: Mapping[str, Any], titles: str, by_framework: str | None
) -> dict[str, Any]:
    """The author's `own` response with ours in the fields that neither it nor the `listed` one has."""
    if "$ref" in own or "$ref" in listed:
        return own  # it stands for the whole response: nothing can stand beside it
    made = dict(own)
    if not (own.get("description") or listed.get("description")):
        made["description"] = titles if by_framework is None else f"{by_framework}. {titles}"
    if PROBLEM_JSON not in {*own.get("content", ()), *listed.get("content", ())}:
        made["content"] = {**own.get("content", {}), PROBLEM_JSON: {"schema": problem_schema(titles)}}
    return made


def titles_by_status() -> dict[str, str]:
    """What each status of ours says, in one line."""
    told: dict[str, list[str]] = {}
    for problem in PROBLEMS:
        if problem is not BAD_SIGNATURE:  # webhooks only
            told.setdefault(str(problem.status), []).append(problem.title)
    return {status: ". ".join(titles) for status, titles in told.items()}


def problem_schema(titles: str) -> dict[str, Any]:
    members = {name: {"type": "integer" if name == "status" else "string"} for name in MEMBERS}
    return {"type": "object", "description": titles, "required": list(MEMBERS), "properties": members}


MEMBERS = ("type", "title", "status", "detail")


class Parameters(list[Any]):
    """The author's `own` parameters with our header, once.

    Those of the handler's signature are not known here: they may belong to a dependency of a router around this one.
    The framework adds ours to them (`theirs + ours`), and a list of a class of its own may say how.
    """

    def __init__(self, own: Iterable[Any], header: dict[str, Any]) -> None:
        self._own, self._header = list(own), header
        super().__init__(with_header(self._own, header))

    def __radd__(self, theirs: list[Any]) -> list[Any]:
        return with_header([*theirs, *self._own], self._header)


def with_header(parameters: list[Any], header: dict[str, Any]) -> list[Any]:
    """Ours behind the others, or in the fields that the author's declaration of it has not."""
    name = header["name"].lower()
    places = [
        place
        for place, one in enumerate(parameters)
        if one.get("in") == "header" and one.get("name", "").lower() == name
    ]
    if not places:
        return [*parameters, header]
    merged = list(parameters)
    for place in places:
        theirs = merged[place]
        # A signature may let it be absent where the endpoint's rules do not.
        merged[place] = {**header, **theirs, "required": theirs.get("required", False) or header["required"]}
    return merged


def header_parameter(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "name": endpoint.header,
        "in": "header",
        "required": endpoint.required,
        "description": "Names this one request: send it again with the same key and it is not done twice.",
        "schema": {"type": "string", "pattern": QUOTED if endpoint.strict else f"{BARE}|{QUOTED}"},
    }
