"""What repeats can only be judged where the first run is seen: a probe that looks elsewhere proves nothing."""

from __future__ import annotations

import pytest

from samekey import Guard
from samekey.testing import redeliver, run_twice


@pytest.mark.parametrize("repeat", [run_twice, redeliver])
def test_a_probe_that_sees_nothing_passes_nothing(repeat):
    sent: list[str] = []

    with pytest.raises(AssertionError, match="moved none of the probes, so nothing could be seen"):
        repeat(lambda to: sent.append(to), {"to": "ann"}, probes={"outbox": lambda: []})


@pytest.mark.parametrize("repeat", [run_twice, redeliver])
def test_one_probe_that_sees_it_is_enough(repeat):
    sent: list[str] = []
    mail = Guard("memory://").once(name="mail", key="to")(lambda to: sent.append(to))

    repeat(mail, {"to": "ann"}, probes={"outbox": lambda: sent, "alarms": lambda: 0})
    assert sent == ["ann"]


@pytest.mark.parametrize("repeat", [run_twice, redeliver])
def test_a_run_that_was_done_before_is_told_from_one_that_is_seen(repeat):
    """The key is used: what the guard replays says nothing about the handler."""
    sent: list[str] = []
    mail = Guard("memory://").once(name="mail", key="to")(lambda to: sent.append(to))
    mail("ann")

    with pytest.raises(AssertionError, match="or was this done before"):
        repeat(mail, {"to": "ann"}, probes={"outbox": lambda: sent})


def test_an_error_or_another_answer_is_told_before_what_was_not_seen():
    answers = iter(["one", "two"])
    with pytest.raises(AssertionError, match="the first run answered 'one', the second 'two'"):
        run_twice(lambda: next(answers), probes={"nothing": lambda: 0})
