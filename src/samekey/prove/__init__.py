"""A black-box examiner: which of the four assumptions about a key hold at an HTTP endpoint, in whatever language?

    report = examine(Target(url="http://localhost:8000/charges", body=b'{"amount": 200}'),
                     probe=Probe(url="http://localhost:8000/charges/count"))
    report.broken           # ("Claim", "Boundary")

`_examine` has the order of the scenarios. They are in `_claims`, `_intents`, `_addresses` and `_memories`: generators
that yield the steps of `_steps` and open no socket. `_trial` holds the state of one scenario. `_client` carries out the
steps over sockets. `_report` is the result.
"""

from samekey.prove._client import Budget, NotYours, Probe, Unreachable, check_ours
from samekey.prove._examine import SCENARIOS, examine
from samekey.prove._report import ASSUMPTIONS, Finding, Report, Standing
from samekey.prove._steps import Target

__all__ = [
    "ASSUMPTIONS",
    "SCENARIOS",
    "Budget",
    "Finding",
    "NotYours",
    "Probe",
    "Report",
    "Standing",
    "Target",
    "Unreachable",
    "check_ours",
    "examine",
]
