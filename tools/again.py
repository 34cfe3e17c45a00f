"""The tests that failed in the last run, once more, one at a time: `python -m tools.again` after a `pytest -n 2`.

Thousands of tests share two cores, real servers and real time, and now and then one is late because of its
neighbours. Whoever fails alone as well is broken, and the run stays failed. Whoever passes alone is told, and is a
defect all the same, of the test if not of the product: look for it. There is no second look at the rooms whose
tests count effects - one failure there is a finding - and none at more than a few at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
FEW = 3
NO_SECOND_LOOK = ("tests/core/", "tests/proofs/")


def hopeless(failed: list[str]) -> str | None:
    """Why these are not tried again."""
    if not failed:
        return "no test failed: it was something else"
    if len(failed) > FEW:
        return f"{len(failed)} tests failed, which is no chance"
    for test in failed:
        if test.startswith(NO_SECOND_LOOK):
            return f"{test} is one of those that must never fail"
    return None


def alone(failed: list[str]) -> list[str]:
    """What to give to pytest: the examples of a page build on each other, so the page is tried whole."""
    return list(dict.fromkeys(test if ".py::" in test else test.partition("::")[0] for test in failed))


def main(arguments: list[str]) -> int:
    failed = sorted(json.loads(FAILED.read_text())) if FAILED.exists() else []
    reason = hopeless(failed)
    if reason is not None:
        print(f"no second look: {reason}")
        return 1
    ended = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, *alone(failed)])  # noqa: S603 - our own tests
    if ended.returncode == 0:
        print(f"passed alone, after failing beside others (look for the reason): {', '.join(failed)}")
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
