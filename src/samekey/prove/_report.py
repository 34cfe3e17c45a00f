"""What was found: a finding per scenario and assumption, and the word for each of the four."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from html import escape
from typing import Any

ASSUMPTIONS = {
    "Claim": "claiming a key is checking that it is free",
    "Intent": "the same key carries the same intent",
    "Memory": "what a key remembers is safe to replay",
    "Boundary": "nothing behind the key is out of control",
}


class Standing(StrEnum):
    """Where an assumption, or one scenario of it, stands."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNKNOWN = "unknown"  # could not be tried, or not be told
    SKIPPED = "skipped"  # it does not apply: the user said so, or there is nothing to try it with


@dataclass(frozen=True, slots=True)
class Finding:
    """What one scenario says of one assumption, and what was seen."""

    scenario: str
    assumption: str
    standing: Standing
    evidence: str
    notes: tuple[str, ...] = ()
    story: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What the four assumptions are worth at this endpoint."""

    url: str
    findings: tuple[Finding, ...]
    counted_by: str
    requests: int

    def standing(self, assumption: str) -> Standing:
        """Broken if anything broke it; unknown while anything of it is; skipped if nothing of it was tried."""
        found = {finding.standing for finding in self.findings if finding.assumption == assumption}
        for word in (Standing.BROKEN, Standing.UNKNOWN, Standing.HOLDS):
            if word in found:
                return word
        return Standing.SKIPPED

    @property
    def broken(self) -> tuple[str, ...]:
        return tuple(name for name in ASSUMPTIONS if self.standing(name) is Standing.BROKEN)

    @property
    def holds(self) -> bool:
        """Whether all four do: an assumption of which everything was skipped was not tried."""
        return self.complete and all(self.standing(name) is Standing.HOLDS for name in ASSUMPTIONS)

    @property
    def complete(self) -> bool:
        """Whether everything was tried that the user did not skip."""
        return all(finding.standing is not Standing.UNKNOWN for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "holds": self.holds,
            "complete": self.complete,
            "counted_by": self.counted_by,
            "requests": self.requests,
            "assumptions": {name: self.standing(name).value for name in ASSUMPTIONS},
            "findings": [
                {
                    "scenario": finding.scenario,
                    "assumption": finding.assumption,
                    "standing": finding.standing.value,
                    "evidence": finding.evidence,
                    "notes": list(finding.notes),
                    "story": list(finding.story),
                }
                for finding in self.findings
            ],
        }

    def to_html(self) -> str:
        """One page that needs nothing else: no script, no font, no picture from elsewhere."""
        assumptions = "".join(
            f'<tr class="{self.standing(name)}"><th>{escape(name)}</th><td>{escape(says)}</td>'
            f"<td>{self.standing(name)}</td></tr>"
            for name, says in ASSUMPTIONS.items()
        )
        findings = "".join(map(_row, self.findings))
        return _PAGE.format(
            url=escape(self.url),
            requests=self.requests,
            counted_by=escape(self.counted_by),
            assumptions=assumptions,
            findings=findings,
        )


def _row(finding: Finding) -> str:
    notes = "".join(f"<p>{escape(note)}</p>" for note in finding.notes)
    steps = "".join(f"<li>{escape(step)}</li>" for step in finding.story)
    story = f"<details><summary>steps</summary><ol>{steps}</ol></details>" if steps else ""
    return (
        f'<tr class="{finding.standing}"><td>{escape(finding.assumption)}</td><td>{escape(finding.scenario)}</td>'
        f"<td>{finding.standing}</td><td>{escape(finding.evidence)}{notes}{story}</td></tr>\n"
    )


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>samekey prove: {url}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; width: 100%; margin: 1.5rem 0; }}
th, td {{ text-align: left; vertical-align: top; padding: .4rem .8rem; border-bottom: 1px solid #ccc; }}
.holds td:nth-child(3) {{ color: #060; }} .broken td:nth-child(3) {{ color: #b00; font-weight: bold; }}
.unknown td:nth-child(3) {{ color: #850; }} .skipped td {{ color: #666; }}
p {{ margin: .2rem 0; color: #555; }}
</style>
<h1>The four assumptions at {url}</h1>
<table>{assumptions}</table>
<table><thead><tr><th>assumption</th><th>scenario</th><th></th><th>evidence</th></tr></thead>
<tbody>
{findings}</tbody></table>
<p>{requests} requests; effects counted by {counted_by}. Made by samekey prove.</p>
</html>
"""
