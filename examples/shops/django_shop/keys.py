"""Who may use which key, and the boundary of each view."""

import hashlib
import os

from django.contrib.auth.models import AnonymousUser, User
from django.db import connection

from samekey import Atomic, Guard, Keyed, Opaque, Policy
from samekey.http import Endpoint

LEASE = float(os.environ.get("SHOP_LEASE_SECONDS", "30"))  # a dead worker's key is looked at after this

guard = Guard(f"sqlite:///{os.environ['SHOP_DATABASE']}", policy=Policy(lease=LEASE))

# Every request that moves something must have a key. It belongs to the customer: `current().tenant`.
whose = {"principal": lambda request: request.native.user.get_username() or None, "required": True}

CARDS = Endpoint(boundary=Keyed(), **whose)  # the provider honours keys: after a crash the next try adopts the charge
VOUCHERS = Endpoint(boundary=Opaque(), **whose)  # the provider cannot tell: after a crash it is in doubt, for a person
ORDERS = Endpoint(boundary=Atomic("connection"), connection=lambda request: connection.connection, **whose)


class TokenMiddleware:
    """Signs in the user of `Authorization: Bearer TOKEN`."""

    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        digest = hashlib.sha256(token.encode()).hexdigest()
        request.user = User.objects.filter(token__digest=digest).first() or AnonymousUser()
        return self.get_response(request)
