"""Two functions under one name would answer for each other (C36); one function, decorated again, may."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from samekey import Guard, Misconfigured
from tests.guard.helpers import Side


def test_two_functions_of_one_name_are_refused(side: Side):
    def one(order_id: str) -> str:
        return order_id

    def other(order_id: str) -> str:
        return order_id

    side.once(name="charge", key="order_id")(one)
    with pytest.raises(Misconfigured, match="two functions are called 'charge'"):
        side.once(name="charge", key="order_id")(other)
    side.once(name="other", key="order_id")(other)


def test_the_same_function_decorated_anew_is_not_refused(side: Side):
    """A module that is reloaded defines its functions again."""
    for _ in range(2):

        def charge(order_id: str) -> str:
            return order_id

        side.once(name="charge", key="order_id")(charge)


def test_closures_of_one_factory_without_names_are_refused(side: Side):
    """They share a qualname: without name= the second would answer for the first."""

    def make(shop: str) -> Any:
        @side.once(key="order_id")
        def charge(order_id: str) -> str:
            return f"{shop} {order_id}"

        return charge

    make("a")
    with pytest.raises(Misconfigured, match="name="):
        make("b")


# -- C36: what has no name of its own, or shares one --------------------------------------------------------------


def charge(order_id: str) -> str:
    return "charged"


def refund(order_id: str) -> str:
    return "refunded"


class Desk:
    def __init__(self, word: str) -> None:
        self.word = word

    def __call__(self, order_id: str) -> str:
        return self.word

    def say(self, order_id: str) -> str:
        return self.word

    @classmethod
    def of_class(cls, order_id: str) -> str:
        return cls.__name__


class OtherDesk(Desk):
    pass


def saying(word: str) -> Callable[[str], str]:
    def say(order_id: str) -> str:
        return word

    return say


def by_default(word: str) -> Callable[[str], str]:
    return lambda order_id, word=word: word  # type: ignore[misc]


def by_keyword_default(word: str) -> Callable[[str], str]:
    def say(order_id: str, *, word: str = word) -> str:
        return word

    return say


def logged(function: Callable[[str], str]) -> Callable[[str], str]:
    @functools.wraps(function)
    def call(order_id: str) -> str:
        return function(order_id)

    return call


def wrapped(function: Callable[[str], str]) -> Callable[[str], str]:
    """A decorator that forgot functools.wraps."""

    def call(order_id: str) -> str:
        return function(order_id)

    return call


def with_word(word: str, order_id: str) -> str:
    return word


PAIRS: dict[str, tuple[Any, Any]] = {
    "partials of two functions": (functools.partial(charge), functools.partial(refund)),
    "partials with other arguments": (
        functools.partial(with_word, "charged"),
        functools.partial(with_word, "refunded"),
    ),
    "partials with other keywords": (
        functools.partial(with_word, word="charged"),
        functools.partial(with_word, word="-"),
    ),
    "a partial and its function": (functools.partial(charge), charge),
    "two lambdas on one line": (lambda order_id: "charged", lambda order_id: "refunded"),
    "callable objects": (Desk("charged"), Desk("refunded")),
    "methods of two objects": (Desk("charged").say, Desk("refunded").say),
    "methods of two classes": (Desk.of_class, OtherDesk.of_class),
    "closures": (saying("charged"), saying("refunded")),
    "closures over functions": (wrapped(charge), wrapped(refund)),
    "closures over closures": (wrapped(wrapped(charge)), wrapped(wrapped(refund))),
    "closures over containers": (saying(["charged"]), saying(["refunded"])),  # type: ignore[arg-type]
    "defaults": (by_default("charged"), by_default("refunded")),
    "keyword defaults": (by_keyword_default("charged"), by_keyword_default("refunded")),
    "wrapped by one decorator": (logged(charge), logged(refund)),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_c36_two_functions_under_one_name_are_refused_whatever_they_are(pair: tuple[Any, Any]):
    guard = Guard("memory://")
    guard.once(name="pay", key="order_id")(pair[0])

    with pytest.raises(Misconfigured, match=r"two functions are called 'pay'.*name=.*aliases=.*parameter"):
        guard.once(name="pay", key="order_id")(pair[1])
    guard.once(name="other", key="order_id")(pair[1])


DESK = Desk("charged")
FORMS: dict[str, Callable[[], Any]] = {
    "a function": lambda: charge,
    "a lambda": lambda: lambda order_id: "charged",
    "a partial": lambda: functools.partial(with_word, "charged"),
    "a callable object": lambda: DESK,
    "a method of one object": lambda: DESK.say,
    "a method of a class": lambda: Desk.of_class,
    "a closure over the same": lambda: saying("charged"),
    "a closure over a function": lambda: wrapped(charge),
    "a wrapped function": lambda: logged(charge),
    "a default": lambda: by_default("charged"),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_same_function_made_again_for_each_request_is_accepted(form: Callable[[], Any]):
    guard = Guard("memory://")
    answers = [guard.once(name="pay", key="order_id")(form()).answer("o-1") for _ in range(3)]

    assert [one.replayed for one in answers] == [False, True, True]


def test_a_function_that_calls_itself_is_accepted_again():
    """When it is decorated, the cell of its own name is still empty."""
    guard = Guard("memory://")

    def make() -> Any:
        @guard.once(name="count", key="number")
        def count(number: int) -> int:
            return number and count(number - 1)

        return count

    assert (make()(3), make()(4)) == (0, 0)


def test_functions_that_hold_each_other_do_not_hang_the_comparison():
    guard = Guard("memory://")

    def make(last: int) -> Any:
        def even(number: int) -> bool:
            return number == last or odd(number - 1)

        def odd(number: int) -> bool:
            return number != last and even(number - 1)

        return lambda number: even(number)

    guard.once(name="even", key="number")(make(0))
    guard.once(name="even", key="number")(make(0))
    with pytest.raises(Misconfigured, match="two functions"):
        guard.once(name="even", key="number")(make(1))


# -- a module that is run again --------------------------------------------------------------------------------------

MODULE = """
    from samekey_test_guard import guard

    class Desk:
        def __init__(self):
            self.client = object()

        def __call__(self, order_id):
            return "desk"

    def make(client):
        @guard.once(name="closure", key="order_id")
        def closure(order_id):
            return str(client)
        return closure

    @guard.once(name="charge", key="order_id")
    def charge(order_id):
        return "charged"

    @guard.once(key="order_id")
    def unnamed(order_id):
        return "unnamed"

    desk = guard.once(name="desk", key="order_id")(Desk())
    closure = make(object())
    lazy = guard.once(name="lazy", key="order_id")(lambda order_id: "lazy")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of an application; its guard lives in another one."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "samekey_test_guard.py").write_text("import samekey\nguard = samekey.Guard('memory://')\n")
    path = tmp_path / "samekey_test_app.py"
    path.write_text(textwrap.dedent(MODULE))
    yield path
    for name in ("samekey_test_guard", "samekey_test_app"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("again", ["reload", "import"])
@pytest.mark.parametrize("edited", [False, True])
def test_a_module_that_is_loaded_again_declares_its_functions_again(module: Path, again: str, edited: bool):
    app = importlib.import_module("samekey_test_app")
    if edited:
        module.write_text("# a line more\n" + module.read_text().replace('"charged"', '"charged, and more"'))
        importlib.invalidate_caches()
    if again == "import":
        del sys.modules["samekey_test_app"]
        app = importlib.import_module("samekey_test_app")
    else:
        app = importlib.reload(app)

    assert app.charge("o-1") == ("charged, and more" if edited else "charged")
    assert app.unnamed("o-1") == "unnamed"


def test_two_functions_of_one_name_in_one_module_are_refused(module: Path):
    """Written twice by mistake: whoever kept the first would be answered by the second."""
    module.write_text(
        textwrap.dedent(
            """
            from samekey_test_guard import guard

            @guard.once(name="charge", key="order_id")
            def charge(order_id):
                return "charged"

            @guard.once(name="charge", key="order_id")
            def charge(order_id):
                return "refunded"
            """
        )
    )

    with pytest.raises(Misconfigured, match="two functions are called 'charge'"):
        importlib.import_module("samekey_test_app")


def test_a_cell_of_a_notebook_may_be_run_again(monkeypatch: pytest.MonkeyPatch):
    """No file stands behind it: a function is defined anew under its name, and a lambda has none."""
    notebook = types.ModuleType("samekey_test_notebook")
    monkeypatch.setitem(sys.modules, notebook.__name__, notebook)
    cells = vars(notebook)
    cells["guard"] = Guard("memory://")

    define = "@guard.once(name='charge', key='order_id')\ndef charge(order_id, amount={}):\n    return amount"
    lazy = "guard.once(name='lazy', key='order_id')(lambda order_id: {})"
    for cell in (define.format(1), define.format(2), lazy.format(1), lazy.format(1)):
        exec(cell, cells)

    with pytest.raises(Misconfigured, match="two functions"):
        exec(lazy.format(2), cells)


# -- a module that is the program ----------------------------------------------------------------------------------

PROGRAM = """
import functools, multiprocessing, sys
from dataclasses import dataclass
from samekey import Guard, Refused
from elsewhere import guard, logged

@dataclass
class Receipt:
    order: str

class Stolen(Refused):
    pass

@guard.once(key="order_id")
def charge(order_id: str):
    print("charged")
    return Receipt(order_id)

@guard.once(key="order_id")
@logged
def refund(order_id: str) -> int:
    print("refunded")
    return 1

@guard.once(key="order_id")
def refuse(order_id: str) -> int:
    print("refused")
    raise Stolen("stolen")

def all_of_them(order_id: str) -> None:
    print(charge(order_id), refund(order_id))
    try:
        refuse(order_id)
    except Refused as error:
        print(type(error).__name__, charge.operation.name, refund.operation.name, flush=True)

if __name__ == "__main__":
    for how in sys.argv[1:]:
        if how == "twin":
            import worker
            worker.all_of_them("o-1")
        elif how == "itself":
            all_of_them("o-1")
        else:
            with multiprocessing.get_context(how).Pool(1) as pool:
                pool.map(all_of_them, ["o-1"])
"""
ELSEWHERE = """
import functools
from samekey import Guard

guard = Guard("sqlite:///keys.db")

def logged(function):
    @functools.wraps(function)
    def called(*args):
        return function(*args)
    return called
"""
STARTED = {
    "as a file": ("worker.py", "itself"),
    "with -m": ("-m", "worker", "itself"),
    "imported": ("-c", "import worker; worker.all_of_them('o-1')"),
    "both": ("worker.py", "twin", "itself"),
    "by a fork": ("worker.py", "fork"),
    "by a spawned child": ("worker.py", "spawn"),
    "by the child of a module": ("-m", "worker", "spawn"),
}


@pytest.mark.parametrize("first", ["as a file", "by a spawned child"])
def test_a_function_has_one_name_however_its_module_was_started(tmp_path: Path, first: str):
    """As the program it is `__main__`, in a spawned child `__mp_main__`: under three names it would run three times."""
    tmp_path.joinpath("worker.py").write_text(PROGRAM)
    tmp_path.joinpath("elsewhere.py").write_text(ELSEWHERE)

    said = {
        how: subprocess.run(
            [sys.executable, *STARTED[how]], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout
        for how in (first, *STARTED)  # the first one again, too
    }

    answers = "Receipt(order='o-1') 1\nStolen worker:charge worker:refund\n"
    assert said == dict.fromkeys(STARTED, answers) | {"both": answers * 2}


def test_a_file_that_is_started_inside_of_its_package_has_another_name(tmp_path: Path):
    """Python does not say to which package it belongs: `name=` does."""
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    jobs.joinpath("worker.py").write_text(PROGRAM.replace("from elsewhere", "from jobs.elsewhere"))
    jobs.joinpath("elsewhere.py").write_text(ELSEWHERE)
    ways = [("jobs/worker.py", "itself"), ("-c", "import jobs.worker; jobs.worker.all_of_them('o-1')")]

    said = [
        subprocess.run(
            [sys.executable, *way],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
        ).stdout
        for way in ways
    ]

    assert [one.count("charged\n") for one in said] == [1, 1]
    assert [one.split()[-2] for one in said] == ["worker:charge", "jobs.worker:charge"]


def test_a_prompt_has_no_other_name():
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            "import samekey\ndef f(x): ...\nprint(samekey.Guard('memory://').once(key='x')(f).operation.name)",
        ],
        check=True,
        capture_output=True,
        text=True,
    )

    assert ran.stdout == "__main__:f\n"
