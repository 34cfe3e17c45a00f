"""A process for a mutant: whatever it does there, it ends, and takes along what it left behind."""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections.abc import Callable

CPU_SECONDS = 20.0  # beside four times what the tests take without a mutant: then it goes in circles
DATA_BYTES = 3 << 30  # a mutant that fills the memory is as dead as one that fails

Fate = tuple[str, str]  # what became of it (killed, survived, circles: stopped by a limit), and who told


def in_a_child(judge: Callable[[], str | None], seconds: float) -> Fate:
    """What `judge` says in a fork of this process: the name of what told, or None if nothing did.

    `seconds` is what it takes with nothing changed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os._exit(_judge(judge, writing, int(CPU_SECONDS + 4 * seconds)))
    os.close(writing)
    ended = _wait_for(child, reading, CPU_SECONDS * 6 + 30 * seconds)
    _end_group(child)
    by = _heard(reading)
    if ended is None or os.WIFSIGNALED(ended):
        return "circles", ""
    return ("survived" if os.WEXITSTATUS(ended) == 0 else "killed"), by


def _judge(judge: Callable[[], str | None], writing: int, cpu_seconds: int) -> int:
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
        quiet = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(quiet, number)
        told = judge()
    except BaseException as error:  # a mutant may well raise SystemExit
        told = f"outside a test: {type(error).__name__}"
    if told is None:
        return 0
    os.write(writing, told.encode())
    return 1


def _heard(reading: int) -> str:
    os.set_blocking(reading, False)  # a process that a test forked and forgot may still hold the other end
    try:
        return os.read(reading, 4096).decode(errors="replace")
    except BlockingIOError:
        return ""
    finally:
        os.close(reading)


def _wait_for(child: int, reading: int, seconds: float) -> int | None:
    """How it ended, or None if it had to be stopped."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        # Its last word, or its end of the pipe being closed, wakes us; the clock, if somebody else holds that end.
        select.select([reading], [], [], 0.1)
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.001)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _end_group(child: int) -> None:
    """What a dead test left behind."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
