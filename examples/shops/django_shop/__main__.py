"""`python -m django_shop` makes the tables and two customers, ann and bob, with the tokens ann-token and bob-token."""

import hashlib
import os

import django
from django.core.management import call_command

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_shop.settings")
django.setup()
call_command("migrate", run_syncdb=True, verbosity=0)

from django_shop.models import Token, User  # noqa: E402 - models can be named once Django is set up

for name in ("ann", "bob"):
    user, _ = User.objects.get_or_create(username=name)
    Token.objects.get_or_create(digest=hashlib.sha256(f"{name}-token".encode()).hexdigest(), user=user)
