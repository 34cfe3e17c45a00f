"""A command line in the docs that is wrong is told."""

from __future__ import annotations

import os

import pytest

from tests.pages.commands import carry_out, console, script


@pytest.mark.parametrize(
    ("line", "printed", "wrong"),
    [
        ("curl http://localhost", "", "nobody here knows"),
        ("make nothing-of-the-kind", "", "nobody here knows"),
        ("make nothing", "", "No rule to make target"),
        ("pip install 'samekey[nothing]'", "", "there is no nothing in pyproject.toml"),
        ("pip install -c nothing.lock -e '.[dev]'", "", "there is no nothing.lock"),
        ("pip install somebody-else", "", "there is no somebody-else"),
        ("pytest tests/nothing", "", "there is no tests/nothing"),
        ("samekey nothing", "", "ended with 2"),
        ("samekey --version", "another", "instead of"),
        ("python -m tests.proofs.simulate --nothing", "", "unrecognized arguments"),
    ],
)
def test_a_wrong_line_is_reported(tmp_path, monkeypatch, line: str, printed: str, wrong: str):
    monkeypatch.chdir(tmp_path)

    assert wrong in (carry_out(line, printed) or "it is right")


@pytest.mark.parametrize("line", ["make test ARGS='-k chaos'", "pip install -e '.[test]'", "samekey --version"])
def test_a_right_line_is_not(tmp_path, monkeypatch, line: str):
    monkeypatch.chdir(tmp_path)

    assert carry_out(line, "...") is None


def test_lines_are_taken_apart():
    assert list(console("$ samekey ls \\\n    --json\nthis\nthat\n$ make demo  # with a word\n")) == [
        ("samekey ls --json", "this\nthat"),
        ("make demo  # with a word", ""),
    ]
    assert list(script("# nothing\nmake a \\\n  b\n\nmake c")) == [("make a b", ""), ("make c", "")]


def test_what_is_exported_counts_for_the_lines_after_it(monkeypatch):
    monkeypatch.setenv("SAMEKEY_STORE", "")

    assert carry_out("export SAMEKEY_STORE=memory://") is None
    assert os.environ["SAMEKEY_STORE"] == "memory://"
