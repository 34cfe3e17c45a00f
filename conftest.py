"""Every snippet in README and docs is executed, each page in its own empty folder.

Python blocks run as they stand. In console blocks the lines `$ samekey ...` run too, and what is printed under
them must be what they print (`...` stands for anything); `make`, `pip` and the like are what CI itself runs.
"""

from __future__ import annotations

import doctest
import os
import shlex
import subprocess
import sys
import tempfile
from typing import Any

from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser


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


def _run_console(example: Example) -> str | None:
    for part in ("\n" + example.parsed).split("\n$ ")[1:]:
        line, _, expected = part.partition("\n")
        if not line.startswith("samekey "):
            continue
        words = shlex.split(line, comments=True)[1:]
        done = subprocess.run(  # noqa: S603 - our own command, from our own pages
            [sys.executable, "-m", "samekey", *words], capture_output=True, text=True, timeout=60, check=False
        )
        said = done.stdout + done.stderr
        if done.returncode not in (0, 1):
            return f"{line!r} ended with {done.returncode}:\n{said}"
        if expected.strip() and not doctest.OutputChecker().check_output(
            expected.strip() + "\n", said.strip() + "\n", doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        ):
            return f"{line!r} printed\n{said}\ninstead of\n{expected}"
    return None


pytest_collect_file = Sybil(
    parsers=[
        PythonCodeBlockParser(doctest_optionflags=doctest.ELLIPSIS),
        CodeBlockParser(language="console", evaluator=_run_console),
        SkipParser(),
    ],
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],
    setup=_enter,
    teardown=_leave,
).pytest()
