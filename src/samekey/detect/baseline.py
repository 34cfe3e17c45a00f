"""Findings that a person accepted, each with a reason and a last day. After that day they count again."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from samekey.core.errors import Misconfigured
from samekey.detect.audit import Result
from samekey.detect.rules import TITLES

LONGEST = timedelta(days=366)  # an accepted gap is looked at once a year, at least
FIELDS = {"rule", "object", "reason", "until"}


@dataclass(frozen=True, slots=True)
class Accepted:
    rule: str
    object: str
    reason: str
    until: date  # the last day

    def covers(self, one: Result) -> bool:
        return (self.rule, self.object) == (one.finding.rule, one.finding.object)


@dataclass(frozen=True, slots=True)
class Baseline:
    entries: tuple[Accepted, ...] = ()
    today: date = date.min

    def entry(self, one: Result) -> Accepted | None:
        """The acceptance of this finding, unless its day is over."""
        return next((entry for entry in self.entries if entry.covers(one) and entry.until >= self.today), None)

    def remarks(self, results: tuple[Result, ...]) -> list[str]:
        """What a person should change in the file."""
        found = []
        for entry in self.entries:
            if not any(entry.covers(one) for one in results):
                found.append(f"{entry.rule} {entry.object} was not found: remove it from the baseline")
            elif entry.until < self.today:
                found.append(f"{entry.rule} {entry.object} was accepted until {entry.until}, and counts again")
        return found


def load(path: Path, today: date) -> Baseline:
    """The file, checked: a wrong entry is refused, because it would accept nothing, or too much."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Misconfigured(f"the baseline {path} cannot be read: {error}") from error
    entries = document.pop("accept", [])
    if document or not isinstance(entries, list):
        raise Misconfigured(f"the baseline {path} has [[accept]] entries, and nothing else")
    return Baseline(
        tuple(_entry(entry, f"{path}, entry {number}", today) for number, entry in enumerate(entries, 1)), today
    )


def _entry(entry: Any, where: str, today: date) -> Accepted:
    if not isinstance(entry, dict) or set(entry) != FIELDS:
        raise Misconfigured(f"{where}: an entry has rule, object, reason and until")
    rule, named, reason, until = entry["rule"], entry["object"], entry["reason"], entry["until"]
    if rule not in TITLES:
        raise Misconfigured(f"{where}: there is no rule {rule!r}")
    if not isinstance(named, str) or not isinstance(reason, str) or not reason.strip():
        raise Misconfigured(f"{where}: object and reason are texts, and the reason is not empty")
    if type(until) is not date:
        raise Misconfigured(f"{where}: until is a day, written 2027-01-31 without quotes")
    if until - today > LONGEST:
        raise Misconfigured(f"{where}: until is more than {LONGEST.days} days ahead")
    return Accepted(rule, named, reason, until)
