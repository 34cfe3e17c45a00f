"""What a module is called that is the program, and where its classes are found again."""

from __future__ import annotations

import sys
import types
from importlib.machinery import ModuleSpec

import pytest

from samekey.core.shapes import find_class, home_of, ref_of


@pytest.fixture
def program(monkeypatch):
    """A module that stands in for the program, with a class of its own."""

    def start(name: str = "__main__", *, spec: str | None = None, file: object = None) -> types.ModuleType:
        module = types.ModuleType(name)
        module.__spec__ = None if spec is None else ModuleSpec(spec, None)
        if file is not None:
            module.__file__ = file  # type: ignore[assignment]
        module.Receipt = type("Receipt", (), {"__module__": name})  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return start


@pytest.mark.parametrize("name", ["__main__", "__mp_main__"])
def test_the_program_is_called_as_others_import_it(program, name):
    program(name, file="/srv/shop/worker.py")
    assert home_of(name) == "worker"

    program(name, spec="shop.worker", file="/srv/shop/worker.py")
    assert home_of(name) == "shop.worker"


def test_what_is_no_program_keeps_its_name_and_a_prompt_has_no_other(program):
    assert home_of("shop.worker") == "shop.worker"
    program()
    assert home_of("__main__") == "__main__"
    program(spec="__main__", file="worker.py")  # a zip or a folder that is run
    assert home_of("__main__") == "worker"
    program(file=object())
    assert home_of("__main__") == "__main__"


def test_a_functions_own_module_counts_unless_it_goes_by_anothers_name(program):
    program(file="worker.py")
    own = {"__name__": "__main__", "__file__": "other.py"}

    assert home_of("__main__", own) == "other"
    assert home_of("__main__", own | {"__name__": "decorators"}) == "worker"
    assert home_of("__main__", {}) == "worker"


def test_a_class_of_the_program_is_found_under_the_name_that_others_import(program, monkeypatch):
    module = program(file="samekey_test_worker.py")

    assert ref_of(module.Receipt) == "samekey_test_worker:Receipt"
    assert find_class("samekey_test_worker:Receipt", {}) is module.Receipt
    assert find_class("another_worker:Receipt", {}) is None

    twin = types.ModuleType("samekey_test_worker")
    monkeypatch.setitem(sys.modules, twin.__name__, twin)
    assert ref_of(module.Receipt) == "__main__:Receipt"  # imported as well: there stands, or will stand, a twin
    assert find_class("samekey_test_worker:Receipt", {}) is None
    assert find_class("__main__:Receipt", {}) is module.Receipt


def test_a_class_that_does_not_stand_in_the_program_is_called_as_it_says(program):
    program(file="samekey_test_worker.py")
    local = type("Local", (), {"__module__": "__main__"})

    assert ref_of(local) == "__main__:Local"
