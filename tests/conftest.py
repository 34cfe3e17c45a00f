"""What every test may take for granted, however the run was started."""

from __future__ import annotations

import os
import signal

import pytest

# `make proof &` in a script: the shell has its children ignore Ctrl-C, and ours would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what is marked `minutes` to `make proof`."""
    if os.environ.get("SAMEKEY_BUDGET") != "full":
        long = [item for item in items if item.get_closest_marker("minutes")]
        items[:] = [item for item in items if not item.get_closest_marker("minutes")]
        config.hook.pytest_deselected(items=long)
