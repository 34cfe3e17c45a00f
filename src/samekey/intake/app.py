"""The HTTP service: routes and shapes of the public trigger API, so that its client works unchanged.

An ASGI application over an AsyncIntake. Paths are split before they are decoded: task ids, keys and packet names may
hold `%2F`. Errors have the shape that the client reads, `{"error": text}`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from samekey.core.errors import CallerError, Misconfigured, SamekeyError
from samekey.intake import admin, tokens
from samekey.intake.batches import Batches, batch_shown
from samekey.intake.intake import AsyncIntake
from samekey.intake.listing import asked_page, page_shown
from samekey.intake.metrics import exposition
from samekey.intake.runs import Problem, Run
from samekey.intake.show import SCHEMA, meaning_of, result_of, row_of, shown

BODY_MAX_BYTES = 4 << 20
KEYS_SECONDS = 5.0  # how long an API key that was found is not looked up again; a revoked one is refused after it
KEYS_MAX = 10_000
LIVE_SECONDS = 20.0  # a realtime request is answered after this, changed or not
LIVE_LOOK_SECONDS = 0.25
REQUEST_ID = "x-trigger-request-idempotency-key"
REQUEST_ID_MAX = 255


class Caller(NamedTuple):
    """Whose request it is; `run`: a token that may read this run only."""

    environment: str
    run: str | None = None


Handler = Callable[["App", Request, Caller, list[str]], Awaitable[Response]]


class App:
    """The ASGI application."""

    def __init__(self, intake: AsyncIntake) -> None:
        self.intake = intake
        self.batches = Batches(intake)
        self._keys: dict[str, tuple[float, str]] = {}
        self.requests = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await _lifespan(receive, send, self.intake)
        if scope["type"] != "http":
            return
        self.requests += 1
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
        except Problem as problem:
            response = error(problem)
        except ClientDisconnect:
            return
        except CallerError as refused:
            response = error(Problem(400, str(refused)))
        except SamekeyError:
            response = error(Problem(503, "a store does not answer; try again", retry_after=1.0))
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        raw = request.scope.get("raw_path") or request.scope["path"].encode()
        segments = [unquote_to_bytes(one).decode("utf-8", "replace") for one in raw.partition(b"?")[0][1:].split(b"/")]
        public = PUBLIC.get((request.method, segments[0])) if len(segments) == 1 else None
        if public is not None:
            return await public(self, request, Caller(""), [])
        if request.method == "PUT" and segments[0] == "packets" and len(segments) == 2:
            return await self._upload(request, segments[1])
        caller = await self._caller(request)
        for method, pattern, handler, _ in ROUTES:
            found = _matched(pattern, segments)
            if found is not None and method == request.method:
                if caller.run is not None and (method != "GET" or caller.run not in found):
                    raise Problem(403, "this token may read one run only")
                return await handler(self, request, caller, found)
        raise Problem(404, "no such route")

    async def _caller(self, request: Request) -> Caller:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise Problem(401, "an API key is needed: Authorization: Bearer sk_...")
        if given.startswith(tokens.PREFIX):
            known = await self.intake.context()
            for secret in known.secrets.values():
                opened = tokens.opened(secret, "run", given)
                if opened is not None:
                    return Caller(*opened)
            raise Problem(401, "this token is not valid any more")
        digest = admin.digest_of(given)
        kept = self._keys.get(digest)
        if kept is None or kept[0] < time.monotonic():
            environment = await self.intake.carry_out(admin.WhoseKey(digest))
            if environment is None:
                self._keys.pop(digest, None)
                raise Problem(401, "unknown or revoked API key")
            if len(self._keys) >= KEYS_MAX:
                self._keys.clear()
            kept = self._keys[digest] = (time.monotonic() + KEYS_SECONDS, environment)
        return Caller(kept[1])

    # -- triggers

    async def trigger(self, request: Request, caller: Caller, found: list[str]) -> Response:
        body = await _json(request)
        options = _object(body, "options")
        header = request.headers.get("idempotency-key")
        key = options.get("idempotencyKey") or header
        if header is not None and key != header:
            raise Problem(400, "the header Idempotency-Key and options.idempotencyKey differ")
        given = await self.options_of(body.get("payload"), options, caller.environment)
        given["key"], given["request_id"] = key, _request_id(request)
        payload = given.pop("payload")
        done = await self.intake.run(self.intake.triggering(found[0], payload, given))
        known = await self.intake.context()
        secret = known.secrets[max(known.secrets)]
        token = tokens.signed(secret, "run", caller.environment, done.id, tokens.RUN_SECONDS)
        return JSONResponse({"id": done.id, "isCached": done.cached}, headers={"x-trigger-jwt": token})

    async def options_of(self, payload: Any, options: dict[str, Any], environment: str) -> dict[str, Any]:
        """The options of a trigger, as `Intake.trigger` takes them; those we do not act on are kept with the run."""
        kind = options.get("payloadType")
        if kind == "application/store":
            packet = await self.intake.carry_out(admin.ReadPacket(environment, str(payload)))
            if packet is None:
                raise Problem(422, "the payload's packet was not uploaded")
            kind, payload = _packet_type(packet), packet[1].decode("utf-8", "surrogatepass")
        elif kind is not None and payload is not None and not isinstance(payload, str):
            kind = None  # plain JSON, whatever the type says
        shown_as = options.get("idempotencyKeyOptions") or {}
        given: dict[str, Any] = {
            "environment": environment,
            "payload": payload,
            "key": options.get("idempotencyKey"),
            "key_ttl": options.get("idempotencyKeyTTL"),
            "key_shown": shown_as.get("key") if isinstance(shown_as.get("key"), str) else None,
            "tags": options.get("tags"),
            "metadata": _metadata(options),
            "delay": options.get("delay"),
            "ttl": options.get("ttl"),
            "options": {name: value for name, value in options.items() if name not in _OURS},
        }
        if kind is not None:
            given |= {"payload_type": kind, "fingerprinted": meaning_of(payload, kind)}
        return given

    # -- runs

    async def retrieve(self, request: Request, caller: Caller, found: list[str]) -> Response:
        return JSONResponse(shown(await self.intake.get(found[0], environment=caller.environment)))

    async def list_runs(self, request: Request, caller: Caller, found: list[str]) -> Response:
        asked = asked_page(request.query_params)
        runs = await self.intake.list(environment=caller.environment, **{**asked, "size": asked["size"]})
        return JSONResponse(page_shown(runs, asked))

    async def cancel(self, request: Request, caller: Caller, found: list[str]) -> Response:
        return JSONResponse({"id": (await self.intake.cancel(found[0], environment=caller.environment)).id})

    async def reschedule(self, request: Request, caller: Caller, found: list[str]) -> Response:
        delay = (await _json(request)).get("delay")
        return JSONResponse(shown(await self.intake.reschedule(found[0], delay, environment=caller.environment)))

    async def replay(self, request: Request, caller: Caller, found: list[str]) -> Response:
        """A new run of the same task with the same payload, or with the payload that is given."""
        run = await self.intake.get(found[0], environment=caller.environment)
        body = await _json(request)
        given: dict[str, Any] = {
            "environment": caller.environment,
            "tags": body.get("tags", run.tags),
            "metadata": body.get("metadata", dict(run.metadata)),
            "options": {**run.options, "replayOf": run.id},
            "request_id": _request_id(request),
        }
        payload, kind = run.payload, run.payload_type
        if "payload" in body:
            payload, kind = body["payload"], body.get("payloadType", "application/json")
            payload = payload if isinstance(payload, str) else json.dumps(payload)
        given |= {"payload_type": kind, "fingerprinted": [run.id, meaning_of(payload, kind)]}
        done = await self.intake.run(self.intake.triggering(run.task, payload, given))
        return JSONResponse({"id": done.id})

    async def tags(self, request: Request, caller: Caller, found: list[str]) -> Response:
        tags = (await _json(request)).get("tags")
        run = await self.intake.add_tags(found[0], tags, environment=caller.environment)  # type: ignore[arg-type]
        return JSONResponse({"message": f"the run has {len(run.tags)} tags"})

    async def metadata(self, request: Request, caller: Caller, found: list[str]) -> Response:
        if request.method == "GET":
            run = await self.intake.get(found[0], environment=caller.environment)
            return JSONResponse({"metadata": dict(run.metadata)})
        body = await _json(request)
        operations = body.get("operations") or []
        if not isinstance(operations, list):
            raise Problem(422, "operations must be a list")
        run = await self.intake.update_metadata(
            found[0],
            body.get("metadata"),
            operations,
            environment=caller.environment,
            operation_id=_request_id(request),
        )
        return JSONResponse({"metadata": dict(run.metadata)})

    async def result(self, request: Request, caller: Caller, found: list[str]) -> Response:
        run = await self.intake.get(found[0], environment=caller.environment)
        if not run.state.over:
            raise Problem(404, "the run is not over")
        return JSONResponse(result_of(run))

    async def reset(self, request: Request, caller: Caller, found: list[str]) -> Response:
        task = (await _json(request)).get("taskIdentifier")
        await self.intake.reset_key(str(task or ""), found[0], environment=caller.environment)
        return JSONResponse({"id": found[0]})

    async def report(self, request: Request, caller: Caller, found: list[str]) -> Response:
        """start, complete {output}, fail {error}: our own addition, for the worker."""
        body, (run_id, what) = await _json(request), found
        if what == "start":
            run = await self.intake.start(run_id, environment=caller.environment)
        elif what == "complete":
            run = await self.intake.complete(run_id, body.get("output"), environment=caller.environment)
        elif what == "fail":
            run = await self.intake.fail(run_id, str(body.get("error", "")), environment=caller.environment)
        else:
            raise Problem(404, "no such route")
        return JSONResponse(shown(run))

    # -- batches

    async def open_batch(self, request: Request, caller: Caller, found: list[str]) -> Response:
        answer = await self.batches.open(await _json(request), caller.environment, _request_id(request))
        return JSONResponse(answer, 202)

    async def batch_items(self, request: Request, caller: Caller, found: list[str]) -> Response:
        async def items() -> AsyncIterator[dict[str, Any]]:
            async for item in _lines(request):
                options = await self.options_of(item.get("payload"), _object(item, "options"), caller.environment)
                yield {"index": item.get("index"), "task": item.get("task"), "given": options}

        return JSONResponse(await self.batches.add(found[0], caller.environment, items()))

    async def read_batch(self, request: Request, caller: Caller, found: list[str]) -> Response:
        batch, runs = await self.batches.read(found[0], caller.environment)
        return JSONResponse(batch_shown(batch, runs))

    # -- packets

    async def packet(self, request: Request, caller: Caller, found: list[str]) -> Response:
        known = await self.intake.context()
        secret = known.secrets[max(known.secrets)]
        token = tokens.signed(secret, "packet", caller.environment, found[0], tokens.PACKET_SECONDS)
        base = f"{request.url.scheme}://{request.headers.get('host', '')}"
        return JSONResponse({"presignedUrl": f"{base}/packets/{token}", "storagePath": found[0]})

    async def _upload(self, request: Request, token: str) -> Response:
        known = await self.intake.context()
        for secret in known.secrets.values():
            opened = tokens.opened(secret, "packet", token)
            if opened is not None:
                content = await _body(request, self.intake.settings.payload_max_bytes)
                kind = request.headers.get("content-type", "application/json")
                await self.intake.carry_out(admin.PutPacket(*opened, kind, content))
                return Response(status_code=200)
        raise Problem(403, "this upload address is not valid any more")

    # -- realtime

    async def subscribe(self, request: Request, caller: Caller, found: list[str]) -> Response:
        """One run as an Electric shape; a live request waits until the run has changed."""
        asked = request.query_params
        run = await self.intake.get(found[0], environment=caller.environment)
        live, ends = asked.get("live") == "true", time.monotonic() + LIVE_SECONDS
        while live and _offset(run) == asked.get("offset") and time.monotonic() < ends:
            await asyncio.sleep(LIVE_LOOK_SECONDS)
            run = await self.intake.get(found[0], environment=caller.environment)
        changed = _offset(run) != asked.get("offset")
        operation = "insert" if asked.get("offset") == "-1" else "update"
        messages: list[Any] = []
        if changed:
            messages.append({"key": run.id, "value": row_of(run), "headers": {"operation": operation}})
        messages.append({"headers": {"control": "up-to-date"}})
        headers = {
            "electric-offset": _offset(run),
            "electric-handle": run.id,
            "electric-schema": json.dumps(SCHEMA),
            "electric-cursor": str(int(time.time() * 1000)),
            "electric-up-to-date": "",
            "cache-control": "no-store",
        }
        return JSONResponse(messages, headers=headers)

    # -- the service itself

    async def health(self, request: Request, caller: Caller, found: list[str]) -> Response:
        await self.intake.carry_out(admin.Environments())
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request, caller: Caller, found: list[str]) -> Response:
        return PlainTextResponse(await exposition(self.intake), media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request, caller: Caller, found: list[str]) -> Response:
        paths: dict[str, Any] = {}
        for method, pattern, _, summary in ROUTES:
            parameters = [
                {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
                for part in pattern.split("/")
                if part.startswith("{")
            ]
            paths.setdefault(f"/{pattern}", {})[method.lower()] = {
                "summary": summary,
                "parameters": parameters,
                "responses": {"200": {"description": "done"}, "default": {"description": "an error"}},
                "security": [{"key": []}],
            }
        described = {
            "openapi": "3.1.0",
            "info": {"title": "samekey intake", "version": "1"},
            "paths": paths,
            "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        }
        return JSONResponse(described)


# What the intake acts on itself; everything else is kept with the run and shown.
_OURS = {
    "idempotencyKey", "idempotencyKeyTTL", "idempotencyKeyOptions", "tags", "metadata", "metadataType", "delay", "ttl",
    "payloadType", "payloadSize",
}  # fmt: skip

ROUTES: list[tuple[str, str, Handler, str]] = [
    ("POST", "api/v1/tasks/{task}/trigger", App.trigger, "trigger a task"),
    ("POST", "api/v3/batches", App.open_batch, "open a batch"),
    ("POST", "api/v3/batches/{batch}/items", App.batch_items, "add the items of a batch"),
    ("GET", "api/v2/batches/{batch}", App.read_batch, "read a batch"),
    ("GET", "api/v3/runs/{run}", App.retrieve, "read a run"),
    ("GET", "api/v1/runs", App.list_runs, "list runs"),
    ("POST", "api/v2/runs/{run}/cancel", App.cancel, "cancel a run"),
    ("POST", "api/v1/runs/{run}/reschedule", App.reschedule, "reschedule a delayed run"),
    ("POST", "api/v1/runs/{run}/replay", App.replay, "run it again"),
    ("POST", "api/v1/runs/{run}/tags", App.tags, "add tags"),
    ("PUT", "api/v1/runs/{run}/metadata", App.metadata, "change the metadata"),
    ("GET", "api/v1/runs/{run}/metadata", App.metadata, "read the metadata"),
    ("GET", "api/v1/runs/{run}/result", App.result, "read the outcome"),
    ("POST", "api/v1/runs/{run}/{report}", App.report, "start, complete or fail, reported by the worker"),
    ("POST", "api/v1/idempotencyKeys/{key}/reset", App.reset, "free an idempotency key"),
    ("PUT", "api/v2/packets/{name}", App.packet, "where to upload a large payload"),
    ("GET", "realtime/v1/runs/{run}", App.subscribe, "follow a run"),
]
PUBLIC: dict[tuple[str, str], Handler] = {
    ("GET", "healthz"): App.health,
    ("GET", "metrics"): App.metrics,
    ("GET", "openapi.json"): App.openapi,
}


def error(problem: Problem) -> Response:
    headers = {}
    if problem.retry_after:
        headers["retry-after"] = str(max(1, round(problem.retry_after)))
        headers["x-ratelimit-reset"] = str(int((time.time() + problem.retry_after) * 1000))
    body = {"error": problem.message}
    if problem.code:
        body["code"] = problem.code
    return JSONResponse(body, problem.status, headers)


def _matched(pattern: str, segments: list[str]) -> list[str] | None:
    parts = pattern.split("/")
    if len(parts) != len(segments):
        return None
    found = []
    for part, segment in zip(parts, segments, strict=True):
        if part.startswith("{"):
            found.append(segment)
        elif part != segment:
            return None
    return found


async def _body(request: Request, most: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise Problem(413, f"the body is larger than {most} bytes")
        parts.append(part)
    return b"".join(parts)


async def _json(request: Request) -> dict[str, Any]:
    """The body as an object; an empty one is an empty object."""
    return _parsed(await _body(request, BODY_MAX_BYTES))


async def _lines(request: Request) -> AsyncIterator[dict[str, Any]]:
    """The objects of a chunked NDJSON body, one by one."""
    rest = b""
    async for part in request.stream():
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > BODY_MAX_BYTES:
            raise Problem(413, f"an item is larger than {BODY_MAX_BYTES} bytes")
        for line in lines:
            if line.strip():
                yield _parsed(line)
    if rest.strip():
        yield _parsed(rest)


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        raise Problem(400, "the body is not JSON") from None
    if not isinstance(found, dict):
        raise Problem(400, "the body must be an object")
    return found


def _object(body: dict[str, Any], name: str) -> dict[str, Any]:
    found = body.get(name)
    if found is not None and not isinstance(found, dict):
        raise Problem(400, f"{name} must be an object")
    return found or {}


def _metadata(options: dict[str, Any]) -> Any:
    given = options.get("metadata")
    return _parsed(given.encode()) if isinstance(given, str) else given


def _request_id(request: Request) -> str | None:
    given = request.headers.get(REQUEST_ID)
    if given is not None and len(given) > REQUEST_ID_MAX:
        raise Problem(400, f"{REQUEST_ID} has at most {REQUEST_ID_MAX} characters")
    return given or None


def _packet_type(packet: tuple[str, bytes]) -> str:
    """The type of an upload. The client names its file `.json` also where the content is super+json."""
    kind = packet[0].partition(";")[0].strip()
    begins = packet[1][:16].replace(b" ", b"").startswith(b'{"json":')
    return "application/super+json" if kind == "application/json" and begins else kind


def _offset(run: Run) -> str:
    return f"{int(run.updated_at * 1000)}_{len(run.applied)}"


async def _lifespan(receive: Any, send: Any, intake: AsyncIntake) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                await intake.check_redis()
            except Misconfigured as error:
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
        else:
            await intake.close()
            await send({"type": "lifespan.shutdown.complete"})
            return
