"""The header and our problems in an OpenAPI operation, in addition to what its author wrote. Pure: dictionaries.

What the author wrote wins, field by field: a description, a media type, a parameter. Our text fills the fields that are
left. A description that the framework made by itself is not the author's: ours is appended to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from http import HTTPStatus
from typing import Any

from samekey.core.policy import Policy
from samekey.http._problems import BAD_SIGNATURE, EVENT_ID_MISSING, PROBLEMS
from samekey.http.endpoint import Endpoint

PROBLEM_JSON = "application/problem+json"

# What `_key.py` accepts, as far as a client should know: parameters after a quoted key are left out.
BARE = r"^[!#-+\--:<-~]{1,255}$"
QUOTED = r'^"(?! *")([ !#-\[\]-~]|\\["\\]){1,255}"$'

UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


class Extra(dict[str, Any]):
    """What is put into an operation in addition to what the framework makes; `own` is the author's part of it."""

    own: dict[str, Any] | None


def extra(
    endpoint: Endpoint,
    policy: Policy,
    own: dict[str, Any] | None,
    described: Mapping[Any, Mapping[str, Any]],
    *,
    validates: bool,
    success: str,
) -> Extra:
    """The author's `own` extra with ours in it.

    `described` are the responses by status that the framework puts into the operation before this extra, `success` the
    status of the handler's own answer. A framework that `validates` adds a 422 of its own where none is described.
    """
    made = Extra(own or {})
    made.own = own
    if endpoint.key is None:
        made["parameters"] = Parameters(made.get("parameters", ()), header_parameter(endpoint, policy))
    made["responses"] = answers = dict(made.get("responses", {}))
    listed = {str(status): response for status, response in described.items()}
    for status in {success, *(status for status in {*listed, *answers} if status[:1] in "23")}:
        answers[status] = with_headers(answers.get(status, {}), listed.get(status, {}), success_headers(endpoint))
    for status, titles in titles_by_status().items():
        by_framework = None
        if status in listed:
            by_framework = HTTPStatus(int(status)).phrase
        elif status == "422" and validates and not listed.keys() & {"4XX", "default"}:
            by_framework = "Validation Error"
        merged = response_with_problem(answers.get(status, {}), listed.get(status, {}), titles, by_framework)
        answers[status] = with_headers(merged, listed.get(status, {}), problem_headers(endpoint, status))
    return made


def response_with_problem(
    own: dict[str, Any], listed: Mapping[str, Any], titles: str, by_framework: str | None
) -> dict[str, Any]:
    """The author's `own` response with our problem in the fields that neither it nor the `listed` one has."""
    if "$ref" in own or "$ref" in listed:
        return own  # a reference is the whole response: nothing can be added to it
    made = dict(own)
    if not (own.get("description") or listed.get("description")):
        made["description"] = titles if by_framework is None else f"{by_framework}. {titles}"
    if PROBLEM_JSON not in {*own.get("content", ()), *listed.get("content", ())}:
        made["content"] = {**own.get("content", {}), PROBLEM_JSON: {"schema": problem_schema(titles)}}
    return made


def with_headers(own: dict[str, Any], listed: Mapping[str, Any], headers: dict[str, Any]) -> dict[str, Any]:
    """The author's `own` response with those of our headers that neither it nor the `listed` one describes."""
    if "$ref" in own or "$ref" in listed:
        return own
    theirs = {*own.get("headers", ()), *listed.get("headers", ())}
    added = absent_headers(headers, theirs)
    return {**own, "headers": {**own.get("headers", {}), **added}} if added else own


def absent_headers(headers: dict[str, Any], theirs: Collection[str]) -> dict[str, Any]:
    known = {name.lower() for name in theirs}
    return {name: one for name, one in headers.items() if name.lower() not in known}


def success_headers(endpoint: Endpoint) -> dict[str, Any]:
    return {
        **key_header(endpoint),
        "Idempotent-Replayed": text_header("`true` on a replay: this answer was made for an earlier request."),
        "Idempotency-Stored": text_header(
            "`false` if a retry will not get this answer again: it was too long to keep."
        ),
    }


def key_header(endpoint: Endpoint) -> dict[str, Any]:
    return {} if endpoint.key is not None else {endpoint.header: text_header("The key, as it was understood.")}


def problem_headers(endpoint: Endpoint, status: str) -> dict[str, Any]:
    made = key_header(endpoint)
    if any(problem.retry and str(problem.status) == status for problem in PROBLEMS):
        made["Retry-After"] = {"description": "Seconds to wait before a retry.", "schema": {"type": "integer"}}
    return made


def text_header(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}}


def titles_by_status() -> dict[str, str]:
    """The titles of our problems with each status, in one line."""
    titles: dict[str, list[str]] = {}
    for problem in PROBLEMS:
        if problem not in (BAD_SIGNATURE, EVENT_ID_MISSING):  # webhooks only
            titles.setdefault(str(problem.status), []).append(problem.title)
    return {status: ". ".join(several) for status, several in titles.items()}


def problem_schema(titles: str) -> dict[str, Any]:
    members = {name: {"type": "integer" if name == "status" else "string"} for name in MEMBERS}
    return {"type": "object", "description": titles, "required": list(MEMBERS), "properties": members}


MEMBERS = ("type", "title", "status", "detail")


class Parameters(list[Any]):
    """The author's `own` parameters with our header, once.

    The parameters of the handler's signature are not known here: they may belong to a dependency of a router that
    includes this one. The framework adds this list to them (`theirs + ours`), and a list subclass may define how.
    """

    def __init__(self, own: Iterable[Any], header: dict[str, Any]) -> None:
        self._own, self._header = list(own), header
        super().__init__(with_header(self._own, header))

    def __radd__(self, theirs: list[Any]) -> list[Any]:
        return with_header([*theirs, *self._own], self._header)


def with_header(parameters: list[Any], header: dict[str, Any]) -> list[Any]:
    """Our header after the others, or in the fields that the author's declaration of it does not have."""
    merged, missing = [], True
    for one in parameters:
        if one.get("in") == "header" and one.get("name", "").lower() == header["name"].lower():
            missing = False
            # A signature may let it be absent where the endpoint's rules do not.
            one = {**header, **one, "required": one.get("required", False) or header["required"]}
        merged.append(one)
    return [*merged, header] if missing else merged


def header_parameter(endpoint: Endpoint, policy: Policy) -> dict[str, Any]:
    return {
        "name": endpoint.header,
        "in": "header",
        "required": endpoint.required,
        "description": "Names this one request: send it again with the same key and it is not done twice. "
        f"{kept_for(endpoint.policy or policy)}",
        "schema": {"type": "string", "pattern": QUOTED if endpoint.strict else f"{BARE}|{QUOTED}"},
    }


def kept_for(policy: Policy) -> str:
    """How long a client may rely on a key.

    >>> kept_for(Policy())
    'A key expires 24 hours after its answer; later it names a new request.'
    """
    seconds = policy.retention_seconds
    # Days only from two on: "24 hours" is what clients know.
    size, unit = next(
        (size, unit) for size, unit in UNITS if seconds >= size * (2 if unit == "day" else 1) or size == 1
    )
    count = f"{seconds / size:.3g}"
    return f"A key expires {count} {unit}{'' if count == '1' else 's'} after its answer; later it names a new request."
