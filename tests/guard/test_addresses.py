"""Addresses: stores of other distributions, and a process that cannot keep leases."""

from __future__ import annotations

import asyncio
import importlib
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from samekey import AsyncGuard, Guard, Misconfigured, Policy

Register = Callable[[str], None]


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Register:
    """Install a distribution that registers `shelf://` as this object of its module."""
    module = "samekey_test_shelf"
    about = tmp_path / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (tmp_path / f"{module}.py").write_text(
        textwrap.dedent(
            """
            from samekey.stores.memory import AsyncMemoryStore, MemoryStore

            class Shelf(MemoryStore):
                @classmethod
                def from_url(cls, url):
                    made = cls()
                    made.name = url
                    return made

            class AsyncShelf(AsyncMemoryStore):
                @classmethod
                def from_url(cls, url):
                    return cls(Shelf.from_url(url))

            STORES = (Shelf, AsyncShelf)
            WRONG_ORDER = (AsyncShelf, Shelf)
            THREE = (Shelf, AsyncShelf, Shelf)
            NAMES = ("Shelf", "AsyncShelf")
            """
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, module, raising=False)

    def as_object(name: str) -> None:
        (about / "entry_points.txt").write_text(f"[samekey.stores]\nshelf = {module}:{name}\n")
        importlib.invalidate_caches()

    return as_object


def test_a_store_of_another_distribution_is_found_by_its_scheme(register: Register):
    register("STORES")

    async def effect() -> str:
        return "async"

    guard = Guard("shelf://one")
    assert guard.run("charge", lambda: "sync", key="o-1", payload={}).result == "sync"
    assert guard.store_name == "shelf://one"
    assert asyncio.run(AsyncGuard("shelf://two").run("charge", effect, key="o-1", payload={})).result == "async"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Shelf", "not a pair"),
        ("THREE", "not a pair"),
        ("NAMES", "not a pair"),
        ("WRONG_ORDER", "Guard takes a sync store"),
        ("nowhere", "which is not there"),
    ],
)
def test_what_is_registered_wrongly_is_told_in_one_sentence(register: Register, name: str, why: str):
    register(name)

    with pytest.raises(Misconfigured, match=why):
        Guard("shelf://one").run("charge", lambda: pytest.fail("it ran"), key="o-1", payload={})


@pytest.mark.parametrize(
    "address", ["sqlite:///keys.db", "sqlite:/keys.db", "sqlite:keys.db", "sqlite:///./my%20keys.db"]
)
@pytest.mark.parametrize("colour", [Guard, AsyncGuard])
def test_a_relative_file_is_the_one_of_where_the_guard_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, colour: type[Guard] | type[AsyncGuard], address: str
):
    """It is opened when it is needed: a daemon that changed its directory meanwhile would have another file."""
    made, later = tmp_path / "made", tmp_path / "later"
    for folder in (made, later):
        folder.mkdir()
    monkeypatch.chdir(made)
    guard = colour(address)
    named = guard.store_name
    monkeypatch.chdir(later)

    opened = guard.store.name

    assert opened == guard.store_name == named
    assert (len(list(made.glob("*keys.db"))), list(later.iterdir())) == (1, [])
    getattr(guard.store, "sync", guard.store).close()


@pytest.mark.parametrize(
    "address", ["sqlite:///:memory:", "sqlite:///", "sqlite://keys.db", "sqlite:///%a0", "sqlite:///%00"]
)
def test_an_address_that_names_no_file_is_none_in_any_folder(address: str):
    with pytest.raises(Misconfigured):
        Guard(address).run("charge", lambda: pytest.fail("it ran"), key="o-1", payload={})


def test_a_relative_file_in_a_folder_that_is_gone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    with pytest.raises(Misconfigured, match="working directory that is gone"):
        Guard("sqlite:///keys.db")


PATCHERS = [
    pytest.param("gevent.monkey", "is_module_patched", "threading", id="gevent"),
    pytest.param("gevent.monkey", "is_module_patched", "socket", id="gevent-thread=False"),
    pytest.param("eventlet.patcher", "is_monkey_patched", "thread", id="eventlet"),
    pytest.param("eventlet.patcher", "is_monkey_patched", "socket", id="eventlet-thread=False"),
]


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch):
    """What gevent or eventlet says of itself: loaded, and then that it has patched something."""

    def patch(library: str, asked: str, name: str | None = None) -> None:
        monkey = types.ModuleType(library)
        monkeypatch.setattr(monkey, asked, lambda module: module == name, raising=False)
        monkeypatch.setitem(sys.modules, library, monkey)

    return patch


@pytest.mark.parametrize("kind", [Guard, AsyncGuard])
@pytest.mark.parametrize(("library", "asked", "name"), PATCHERS)
def test_patched_threads_and_sockets_are_refused(patch, library, asked, name, kind):
    """The library's own word is asked for; where it is loaded and has patched nothing, guards are made."""
    patch(library, asked)
    kind("memory://")
    patch(library, asked, name)

    with pytest.raises(Misconfigured, match=library.partition(".")[0]):
        kind("memory://")


@pytest.mark.parametrize(("library", "asked", "name"), PATCHERS)
def test_a_guard_that_was_made_before_the_patch_is_refused_when_it_is_first_used(patch, library, asked, name):
    """A server that loads the application first and patches in its workers; nothing runs."""
    ran: list[str] = []
    guard = Guard("memory://", policy=Policy(store_down="run"))
    charge = guard.once(name="charge", key="order_id")(lambda order_id: ran.append(order_id))
    patch(library, asked, name)

    with pytest.raises(Misconfigured, match=library.partition(".")[0]):
        charge("o-1")
    assert not ran
