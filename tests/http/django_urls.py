"""The URLs of whatever application a test has made: the view comes with the request."""

from __future__ import annotations

from typing import Any

from django.urls import re_path


def view(request: Any) -> Any:
    return request.META["samekey.view"](request)


urlpatterns = [re_path(r"^", view)]
