"""Django: a middleware for all views, sync and async, and a decorator for one.

    MIDDLEWARE = [..., "samekey.http.django.SamekeyMiddleware"]        # after authentication
    SAMEKEY = {"guard": Guard(...), "endpoint": Endpoint(...)}         # objects, or dotted names of them

Under ASGI the middleware takes `"async_guard": AsyncGuard(...)`. The middleware runs outside ATOMIC_REQUESTS, so a
record is settled after the view's transaction has ended; the decorator runs inside it, which `Atomic` needs.
Responses of Django REST framework are rendered before they are kept.
"""

from samekey.http.django._decorator import guarded
from samekey.http.django._middleware import SamekeyMiddleware

__all__ = ["SamekeyMiddleware", "guarded"]
