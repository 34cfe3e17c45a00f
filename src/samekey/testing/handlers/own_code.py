"""Which code is yours: that is where a handler can be stopped.

Not yours are the standard library, what is installed, and samekey. But tox and CI install a project before they test
it: so the handler's own package is yours wherever it is, and what was installed from a folder or a file, not from an
index (pip notes that, see PEP 610), is yours too.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import itertools
import json
import os
import site
import sys
import sysconfig
from pathlib import Path
from typing import Any

import samekey

UNWRAPPED_MAX = 20  # layers around a function; more than that is a circle

_SAMEKEY = str(Path(samekey.__file__).parent)
_INSTALLED = tuple(
    {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    | {*site.getsitepackages(), site.getusersitepackages()}  # a venv may see those of the system, too
)
_FOREIGN = (
    *_INSTALLED,
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib")},
    _SAMEKEY,
    "<frozen",
    "<string>",  # what dataclasses and the like generate
    "<attrs",
)


class OwnCode:
    """The code of the people who wrote this handler."""

    def __init__(self, handler: Any) -> None:
        self._places = tuple(place for place in _places(_innermost(handler)) if not place.startswith(_SAMEKEY))

    def __contains__(self, filename: str) -> bool:
        return (
            filename.startswith(self._places) or not filename.startswith(_FOREIGN) or filename in _installed_from_here()
        )


def ours(filename: str) -> bool:
    """Whether this is samekey itself."""
    return filename.startswith(_SAMEKEY)


def installed(filename: str) -> bool:
    """Whether this is a file of an installed package. It may be yours, but nothing shows that."""
    return filename.startswith(_INSTALLED) and not filename.startswith(_SAMEKEY)


@functools.cache
def _installed_from_here() -> frozenset[str]:
    """The files of distributions that came from a folder or a file."""
    found: set[str] = set()
    for distribution in importlib.metadata.distributions():
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        if str(origin.get("url", "")).startswith("file:"):
            files = (str(distribution.locate_file(one)) for one in distribution.files or () if one.suffix == ".py")
            found.update(one for one in files if not one.startswith(_SAMEKEY))
    return frozenset(found)


def _innermost(handler: Any) -> Any:
    """The function under decorators, partials, methods and callable objects; the handler itself, if there is none."""
    for _ in range(UNWRAPPED_MAX):
        inner = _inner(handler)
        if inner is None:
            break
        handler = inner
    return handler


def _inner(handler: Any) -> Any:
    if isinstance(handler, functools.partial):
        return handler.func
    # A guarded method hides what it wraps from frameworks, which would ask for its `self`.
    inner = next(
        (getattr(handler, name) for name in ("__wrapped__", "__func__", "_guarded") if hasattr(handler, name)), None
    )
    if inner is not None or inspect.isroutine(handler) or inspect.isclass(handler):
        return inner
    call = inspect.getattr_static(type(handler), "__call__", None)
    return call if inspect.isfunction(call) else None


def _places(function: Any) -> list[str]:
    """Its file, and the folder of its package: the outermost one that is a package and no mere namespace."""
    code = getattr(function, "__code__", None)
    places = [] if code is None else [code.co_filename]
    names = str(getattr(function, "__module__", None) or "").split(".")
    for name in itertools.accumulate(names, "{}.{}".format):
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if file is not None:
            places.append(str(Path(file).parent) + os.sep if hasattr(module, "__path__") else file)
            break
    return places
