"""An audit as JSON (a versioned schema) and as SARIF 2.1.0, which code hosts show beside a change."""

from __future__ import annotations

import hashlib
from typing import Any

from samekey.detect.audit import Audit, Result, Shown
from samekey.detect.baseline import Accepted, Baseline
from samekey.detect.confirm import How
from samekey.detect.dialect import SAMPLE
from samekey.detect.findings import Finding, Severity
from samekey.detect.rules import TITLES

SCHEMA = "samekey.audit/1"
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_object(audit: Audit, shown: Shown, baseline: Baseline) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "database": audit.database,
        "engine": audit.engine.value,
        "version": audit.version,
        "tables": audit.tables,
        "complete": not audit.incomplete,
        "incomplete": list(audit.incomplete),
        "findings": [_finding(one, shown, baseline) for one in audit.results],
    }


def _finding(one: Result, shown: Shown, baseline: Baseline) -> dict[str, Any]:
    found, accepted = one.finding, baseline.entry(one)
    return {
        "rule": found.rule,
        "title": TITLES[found.rule],
        "severity": one.severity.label,
        "confirmed": one.confirmed,
        "accepted": accepted and {"reason": accepted.reason, "until": accepted.until.isoformat()},
        "object": found.object,
        "table": found.table,
        "file": found.file or None,
        "line": found.line or None,
        "why": found.why,
        "confirm_sql": one.sql,
        "evidence": _evidence(one, shown),
        "fix_sql": list(found.fix),
    }


def _evidence(one: Result, shown: Shown) -> dict[str, Any] | None:
    evidence = one.evidence
    if evidence is None:
        return None
    return {
        "how": evidence.how.value,
        "groups": evidence.groups,
        "rows": evidence.rows,
        "one_key_of": SAMPLE if evidence.how is How.SAMPLED else 1,
        "reason": evidence.reason,
        "worst": [{"rows": rows, "key": [shown(value) for value in key]} for rows, key in evidence.worst],
    }


def as_sarif(audit: Audit, version: str, baseline: Baseline) -> dict[str, Any]:
    used = {one.finding.rule for one in audit.results}
    return {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "samekey db audit",
                        "version": version,
                        "rules": [{"id": rule, "shortDescription": {"text": TITLES[rule]}} for rule in sorted(used)],
                    }
                },
                "invocations": [
                    {
                        "executionSuccessful": not audit.incomplete,
                        "toolExecutionNotifications": [
                            {"level": "error", "message": {"text": reason}} for reason in audit.incomplete
                        ],
                    }
                ],
                "results": [_sarif_result(one, baseline.entry(one)) for one in audit.results],
            }
        ],
    }


def _location(found: Finding) -> dict[str, Any]:
    """The object in the database; and the line of a file, where the finding has one."""
    place: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": found.object, "kind": "resource"}]}
    if found.file:
        place["physicalLocation"] = {
            "artifactLocation": {"uri": found.file},
            "region": {"startLine": max(found.line, 1)},
        }
    return place


def _sarif_result(one: Result, accepted: Accepted | None) -> dict[str, Any]:
    found = one.finding
    level = {Severity.LOW: "note", Severity.MEDIUM: "warning"}.get(one.severity, "error")
    count = f" Rows too many: {one.evidence.rows}." if one.confirmed and one.evidence else ""
    return {
        "ruleId": found.rule,
        "level": level,
        "message": {"text": f"{found.object}: {found.why}.{count}"},
        "locations": [_location(found)],
        "suppressions": [{"kind": "external", "justification": accepted.reason}] if accepted else [],
        "partialFingerprints": {
            "samekey/1": hashlib.sha256(f"{found.rule} {found.object} {found.why}".encode()).hexdigest()[:32]
        },
        "properties": {"confirmed": one.confirmed, "severity": one.severity.label},
    }
