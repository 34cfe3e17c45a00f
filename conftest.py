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
from collections.abc import Iterator
from typing import Any

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser
from sybil.sybil import SybilCollection


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


@pytest.fixture(scope="session")
def POSTGRES() -> Iterator[str]:
    """For the pages that need one: the address of a private, migrated database."""
    from samekey.drivers.psycopg import migrate
    from samekey.testing.servers import NoServer, postgres

    try:
        with postgres() as server:
            url = server.create_database()
            migrate(url)
            yield url
    except NoServer as missing:
        pytest.skip(str(missing))


WITH_POSTGRES = ["docs/atomic.md"]


def _pages(**which: Any) -> Sybil:
    return Sybil(
        parsers=[
            PythonCodeBlockParser(doctest_optionflags=doctest.ELLIPSIS),
            CodeBlockParser(language="console", evaluator=_run_console),
            SkipParser(),
        ],
        setup=_enter,
        teardown=_leave,
        **which,
    )


pytest_collect_file = SybilCollection(
    (
        _pages(patterns=["README.md", "docs/*.md", "docs/**/*.md"], excludes=WITH_POSTGRES),
        _pages(patterns=WITH_POSTGRES, fixtures=["POSTGRES"]),
    )
).pytest()
