"""On a real terminal: colours unless NO_COLOR says no, and a question that waits for its answer."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from samekey.core.states import State


def on_terminal(shell, *words, typed=b"", **environment):
    """What the terminal showed, and the exit code."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "samekey", *words],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**shell.environment, **environment},
    )
    os.close(slave)
    os.write(master, typed)
    shown = b""
    while True:
        try:
            some = os.read(master, 4096)
        except OSError:  # the other side is closed
            break
        if not some:
            break
        shown += some
    code = process.wait(timeout=60)
    os.close(master)
    return shown.decode(), code


@pytest.mark.parametrize("no_color", [False, True])
def test_colours_unless_no_color_is_set(shell, scene, no_color):
    scene.in_doubt("o-[red]1")
    shown, code = on_terminal(shell, "ls", **({"NO_COLOR": "1"} if no_color else {}))

    assert code == 1
    assert "STATE" in shown
    assert "o-[red]1" in shown
    assert ("\x1b[1;33m" in shown) is not no_color
    assert not (no_color and "\x1b[3" in shown)


def test_the_question_is_asked_and_answered(shell, scene):
    scene.in_doubt()
    shown, code = on_terminal(shell, "resolve", "o-1", "--happened", "--why", "w", typed=b"y\n")

    assert code == 0
    assert "Write 'happened' in the name of" in shown
    assert scene.peek().state is State.COMPLETED
