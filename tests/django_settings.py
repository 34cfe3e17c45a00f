"""Django is configured once for a process: whoever needs it imports this first."""

from __future__ import annotations

import django
from django.conf import settings

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        DEBUG=False,
        INSTALLED_APPS=["rest_framework"],
        LOGGING_CONFIG=None,
        REST_FRAMEWORK={"DEFAULT_AUTHENTICATION_CLASSES": [], "UNAUTHENTICATED_USER": None},
        ROOT_URLCONF="tests.http.django_urls",
        SECRET_KEY="for the tests alone",
        USE_TZ=True,
    )
    django.setup()

# REST framework looks at the settings when it is imported.
from rest_framework.decorators import api_view
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

__all__ = ["APIException", "APIView", "Response", "ValidationError", "ViewSet", "api_view"]
