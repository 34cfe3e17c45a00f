from __future__ import annotations

import pytest

from tests.proofs.chaos.judging import private_postgres


@pytest.fixture(scope="module")
def server():
    with private_postgres() as running:
        yield running
