"""docs/reference.md has what there is, and nothing else: names, signatures, commands, addresses."""

from __future__ import annotations

import ast
import inspect
import logging
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

import samekey
from samekey.cli._root import COMMANDS, root
from samekey.cli.exits import Exit
from samekey.core.errors import Misconfigured
from samekey.core.events import EVENTS
from samekey.core.ports import Event
from samekey.detect.catalog import Engine
from samekey.detect.rules import RULES
from samekey.drivers.mysql.address import OPTIONS
from samekey.drivers.redis.address import OPTIONS as _OURS
from samekey.guard.store_urls import open_store
from samekey.ops import Findings
from samekey.prove import SCENARIOS
from tests.pages.blocks import ROOT, every_block, pages

SOURCE = ROOT / "src/samekey"
CORE = SOURCE / "core"
TEXT = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
CODES = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL))]
EVERY_PAGE = "\n".join(page.read_text(encoding="utf-8") for page in pages())

# What people may import; the page says so in its first lines.
MODULES = [
    *("samekey", "samekey.http", "samekey.prove", "samekey.clients", "samekey.testing", "samekey.processor"),
    *("samekey.console", "samekey.doubt"),
    *(f"samekey.clients.{name}" for name in ("aiohttp", "httpx", "httpx2", "requests")),
    *(f"samekey.http.{name}" for name in ("asgi", "django", "fastapi", "flask", "litestar", "webhook", "wsgi")),
    "samekey.intake",
    "samekey.messages",
    *(
        f"samekey.messages.{name}"
        for name in ("aio_pika", "aws_lambda", "celery", "horizon", "nats", "pika", "redis_streams", "sqs")
    ),
    *(f"samekey.stores.{name}" for name in ("memory", "mysql", "postgres", "redis", "sqlite")),
    *(
        "samekey.guard.adapters",
        "samekey.guard.keyring",
        "samekey.ops",
        "samekey.hooks.logging",
        "samekey.hooks.opentelemetry",
        "samekey.hooks.prometheus",
        "samekey.testing.http",
        "samekey.testing.messages",
        "samekey.testing.servers",
    ),
]
LISTED = MODULES[:8]  # those whose every name is a promise

# Said by every command, and once for all of them on the page.
SAID_ONCE = {"--store", "--json", "--debug", "--help"}

# Signatures on the page, and what they are of; the rest are found by their name.
METHODS = {
    f".{name}": getattr(samekey.Guard, name)
    for name in ("once", "run", "run_many", "hold", "on", "peek", "begin", "begin_many", "settle_many", "new_call")
}
METHODS |= {f".{name}": getattr(Findings, name) for name in ("list", "accept")}


def test_every_public_name_is_in_the_reference():
    names = [(module, name) for module in LISTED for name in import_module(module).__all__]

    assert len(names) > 70
    assert [
        f"{module}.{name}" for module, name in names if not any(re.search(rf"\b{name}\b", code) for code in CODES)
    ] == []


@pytest.mark.parametrize("module", LISTED)
def test_every_public_class_says_what_it_is(module: str):
    """In words of its own: not a parent's, nor those that Python makes up for a tuple."""
    names, found = import_module(module).__all__, vars(import_module(module))
    told = {name: vars(found[name]).get("__doc__") or "" for name in names if inspect.isclass(found[name])}

    assert [name for name, doc in told.items() if not doc or doc.startswith(f"{name}(")] == []


def signatures() -> list[tuple[str, str, Any]]:
    """(name, what stands between its parentheses, the thing itself), for every call the page shows in full."""
    modules = [import_module(module) for module in reversed(MODULES)]
    named = {name: thing for module in modules for name, thing in vars(module).items()}
    found = []
    for code in CODES:
        match = re.fullmatch(r"(\.?\w+)\((.*)\)(?: -> .*)?", code)
        if match and match[2] != "...":
            thing = METHODS.get(match[1]) or named.get(match[1])
            if callable(thing):
                found.append((match[1], match[2], thing))
    return found


@pytest.mark.parametrize(("name", "shown", "thing"), signatures(), ids=[name for name, _, _ in signatures()])
def test_a_signature_is_the_one_there_is(name: str, shown: str, thing: Any):
    """The same parameters in the same order, by keyword or not, with the same defaults; `...` leaves some out."""
    there = [one for one in inspect.signature(thing).parameters.values() if one.name != "self"]
    said = ast.parse(f"def shown({shown.replace(', ...', '')}): pass").body[0]
    assert isinstance(said, ast.FunctionDef)
    plain, keyword = said.args.args, said.args.kwonlyargs
    defaults: dict[str, ast.expr | None] = dict(
        zip([one.arg for one in plain][::-1], said.args.defaults[::-1], strict=False)
    )
    defaults |= dict(zip([one.arg for one in keyword], said.args.kw_defaults, strict=True))
    if "..." in shown:
        there = [one for one in there if one.name in {each.arg for each in [*plain, *keyword]}]
    elif said.args.kwarg:
        there = [one for one in there if one.kind is not one.VAR_KEYWORD]

    assert [one.name for one in there if one.kind is one.POSITIONAL_OR_KEYWORD] == [one.arg for one in plain]
    assert [one.name for one in there if one.kind is one.KEYWORD_ONLY] == [one.arg for one in keyword]
    for one in there:
        given = defaults.get(one.name)
        default = inspect.Parameter.empty if given is None else eval(ast.unparse(given), vars(logging) | vars(samekey))
        assert default == one.default, one.name


def test_the_signatures_are_found():
    found = {name for name, _, _ in signatures()}

    assert {
        "Guard",
        ".once",
        ".run",
        "Policy",
        "Endpoint",
        "Webhook",
        "Keyed",
        "four_assumptions",
        "LoggingHook",
    } <= found


# -- what the pages import ---------------------------------------------------------------------------------


def imported() -> set[str]:
    """The modules of samekey that the pages tell people to import from."""
    shown = "\n".join(block.text for block in every_block())
    return set(re.findall(r"from (samekey[\w.]*) import", shown)) | set(
        re.findall(r"^(?:>>> )?import (samekey[\w.]*)", shown, re.M)
    )


def test_the_pages_import_only_what_is_public():
    assert sorted(imported() - set(MODULES)) == []


def test_every_public_module_is_named():
    short = {module: module.removeprefix("samekey.").rpartition(".")[2] for module in MODULES}

    assert [module for module in MODULES if f"`{module}`" not in TEXT and f"`.{short[module]}`" not in TEXT] == []


# -- commands ----------------------------------------------------------------------------------------------


def paths() -> list[str]:
    """Every command; one of a group with the name of its group."""
    found = []
    for name in COMMANDS:
        command = root.get_command(click.Context(root), name)
        group = command if isinstance(command, click.Group) else None
        found += [] if group is None else [f"{name} {one}" for one in _subcommands(group)]
        if group is None or (group.invoke_without_command and group.commands):
            found.append(name)
    return found


def _subcommands(group: click.Group) -> list[str]:
    return group.list_commands(click.Context(group))


def options_of(path: str) -> set[str]:
    command: click.Command | None = root
    for name in path.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name)
    assert command is not None
    return {word for one in command.params for word in [*one.opts, *one.secondary_opts] if word.startswith("--")}


@pytest.mark.parametrize("name", paths())
def test_every_command_is_in_the_reference_with_its_options(name: str):
    rows = re.findall(rf"^\| `samekey {name}\b.*$", TEXT, re.MULTILINE)
    longer = [f"| `samekey {one}" for one in paths() if one.startswith(f"{name} ")]
    (row,) = [one for one in rows if not one.startswith(tuple(longer))]

    assert set(re.findall(r"--[a-z][\w-]*", row)) - SAID_ONCE == options_of(name) - SAID_ONCE


def mentions() -> list[str]:
    """Every `samekey ...` in the text of a page; those in blocks are run."""
    return sorted({" ".join(code.split()) for code in re.findall(r"`(samekey [^`]+)`", EVERY_PAGE) if "|" not in code})


@pytest.mark.parametrize("line", mentions())
def test_a_command_in_the_text_is_one_there_is(line: str):
    path = max((one for one in paths() if f"{line} ".startswith(f"samekey {one} ")), key=len, default="no command")

    assert set(re.findall(r"--[a-z][\w-]*", line)) <= options_of(path) | SAID_ONCE


def test_the_catalogue_of_findings_is_the_one_there_is():
    """One row for each rule: number, title, severity, servers, whether rows can show it."""
    text = (ROOT / "docs/detect.md").read_text(encoding="utf-8").partition("## The catalogue")[2]
    rows = re.findall(r"^\| (SK\d+) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    servers = {Engine.POSTGRES: "PostgreSQL", Engine.MYSQL: "MySQL", Engine.SQLITE: "SQLite"}

    assert rows == [
        (
            rule.id,
            rule.title,
            rule.severity,
            "all" if len(rule.engines) == len(Engine) else ", ".join(servers[one] for one in rule.engines),
            "yes" if rule.confirms else "no",
        )
        for rule in RULES
    ]


def test_every_scenario_of_prove_is_on_its_page():
    text = (ROOT / "docs/prove.md").read_text(encoding="utf-8").partition("## The scenarios")[2]

    assert re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE) == list(SCENARIOS)


def test_every_event_is_listed_with_its_level_and_its_meaning():
    """And the guard and the core report no other."""
    sources = "".join(
        path.read_text(encoding="utf-8") for room in ("core", "guard") for path in (SOURCE / room).glob("*.py")
    )
    told = set(re.findall(r"(?:Tell|\.tell|Event|end_later)\(\s*\"(\w+)\"", sources))
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8").partition("### Events")[2].partition("##")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([A-Z]+) \| (.*) \|$", text, re.MULTILINE)

    assert told <= EVENTS.keys()
    assert rows == [(name, logging.getLevelName(fact.level), fact.meaning) for name, fact in EVENTS.items()]


def test_every_field_of_an_event_is_listed():
    text = TEXT.partition("### Events")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \| [^|]+ \|$", text, re.MULTILINE)
    shown = {name for names in rows for name in re.findall(r"`(\w+)`", names)}

    assert shown == {one.name for one in fields(Event)} | {"request_id", "trace_id"}


def test_every_exit_code_is_in_the_one_table():
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8").partition("## Exit codes")[2].partition("##")[0]

    assert [int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)] == sorted(Exit)


# -- addresses ---------------------------------------------------------------------------------------------

SCHEME = r"(?:sqlite|postgresql|rediss?|unix|mysql|mariadb|memory)://"


def addresses() -> list[str]:
    """Every address of a store on any page, two with a space between them where they stand so."""
    found = re.findall(rf"[`\"'= ]({SCHEME}[^\s`\"'<)|]*(?: {SCHEME}[^\s`\"')|]+)?)", EVERY_PAGE)
    return sorted({one.rstrip(".,;:") for one in found if "..." not in one and not one.endswith("/")} | {"memory://"})


@pytest.mark.parametrize("address", addresses())
def test_an_address_is_understood(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By the store it names; nobody is connected to."""
    monkeypatch.chdir(tmp_path)

    open_store(address.replace("/var/lib/app", str(tmp_path)), asynchronous=False).close()


def test_addresses_are_found_and_wrong_ones_reported():
    assert len(addresses()) > 15
    with pytest.raises(Misconfigured):
        open_store("postgresql://app@db/shop?durability=none", asynchronous=False)


@pytest.mark.parametrize("option", [*_OURS, *OPTIONS, "durability", "pgbouncer", "synchronous"])
def test_every_option_of_an_address_is_documented(option: str):
    assert re.search(rf"[?&`]{option}=", EVERY_PAGE)
