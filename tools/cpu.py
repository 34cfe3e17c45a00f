"""Run a command and print the CPU seconds of all its processes: `python -m tools.cpu 55 make fast types`.

Printed only: on a fresh clone mypy has no results to start from, and takes more than the rest together.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time


def main(arguments: list[str]) -> int:
    budget, *command = arguments
    began = time.monotonic()
    ended = subprocess.run(command)  # noqa: S603 - what the Makefile says
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime
    mark = ", over budget" if seconds > float(budget) else ""
    print(f"{seconds:.0f} CPU seconds of {budget}{mark}, in {time.monotonic() - began:.0f} s")
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
