"""What was found: a finding per scenario and assumption, and the standing of each of the four assumptions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from html import escape
from importlib import resources
from string import Template
from typing import Any

ASSUMPTIONS = {
    "Claim": "claiming a key is checking that it is free",
    "Intent": "the same key carries the same intent",
    "Memory": "what a key remembers is safe to replay",
    "Boundary": "no part of the effect is out of control",
}


class Standing(StrEnum):
    """The result of an assumption, or of one scenario of it."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNKNOWN = "unknown"  # could not be tried, or not be judged
    SKIPPED = "skipped"  # the user skipped it, or there is nothing to try it with


@dataclass(frozen=True, slots=True)
class Finding:
    """What one scenario found about one assumption, with its steps."""

    scenario: str
    assumption: str
    standing: Standing
    evidence: str
    notes: tuple[str, ...] = ()
    story: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Which of the four assumptions hold at this endpoint."""

    url: str
    findings: tuple[Finding, ...]
    counted_by: str
    requests: int
    examined_at: str = ""  # the date and time in UTC
    version: str = ""  # of samekey

    def standing(self, assumption: str) -> Standing:
        """Broken if anything broke it; unknown while anything of it is; skipped if nothing of it was tried."""
        found = {finding.standing for finding in self.findings if finding.assumption == assumption}
        for standing in (Standing.BROKEN, Standing.UNKNOWN, Standing.HOLDS):
            if standing in found:
                return standing
        return Standing.SKIPPED

    @property
    def broken(self) -> tuple[str, ...]:
        return tuple(name for name in ASSUMPTIONS if self.standing(name) is Standing.BROKEN)

    @property
    def holds(self) -> bool:
        """Whether all four hold: an assumption of which every scenario was skipped was not tried."""
        return self.complete and all(self.standing(name) is Standing.HOLDS for name in ASSUMPTIONS)

    @property
    def complete(self) -> bool:
        """Whether everything was tried that the user did not skip."""
        return all(finding.standing is not Standing.UNKNOWN for finding in self.findings)

    @property
    def verdict(self) -> str:
        """The whole report in one sentence."""
        if self.broken:
            return f"Broken: {', '.join(self.broken)}"
        untried = [name for name in ASSUMPTIONS if self.standing(name) is not Standing.HOLDS]
        if not self.complete:
            return f"Nothing is known to be broken. Not everything could be tried: {', '.join(untried)}"
        return "All four assumptions hold" if not untried else f"What was tried holds. Skipped: {', '.join(untried)}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "holds": self.holds,
            "complete": self.complete,
            "assumptions": {name: self.standing(name).value for name in ASSUMPTIONS},
            **asdict(self),
        }

    def to_html(self) -> str:
        """One page that needs nothing else: no script, no font, no picture from elsewhere."""
        assumptions = "".join(
            f'<tr class="{self.standing(name)}"><th scope="row">{escape(name)}</th>'
            f'<td>{escape(says)}</td><td class="standing">{self.standing(name)}</td></tr>\n'
            for name, says in ASSUMPTIONS.items()
        )
        page = resources.files("samekey.prove").joinpath("page.html").read_text(encoding="utf-8")
        return Template(page).substitute(
            url=escape(self.url),
            verdict=escape(self.verdict),
            colour="broken" if self.broken else "holds" if self.holds else "unknown",
            examined_at=escape(self.examined_at),
            version=escape(self.version),
            requests=self.requests,
            counted_by=escape(self.counted_by),
            assumptions=assumptions,
            findings="".join(map(_row, self.findings)),
        )


def _row(finding: Finding) -> str:
    notes = "".join(f"<p>{escape(note)}</p>" for note in finding.notes)
    steps = "".join(f"<li>{escape(step)}</li>" for step in finding.story)
    story = f"<details><summary>steps</summary><ol>{steps}</ol></details>" if steps else ""
    return (
        f'<tr class="{finding.standing}"><td data-name="assumption">{escape(finding.assumption)}</td>'
        f'<td data-name="scenario">{escape(finding.scenario)}</td>'
        f'<td data-name="standing" class="standing">{finding.standing}</td>'
        f"<td>{escape(finding.evidence)}{notes}{story}</td></tr>\n"
    )
