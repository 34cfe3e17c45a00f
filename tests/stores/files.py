"""A process that has many files open, as a busy one has: what opens next is beyond what `select` can count."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from collections.abc import Iterator

SELECT_MAX = 1024


@contextlib.contextmanager
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened: list[int] = []
    try:
        if soft != resource.RLIM_INFINITY and soft < 4 * SELECT_MAX:
            wanted = 4 * SELECT_MAX if hard == resource.RLIM_INFINITY else min(hard, 4 * SELECT_MAX)
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        while not opened or opened[-1] <= SELECT_MAX:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for one in opened:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def no_files(but: int) -> Iterator[None]:
    """A process that may open only so many more files; what was left lying about by others is closed before."""
    gc.collect()
    gc.disable()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        with contextlib.suppress(OSError):
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(but):
            os.close(opened.pop())
        yield
    finally:
        gc.enable()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in opened:
            os.close(one)
