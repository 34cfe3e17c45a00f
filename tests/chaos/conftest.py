from __future__ import annotations

import pytest

from tests.chaos.judging import private_postgres


@pytest.fixture(scope="module")
def server(request):
    with private_postgres(request) as running:
        yield running
