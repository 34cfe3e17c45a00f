"""Every block of README and docs is executed, each page in its own empty folder.

    python          it runs, or its `>>>` lines do, and print what is shown under them
    python title=.. it is that file in the page's folder (added to one that is there), and something must import it
    console         each line behind `$ ` is carried out (tests/pages/commands.py), and prints what is shown under it;
                    `...` stands for anything
    sh              each line is carried out
    sql             it is sent to the page's PostgreSQL; `:name` is a parameter

The addresses in the docs lead to private servers: a page has what SERVED says, and under the names said there.
What none of this fits is in test_every_block.py, with the test that looks at it.
"""

from __future__ import annotations

import copy
import doctest
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sybil import Document, Example, Region, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer
from sybil.region import Lexeme

from samekey import AsyncGuard, Guard
from tests.pages import commands

ROOT = Path(__file__).parents[2]
DATABASE = "postgresql://app@db/shop"


# The user of the docs. Users are the whole server's, and the server may be somebody else's: it may be there already.
ROLE = "DO $$ BEGIN CREATE ROLE app LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$"

SHARED = ExitStack()  # closed when the run ends


@cache
def shared_postgres() -> Any:
    """One server for all pages of a run, each with a database of its own."""
    from samekey.testing.servers import postgres

    return SHARED.enter_context(postgres())


def empty_postgres(page: dict[str, Any]) -> None:
    address = shared_postgres().create_database()
    shared_postgres().sql(ROLE)
    with_driver = address.replace("postgresql:", "postgresql+psycopg:")
    # Who may do what is shown by tests/servers/postgres/test_roles.py: here one user has both names.
    page["INSTEAD"] |= {DATABASE: address, DATABASE.replace("app@", "owner@"): address}
    page["INSTEAD"] |= {DATABASE.replace("postgresql:", "postgresql+psycopg:"): with_driver}


def with_tables(page: dict[str, Any]) -> None:
    from samekey.drivers.postgres.migrate import migrate

    empty_postgres(page)
    migrate(page["INSTEAD"][DATABASE])


def redis(page: dict[str, Any]) -> None:
    from samekey.testing.servers import redis_server

    server = page["_left"].enter_context(redis_server())
    page["INSTEAD"] |= {"redis://localhost:6379/0": server.url(), "redis://cache:6379/0": server.url()}


def mariadb(page: dict[str, Any]) -> None:
    from samekey.testing.servers import mariadb

    server = page["_left"].enter_context(mariadb(innodb_flush_log_at_trx_commit="1"))
    address = server.create_database()
    parts = urlsplit(address)
    spelled_out = {"host": parts.hostname, "port": parts.port, "user": parts.username, "password": parts.password or ""}
    page["INSTEAD"] |= {
        "mysql://app:password@db.example/shop": address,
        'host="db.example", user="app", password="password", database="shop"': ", ".join(
            f"{name}={value!r}" for name, value in {**spelled_out, "database": parts.path[1:]}.items()
        ),
    }


SERVED: Mapping[str, tuple[Callable[[dict[str, Any]], None], ...]] = {
    "docs/atomic.md": (with_tables,),
    "docs/capacity.md": (empty_postgres,),
    "docs/decisions/0002-not-a-unique-business-entity.md": (empty_postgres,),
    "docs/decisions/0003-not-select-first.md": (empty_postgres,),
    "docs/http-fastapi.md": (with_tables,),
    "docs/layered.md": (redis, with_tables),
    "docs/mysql.md": (mariadb,),
    "docs/postgresql.md": (empty_postgres,),
    "docs/redis.md": (redis,),
}


def enter(page: dict[str, Any]) -> None:
    page["__name__"] = "__main__"  # as in a script: frameworks look up the module of a handler
    page["INSTEAD"] = {}  # what stands in the docs -> what is used here
    left = page["_left"] = ExitStack()
    folder = left.enter_context(tempfile.TemporaryDirectory(prefix="samekey-docs-", ignore_cleanup_errors=True))
    left.callback(_put_back, dict(os.environ))
    left.callback(os.chdir, os.getcwd())
    os.chdir(folder)


def _put_back(before: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(before)


def leave(page: dict[str, Any]) -> None:
    if "_left" not in page:
        return
    unused = [name for name in page.get("_files", ()) if not _imported(Path(name))]
    for guard in [one for one in page.values() if isinstance(one, Guard | AsyncGuard)]:
        closing: Any = guard.close()
        if closing is not None:  # an AsyncGuard's; the loop that used it is gone
            closing.close()
    page["_left"].close()
    assert not unused, f"the page has files that nothing imports: {unused}"


def _imported(file: Path) -> bool:
    return any((file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"))


def entering(servers: Iterable[Callable[[dict[str, Any]], None]]) -> Callable[[dict[str, Any]], None]:
    def setup(page: dict[str, Any]) -> None:
        enter(page)
        try:
            for serve in servers:
                serve(page)
        except BaseException:  # a server that is missing here: nothing of the page stays behind
            page.pop("_left").close()
            raise

    return setup


def here(text: str, page: Mapping[str, Any]) -> str:
    """The text with the addresses of this run in it."""
    for shown in sorted(page.get("INSTEAD", {}), key=len, reverse=True):
        text = text.replace(shown, page["INSTEAD"][shown])
    return text


class WithAddresses:
    """Another parser, whose examples lead to the servers of this run."""

    def __init__(self, parser: Callable[[Document], Iterable[Region]]) -> None:
        self._parser = parser

    def __call__(self, document: Document) -> Iterable[Region]:
        for region in self._parser(document):
            region.evaluator = self._led(region.evaluator)
            yield region

    def _led(self, evaluate: Any) -> Callable[[Example], str | None]:
        def evaluator(example: Example) -> str | None:
            parsed = example.parsed
            if isinstance(parsed, doctest.Example):
                example.parsed = copy.copy(parsed)
                example.parsed.source = here(parsed.source, example.namespace)
                example.parsed.want = here(parsed.want, example.namespace)
                example.parsed.exc_msg = parsed.exc_msg and here(parsed.exc_msg, example.namespace)
            else:
                example.parsed = Lexeme(here(parsed, example.namespace), parsed.offset, parsed.line_offset)
            result: str | None = evaluate(example)
            return result

        return evaluator


def run_console(example: Example) -> str | None:
    return _carried_out(commands.console(example.parsed))


def run_script(example: Example) -> str | None:
    return _carried_out(commands.script(example.parsed))


def _carried_out(lines: Iterable[tuple[str, str]]) -> str | None:
    for line, printed in lines:
        wrong = commands.carry_out(line, printed)
        if wrong:
            return wrong
    return None


def run_sql(example: Example) -> str | None:
    import psycopg

    names = re.findall(r"(?<!:):([a-z]\w*)", example.parsed)
    statements = re.sub(r"(?<!:):([a-z]\w*)", r"%(\1)s", example.parsed)
    with psycopg.connect(example.namespace["INSTEAD"][DATABASE]) as link:
        for statement in re.sub(r"--.*", "", statements).split(";"):
            if statement.strip():
                try:
                    link.execute(statement.encode(), {name: name for name in names})
                except psycopg.Error as error:
                    return f"{statement.strip()}\n{error}"
    return None


class Files:
    """Blocks with a title: files of the page."""

    _lexer = RawFencedCodeBlockLexer(re.compile(r'(?P<language>\w+) title="(?P<title>[^"]+)"$\n', re.MULTILINE))

    def __call__(self, document: Document) -> Iterable[Region]:
        for region in self._lexer(document):
            region.parsed = region.lexemes["source"]
            region.evaluator = self._write
            yield region

    def _write(self, example: Example) -> str | None:
        file = Path(example.region.lexemes["title"])
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as opened:
            opened.write(("\n" if file.stat().st_size else "") + example.parsed)
        if file.suffix == ".py":
            example.namespace.setdefault("_files", set()).add(str(file.absolute()))
        return None


PARSERS = [
    WithAddresses(PythonCodeBlockParser(doctest_optionflags=doctest.ELLIPSIS)),
    WithAddresses(CodeBlockParser(language="console", evaluator=run_console)),
    WithAddresses(CodeBlockParser(language="sh", evaluator=run_script)),
    WithAddresses(CodeBlockParser(language="sql", evaluator=run_sql)),
    WithAddresses(Files()),
]
PAGES = ["README.md", "docs/*.md", "docs/**/*.md"]

SYBILS = [
    Sybil(parsers=PARSERS, patterns=PAGES, excludes=list(SERVED), path=str(ROOT), setup=entering(()), teardown=leave),
    *(
        Sybil(parsers=PARSERS, patterns=[page], path=str(ROOT), setup=entering(servers), teardown=leave)
        for page, servers in SERVED.items()
    ),
]
