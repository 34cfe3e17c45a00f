"""The suites are made of asserts, which `python -O` removes."""

from __future__ import annotations


def require_asserts() -> None:
    """Raise where asserts are removed: there a suite would pass any store. pytest keeps the asserts of suites."""
    try:
        assert False  # noqa: B011, PT015 - this shows whether asserts are carried out
    except AssertionError:
        return
    raise RuntimeError("python -O has removed the asserts that this suite is made of: run it without -O, or by pytest")
