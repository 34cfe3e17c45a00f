"""The suites are made of asserts: are there any?"""

from __future__ import annotations


def told_without_asserts() -> None:
    """Under `python -O` such a suite would pass whatever it is given; pytest, which compiles them anew, keeps them."""
    try:
        assert False  # noqa: B011, PT015 - whether this is carried out is the question
    except AssertionError:
        return
    raise RuntimeError("python -O has removed the asserts that this suite is made of: run it without -O, or by pytest")
