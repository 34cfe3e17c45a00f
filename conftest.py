"""Every snippet in README and docs is executed, each page in its own empty folder.

Python blocks run as they stand. In console blocks the lines `$ samekey ...` run too, and what is printed under
them must be what they print (`...` stands for anything); `make`, `pip` and the like are what CI itself runs.
The pages in WITH_POSTGRES have a private server: `POSTGRES_URL` is the address of an empty database, and
`POSTGRES_MIGRATED_URL` that of one with our tables; `docs/layered.md` has a private Redis besides, `REDIS_URL`.

And the figures of a run (tests/figures.py) are shown in a table at its end.
"""

from __future__ import annotations

import doctest
import os
import shlex
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from typing import Any

from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser
from sybil.sybil import SybilCollection

from tests.figures import table


def _enter(namespace: dict[str, Any]) -> None:
    namespace["__name__"] = "__main__"  # as in a script: frameworks look up the module of a handler
    namespace["_folder"] = tempfile.TemporaryDirectory(prefix="samekey-docs-")
    namespace["_before"] = os.getcwd()
    os.chdir(namespace["_folder"].name)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for many in terminalreporter.stats.values() for report in many]
    printed = "".join(getattr(report, "capstdout", "") for report in reports if getattr(report, "when", "") == "call")
    figures = table(printed)
    if figures:
        terminalreporter.section("figures")
    for line in figures:
        terminalreporter.write_line(line)


WITH_POSTGRES = ["docs/postgresql.md", "docs/atomic.md"]
WITH_BOTH = ["docs/layered.md"]


def _enter_with_postgres(namespace: dict[str, Any]) -> None:
    from samekey.drivers.psycopg import migrate
    from samekey.testing.servers import postgres

    _enter(namespace)  # first: a page is left even if it could not be set up
    servers = namespace["_servers"] = ExitStack()
    server = servers.enter_context(postgres())
    namespace["POSTGRES_URL"] = server.create_database()
    namespace["POSTGRES_MIGRATED_URL"] = server.create_database()
    migrate(namespace["POSTGRES_MIGRATED_URL"])


def _enter_with_both(namespace: dict[str, Any]) -> None:
    from samekey.testing.redis_servers import redis_server

    _enter_with_postgres(namespace)
    namespace["REDIS_URL"] = namespace["_servers"].enter_context(redis_server()).url()


def _leave(namespace: dict[str, Any]) -> None:
    if "_before" not in namespace:  # never entered: its server is missing
        return
    os.chdir(namespace["_before"])
    os.environ.pop("SAMEKEY_STORE", None)  # a page says which store its commands are about; the next one has its own
    guard = namespace.get("guard")
    if hasattr(guard, "close"):
        closing = guard.close()
        if closing is not None:  # an AsyncGuard's; the loop that used it is gone
            closing.close()
    namespace["_folder"].cleanup()
    if "_servers" in namespace:
        namespace["_servers"].close()


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


PARSERS = [
    PythonCodeBlockParser(doctest_optionflags=doctest.ELLIPSIS),
    CodeBlockParser(language="console", evaluator=_run_console),
    SkipParser(),
]
PAGES = ["README.md", "docs/*.md", "docs/**/*.md"]

pytest_collect_file = SybilCollection(
    (
        Sybil(parsers=PARSERS, patterns=PAGES, excludes=[*WITH_POSTGRES, *WITH_BOTH], setup=_enter, teardown=_leave),
        Sybil(parsers=PARSERS, patterns=WITH_POSTGRES, setup=_enter_with_postgres, teardown=_leave),
        Sybil(parsers=PARSERS, patterns=WITH_BOTH, setup=_enter_with_both, teardown=_leave),
    )
).pytest()
