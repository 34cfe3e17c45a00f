"""--app: the user's guard, and its store in the colour that a command needs."""

from __future__ import annotations

import inspect
import os
import sys
from importlib import import_module
from typing import Any

import click

from samekey import AsyncGuard, Guard
from samekey.cli.exits import NoStore
from samekey.core.errors import Misconfigured, StoreError


def load(app: str) -> Guard | AsyncGuard:
    """The guard that `module:name` means; modules of the current folder count, as they do for `python -m`."""
    module, colon, path = app.partition(":")
    if not (module and colon and path):
        raise click.UsageError(f"--app takes module:guard, not {app!r}.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module)
    except Exception as error:  # the user's own code runs here: show whatever it raises
        raised = f"importing {module} raised {type(error).__name__}: {error}"
        raise Misconfigured(raised, hint="--debug shows where") from error
    for name in path.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, (Guard, AsyncGuard)):
        raise Misconfigured(f"{app} is {'missing' if found is None else type(found).__name__}, not a guard")
    return found


def store_of(guard: Guard | AsyncGuard) -> Any:
    """The guard's own store, in the colour that a command needs."""
    try:
        store: Any = guard.store
    except (Misconfigured, StoreError, OSError) as error:
        raise NoStore(f"the guard's store cannot be opened: {error}") from error
    if inspect.iscoroutinefunction(store.carry_out):
        store = getattr(store, "sync", None)
    if store is None:
        raise click.UsageError("the guard's store is for async code only: give --store URL as well.")
    return store
