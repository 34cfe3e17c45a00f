"""A black-box examiner: which of the four assumptions behind a key hold at an HTTP endpoint, whatever it is written in?

    report = examine(Target(url="http://localhost:8000/charges", body=b'{"amount": 200}'),
                     probe=Probe(url="http://localhost:8000/charges/count"))
    report.broken           # ("Claim", "Boundary")

`_steps` has what a scenario may ask for, `_claims`, `_intents` and `_memories` the scenarios (generators that open no
socket), `_trial` what they have in hand, `_client` the sockets. `_examine` the order.
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
