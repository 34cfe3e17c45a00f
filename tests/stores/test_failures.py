"""One failure, many callers: each gets a copy that has nothing of the others."""

from __future__ import annotations

import ssl

import pytest

from samekey.core.errors import RecordUnreadable, StoreUnavailable
from samekey.stores._failures import CAUSES_MAX, own_copy
from tests.stores.reports import chain


class Odd(Exception):
    """Its arguments are not those of its constructor, as of many errors of drivers."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailable("down"),
        RecordUnreadable("damaged", cursor=(1.0, b"x")),
        Odd(code=7),
        ConnectionResetError(104, "reset"),
        ssl.SSLCertVerificationError(1, "certificate verify failed"),
        ExceptionGroup("two", [ValueError("one"), OSError("other")]),
        TimeoutError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_copy_has_the_type_the_text_and_the_facts(error):
    copied = own_copy(error)

    assert type(copied) is type(error)
    assert copied is not error
    assert (str(copied), copied.args, vars(copied)) == (str(error), error.args, vars(error))
    assert getattr(copied, "errno", None) == getattr(error, "errno", None)


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        try:
            raise LookupError("of another caller")
        except LookupError:
            raise error from cause
    except Exception as caught:
        return caught


def test_a_copy_has_neither_frames_nor_context_and_its_cause_is_a_copy():
    error = raised(StoreUnavailable("down"), raised(OSError("reset")))
    copied = own_copy(error)

    assert [type(one) for one in chain(copied)] == [StoreUnavailable, OSError]
    assert not any(one is other for one in chain(copied) for other in chain(error))
    assert all(one.__traceback__ is None for one in chain(copied))


def test_a_note_on_a_copy_is_on_no_other():
    error = StoreUnavailable("down")
    error.add_note("for all")
    first, second = own_copy(error), own_copy(error)
    first.add_note("for one")

    assert (error.__notes__, second.__notes__) == (["for all"], ["for all"])


def test_causes_in_a_circle_end():
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one

    assert len(chain(own_copy(one))) == CAUSES_MAX + 1
