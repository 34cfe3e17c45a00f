"""Every block of README and docs is executed (tests/pages/snippets.py says how).

At the end of a run its figures (tests/figures.py) and its CPU seconds (tests/budget.py) are printed; why its tests
failed (tests/failures.py) is written into pytest's cache. tests/variants.py chooses what runs on variants of a store.
"""

from __future__ import annotations

import os
from typing import Any

from sybil.sybil import SybilCollection

from tests.figures import table
from tests.pages.snippets import SHARED, SYBILS

pytest_plugins = ["tests.budget", "tests.failures", "tests.variants"]

pytest_collect_file = SybilCollection(SYBILS).pytest()


def pytest_sessionfinish() -> None:
    SHARED.close()


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int) -> None:
    if exitstatus and os.environ.get("SAMEKEY_BUDGET") != "full":
        return  # what failed is all that matters
    reports = [report for many in terminalreporter.stats.values() for report in many]
    printed = "".join(getattr(report, "capstdout", "") for report in reports if getattr(report, "when", "") == "call")
    figures = table(printed)
    if figures:
        terminalreporter.section("figures")
    for line in figures:
        terminalreporter.write_line(line)
