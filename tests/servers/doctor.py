"""`samekey doctor` on a server that has a planted fault, as a person runs it."""

from __future__ import annotations

from samekey.cli._root import root
from tests.cli.conftest import RUNNER


def examined(url: str) -> tuple[int, str]:
    """The exit code of doctor, and what it wrote to stderr: each fault has its sentence there."""
    result = RUNNER().invoke(root, ["doctor", "--store", url], prog_name="samekey")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stderr
