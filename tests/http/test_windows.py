"""Windows that remain over HTTP: each is produced here, and shut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from samekey import Opaque, current
from samekey.http import Endpoint
from samekey.testing._http_drivers import Sent
from samekey.testing.http_suite import Called, Said
from tests.http.sites import ADAPTERS, driven

POST = Sent("POST", "/charges", headers=(("Idempotency-Key", "k"),))


def nothing() -> None:
    pass


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize(
    ("before", "after", "remember", "statuses", "effects"),
    [
        (nothing, nothing, "success_only", [404, 404], 2),  # the window
        (lambda: current().sending(), nothing, "success_only", [404, 409], 1),
        (lambda: current().provider_key(), nothing, "success_only", [404, 409], 1),
        (nothing, lambda: current().keep(), "success_only", [404, 404], 1),
        (nothing, nothing, "ietf_draft", [404, 404], 1),
    ],
)
def test_a_4xx_after_an_effect_that_nobody_was_told_of_frees_the_key(
    adapter: str, before: Callable[[], Any], after: Callable[[], Any], remember: Any, statuses: list[int], effects: int
):
    """A 4xx is taken for "I did nothing": where the handler says so after it did something, it must say that too."""
    charged: list[int] = []

    def handle(called: Called) -> Said:
        before()
        charged.append(200)
        after()
        return Said(404, b"no receipt for this country")

    with driven(adapter, Endpoint(boundary=Opaque(), single_tenant=True, remember=remember), handle) as driver:
        assert [driver.send(POST).status for _ in range(2)] == statuses
    assert len(charged) == effects
