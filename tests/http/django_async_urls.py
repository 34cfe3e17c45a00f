"""The same, for async views: Django asks before it awaits."""

from __future__ import annotations

from typing import Any

from django.urls import re_path


async def view(request: Any) -> Any:
    return await request.scope["samekey.view"](request)


urlpatterns = [re_path(r"^", view)]
