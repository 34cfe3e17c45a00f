from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.libraries import HERE, LIBRARIES, QUICK
from tests.clients.provider import Provider, opened


@pytest.fixture(params=LIBRARIES)
def send(request):
    def plain(method, url, *, hosts=HERE, retry=QUICK, **options):
        return request.param(method, url, hosts=hosts, retry=retry, **options)

    return plain


@pytest.fixture
def provider() -> Iterator[Provider]:
    with opened() as provider:
        yield provider
