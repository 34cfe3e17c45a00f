"""What people see of `import samekey`: its names, where they say they are from, and their examples."""

from __future__ import annotations

import doctest
import inspect
import pickle
import subprocess
import sys
import traceback
import typing
from typing import Any

import pytest

import samekey
from samekey.core import errors
from samekey.core.envelope import encode
from samekey.core.refusal import decode_refusal, encode_refusal
from samekey.core.shapes import find_class, ref_of

NAMES = samekey.__all__
CLASSES = [name for name in NAMES if isinstance(getattr(samekey, name), type)]


def test_every_public_name_is_of_samekey():
    values = {"CONTENT", "FOREVER"}  # the others are classes and functions
    wrong = [name for name in set(NAMES) - values if getattr(samekey, name).__module__ != "samekey"]

    assert wrong == []
    assert type(samekey.CONTENT).__module__ == "samekey"


def test_a_traceback_shows_the_name_to_import():
    try:
        raise samekey.KeyReused("used before", key="o-1", fields=())
    except samekey.KeyReused as error:
        last = traceback.format_exception_only(error)[-1]

    assert last == "samekey.KeyReused: used before\n"


def test_dir_shows_public_names_only():
    assert set(dir(samekey)) == {*NAMES, "__doc__", "__version__"}


def test_annotations_can_still_be_resolved():
    for name in CLASSES:
        typing.get_type_hints(getattr(samekey, name), include_extras=True)


@pytest.mark.parametrize("name", CLASSES)
def test_a_record_names_a_public_class_by_the_module_that_defines_it(name: str):
    """As every version has written it; both names are found again."""
    cls = getattr(samekey, name)
    ref = ref_of(cls)

    assert ref.startswith(("samekey.core.", "samekey.guard."))
    assert find_class(ref, {}) is find_class(f"samekey:{name}", {}) is cls


def test_the_bytes_of_a_refusal_and_of_a_result_stay():
    refusal = encode_refusal(errors.Refused("no", detail=1), max_bytes=1000)

    assert b'"samekey.core.errors:Refused"' in refusal
    assert b"samekey.core.boundary:Declined" in encode(samekey.Declined(reason="x"), max_bytes=1000, types=())
    again = refusal.replace(b"samekey.core.errors:Refused", b"samekey:Refused")
    assert type(decode_refusal(again, allowed=(errors.Refused,))) is errors.Refused


def test_errors_are_pickled_by_their_public_name_and_read_by_the_old_one():
    error = samekey.InDoubt("unknown", key="o-1", token=1, error=None, age_seconds=0.0, next="person", retry_after=0.0)
    text = pickle.dumps(error, protocol=0)

    assert (type(pickle.loads(text)), pickle.loads(text).key) == (samekey.InDoubt, "o-1")
    assert type(pickle.loads(text.replace(b"csamekey\nInDoubt", b"csamekey.core.errors\nInDoubt"))) is samekey.InDoubt


@pytest.mark.parametrize("name", [*CLASSES, "current"])
def test_the_examples_in_docstrings_run(name: str):
    """In a process of their own: an example of one must not see the names of another."""
    code = (
        "import doctest, samekey, sys\n"
        f"found = doctest.DocTestFinder().find(samekey.{name}, '{name}', module=False, globs=dict(vars(samekey)))\n"
        "runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)\n"
        "for one in found: runner.run(one)\n"
        "sys.exit(runner.summarize(verbose=False).failed)"
    )
    if not any(one.examples for one in doctest.DocTestFinder().find(getattr(samekey, name), name, module=False)):
        return
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stdout


def test_once_has_an_example_and_explains_every_option():
    text = inspect.getdoc(samekey.Guard.once) or ""  # Python 3.13 strips the indent by itself

    assert ">>> @guard.once(" in text
    for option in ("key", "name", "tenant", "ignore", "boundary", "policy", "aliases"):
        assert f"\n{option} " in text, option


@pytest.mark.parametrize("kind", [samekey.Guard, samekey.AsyncGuard])
def test_once_without_parentheses_shows_the_right_line(kind: Any):
    guard = kind("memory://")

    def charge(order_id: str, amount: int) -> str:
        return order_id

    with pytest.raises(TypeError) as raised:
        guard.once(charge)
    expected = "@guard.once takes its options in parentheses: write @guard.once(key='order_id') above charge"
    assert str(raised.value) == expected
    with pytest.raises(TypeError, match="required keyword-only argument: 'key'"):
        guard.once()
