"""Why each test of a run failed, written into pytest's cache: `tools/again.py` reads it.

A second look forgives time-outs only, so the reason must come from the exception itself, not from the text of a report.
A run that did not reach its end, and a worker that crashed, leave no reason: then nothing is forgiven.
"""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from typing import Any

import pytest

RECORD = "samekey/failures"  # in .pytest_cache/v: {"finished": bool, "failed": {node id: reason}}
TIME_OUT = "timed out"
FAILED = "failed"

_failed: dict[str, str] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    report = yield
    if report.failed and call.excinfo is not None:
        report.samekey_reason = reason(call.excinfo.value)  # pytest-xdist sends a report's attributes along
    return report


def reason(error: BaseException) -> str:
    """Whether this is a time-out and nothing else. An assertion is a finding, also one about seconds."""
    late = isinstance(error, TimeoutError | subprocess.TimeoutExpired)
    ended = isinstance(error, pytest.fail.Exception) and "from pytest-timeout" in str(error.msg)
    return TIME_OUT if late or ended else FAILED


def pytest_sessionstart(session: pytest.Session) -> None:
    _failed.clear()
    _write(session.config, finished=False)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        why = getattr(report, "samekey_reason", FAILED)  # a worker that crashed has none
        _failed[report.nodeid] = FAILED if _failed.get(report.nodeid) == FAILED else why


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _failed[report.nodeid] = FAILED


def pytest_sessionfinish(session: pytest.Session) -> None:
    _write(session.config, finished=True)


def _write(config: pytest.Config, *, finished: bool) -> None:
    cache = getattr(config, "cache", None)
    if cache is not None and not hasattr(config, "workerinput"):  # only the process that sees every report
        cache.set(RECORD, {"finished": finished, "failed": dict(_failed)})
