"""The tests that pytest collects: `python tools/collected.py tests/pages ...` prints each node id and its skip marks.

Collected by pytest itself, with the full budget: what it does not find here, no run will ever run.
"""

from __future__ import annotations

import os
import sys

import pytest

HUSHED = ("skip", "skipif", "xfail")


class Collected:
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            marks = [name for name in HUSHED if item.get_closest_marker(name) is not None]
            print("TEST", item.nodeid, ",".join(marks), sep="\t")


if __name__ == "__main__":
    os.environ["SAMEKEY_BUDGET"] = "full"
    sys.exit(pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[Collected()]))
