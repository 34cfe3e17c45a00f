"""Every snippet in README and docs is executed, each page in its own empty folder."""

from __future__ import annotations

import doctest
import os
import tempfile
from typing import Any

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser


def _enter(namespace: dict[str, Any]) -> None:
    namespace["_folder"] = tempfile.TemporaryDirectory(prefix="samekey-docs-")
    namespace["_before"] = os.getcwd()
    os.chdir(namespace["_folder"].name)


def _leave(namespace: dict[str, Any]) -> None:
    os.chdir(namespace["_before"])
    guard = namespace.get("guard")
    if hasattr(guard, "close"):
        closing = guard.close()
        if closing is not None:  # an AsyncGuard's; the loop that used it is gone
            closing.close()
    namespace["_folder"].cleanup()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(doctest_optionflags=doctest.ELLIPSIS), SkipParser()],
    patterns=["README.md", "docs/*.md", "docs/**/*.md", "CONTRIBUTING.md"],
    setup=_enter,
    teardown=_leave,
).pytest()
