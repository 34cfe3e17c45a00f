"""The scenarios of the store suite, one for each sentence of the store's contract."""

from samekey.testing._store_scenarios import agreement, claims, crowds, holding, keeping, operating, processes, settling
from samekey.testing._store_scenarios.scene import PROCESS_SCENARIOS, SCENARIOS, Scenario, Scene, Steps

__all__ = [
    "PROCESS_SCENARIOS",
    "SCENARIOS",
    "Scenario",
    "Scene",
    "Steps",
    "agreement",
    "claims",
    "crowds",
    "holding",
    "keeping",
    "operating",
    "processes",
    "settling",
]
