"""Run the tests that timed out in the last run once more, one at a time: `python -m tools.again` after `pytest -n 2`.

Thousands of tests share two cores, real servers and real time, and now and then one is late because of the others. A
test that fails alone too is broken, and the run stays failed. A test that passes alone is named in the log; it is a
defect all the same, of the test if not of the product: look for its reason.

Only a time-out is forgiven: any other failure is a finding, although it may not happen twice. A planted double-effect
bug failed 7 tests of one run, and 6 of them passed alone. The rooms whose tests count effects get no second look
at all, and more than a few time-outs are no chance.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FAILURES = Path(".pytest_cache/v/samekey/failures")  # written by tests/failures.py
TIME_OUT = "timed out"
FEW = 3
NO_SECOND_LOOK = tuple(
    f"tests/{room}/" for room in ("core", "guard", "stores", "http", "examples", "servers", "proofs")
)


def last_run() -> tuple[bool, dict[str, str]]:
    """Whether the last run reached its end, and why each of its tests failed."""
    if not FAILURES.exists():
        return False, {}
    record = json.loads(FAILURES.read_text())
    return bool(record["finished"]), dict(record["failed"])


def hopeless(finished: bool, failed: dict[str, str]) -> str | None:
    """Why these tests are not tried again; None if they are."""
    if not finished:
        return "the last run did not reach its end"
    if not failed:
        return "no test failed: it was something else"
    if len(failed) > FEW:
        return f"{len(failed)} tests failed, and at most {FEW} are tried again"
    for test, reason in failed.items():
        if test.startswith(NO_SECOND_LOOK):
            return f"{test} is in a room whose tests count effects"
        if reason != TIME_OUT:
            return f"{test} {reason}, and only a time-out is tried again"
    return None


def alone(failed: list[str]) -> list[str]:
    """What to give to pytest: the examples of a page build on each other, so the page is tried whole."""
    return list(dict.fromkeys(test if ".py::" in test else test.partition("::")[0] for test in failed))


def main(arguments: list[str]) -> int:
    finished, failed = last_run()
    reason = hopeless(finished, failed)
    if reason is not None:
        print(f"no second look: {reason}")
        return 1
    tests = sorted(failed)
    ended = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, *alone(tests)])  # noqa: S603 - our own tests
    if ended.returncode == 0:
        print(f"forgiven, because they timed out and passed alone (look for the reason): {', '.join(tests)}")
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
