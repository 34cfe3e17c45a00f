"""The Idempotency-Key header, done once for every Python web framework.

`Endpoint` says what an endpoint promises. Beside it one file per framework: `asgi` (Starlette too), `fastapi`,
`litestar`, `wsgi`, `flask`, `django`; `webhook`, for events that are sent to you; and `prove`, which examines any
endpoint from outside.
"""

from samekey.http._kept import answer
from samekey.http._message import Reply, Request
from samekey.http._rules import rules
from samekey.http.endpoint import Endpoint

__all__ = ["Endpoint", "Reply", "Request", "answer", "rules"]
