"""The Idempotency-Key header, done once for every Python web framework.

`Endpoint` declares what an endpoint promises. One file per framework attaches it: `asgi` (Starlette too), `fastapi`,
`litestar`, `wsgi`, `flask`, `django`. `webhook` is for events that are sent to you.
"""

from samekey.http._kept import answer
from samekey.http._message import Reply, Request
from samekey.http._rules import rules
from samekey.http.endpoint import Endpoint

__all__ = ["Endpoint", "Reply", "Request", "answer", "rules"]
