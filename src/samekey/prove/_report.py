"""What was found: a finding per scenario and assumption, and the standing of each of the four assumptions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from html import escape
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
            "url": self.url,
            "verdict": self.verdict,
            "examined_at": self.examined_at,
            "version": self.version,
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
            f'<tr class="{self.standing(name)}"><th scope="row">{escape(name)}</th>'
            f'<td>{escape(says)}</td><td class="standing">{self.standing(name)}</td></tr>\n'
            for name, says in ASSUMPTIONS.items()
        )
        findings = "".join(map(_row, self.findings))
        return _PAGE.format(
            url=escape(self.url),
            verdict=escape(self.verdict),
            colour="broken" if self.broken else "holds" if self.holds else "unknown",
            examined_at=escape(self.examined_at),
            version=escape(self.version),
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
        f'<tr class="{finding.standing}"><td data-name="assumption">{escape(finding.assumption)}</td>'
        f'<td data-name="scenario">{escape(finding.scenario)}</td>'
        f'<td data-name="standing" class="standing">{finding.standing}</td>'
        f"<td>{escape(finding.evidence)}{notes}{story}</td></tr>\n"
    )


# Below 40rem (a phone) each row is a block: four columns side by side would need a screen of twice that width.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>samekey prove: {url}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 1rem auto; padding: 0 1rem;
  overflow-wrap: anywhere; }}
h1 {{ font-size: 1.4rem; }}
.verdict {{ font-size: 1.2rem; font-weight: bold; }}
table {{ border-collapse: collapse; width: 100%; margin: 1.5rem 0; }}
th, td {{ text-align: left; vertical-align: top; padding: .4rem .8rem; border-bottom: 1px solid #ccc; }}
th, td.standing {{ overflow-wrap: normal; }}
p.holds, .holds .standing {{ color: #060; }} p.broken, .broken .standing {{ color: #b00; font-weight: bold; }}
p.unknown, .unknown .standing {{ color: #850; }} .skipped td {{ color: #666; }}
td p, footer {{ margin: .2rem 0; color: #555; }}
@media (max-width: 40rem) {{
  thead {{ display: none; }}
  table, tbody, tr, th, td {{ display: block; }}
  tr {{ border-bottom: 1px solid #ccc; padding: .5rem 0; }}
  th, td {{ border: 0; padding: .1rem 0; }}
  td[data-name]::before {{ content: attr(data-name) ": "; color: #555; font-weight: normal; }}
}}
</style>
</head>
<body>
<h1>The four assumptions at {url}</h1>
<p class="verdict {colour}">{verdict}</p>
<p>Examined on {examined_at} by samekey {version}: {requests} requests; effects counted by {counted_by}.</p>
<table>
<tbody>
{assumptions}</tbody></table>
<table><thead><tr><th>assumption</th><th>scenario</th><th>standing</th><th>evidence</th></tr></thead>
<tbody>
{findings}</tbody></table>
<footer>Made by samekey prove.</footer>
</body>
</html>
"""
