"""The HTTP suite can fail: each of these adapters gets one thing wrong, and the test named here tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from samekey.http.wsgi import SamekeyMiddleware
from samekey.testing.http import Handle, HttpAdapterSuite
from tests.http.apps import bare_wsgi

Wraps = Callable[[Any], Any]


def sound(app: Any) -> Any:
    return app


def answers_with(change: Callable[[list[Any]], list[Any]]) -> Wraps:
    """The headers of every answer are changed."""

    def wraps(app: Any) -> Any:
        return lambda environ, start: app(environ, lambda status, headers, *more: start(status, change(headers), *more))

    return wraps


def mixes_parts_up(app: Any) -> Any:
    class Mixed:
        def __init__(self, made: Any) -> None:
            self._made = made

        def __iter__(self) -> Any:
            return iter(list(self._made)[::-1])

        def close(self) -> None:
            getattr(self._made, "close", lambda: None)()

    return lambda environ, start: Mixed(app(environ, start))


def reads_no_chunks(app: Any) -> Any:
    def wrapped(environ: Any, start: Any) -> Any:
        if "CONTENT_LENGTH" not in environ and "wsgi.input_terminated" not in environ:
            environ = {**environ, "CONTENT_LENGTH": "0"}
        return app(environ, start)

    return wrapped


forgets_repeated_headers = answers_with(lambda headers: list(dict(headers).items()))
says_its_length_twice = answers_with(lambda headers: [*headers, ("Content-Length", "30")])
says_a_length_of_nothing = answers_with(lambda headers: [*headers, ("Content-Length", "0")])
hears_of_no_length = answers_with(lambda headers: [one for one in headers if one[0] != "Content-Length"])


@pytest.mark.parametrize(
    ("outside", "inside", "name"),
    [
        (forgets_repeated_headers, sound, "cookies_are_for_the_first_caller_alone"),
        (mixes_parts_up, sound, "a_stream_too_long_to_keep_is_done_once"),
        (reads_no_chunks, sound, "a_body_without_a_length_is_read_to_its_end_or_refused"),
        (says_its_length_twice, sound, "status_bytes_and_safe_headers_are_the_same"),
        (says_a_length_of_nothing, sound, "any_success_is_kept"),
        (sound, hears_of_no_length, "an_answer_shorter_than_declared_is_a_doubt"),
    ],
)
def test_an_adapter_that_gets_it_wrong_is_told(outside: Wraps, inside: Wraps, name: str):
    """The test of that promise fails on it, and passes on the sound one."""
    _play(sound, sound, name)

    with pytest.raises(AssertionError):
        _play(outside, inside, name)


def _play(outside: Wraps, inside: Wraps, name: str) -> None:
    class Suite(HttpAdapterSuite):
        protocol = "wsgi"

        def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
            return outside(SamekeyMiddleware(inside(bare_wsgi(handle)), guard=guard, endpoint=endpoint))

    suite = Suite()
    suite.setup_method()
    try:
        getattr(suite, f"test_{name}")()
    finally:
        suite.teardown_method()
