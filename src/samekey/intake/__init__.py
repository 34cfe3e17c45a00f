"""The intake: a front door that absorbs bursts of triggers and never gives one key two run ids.

Reading order: ids (the run id is a function of the key), runs (what a run is), commands (what the steps ask for),
pipeline (the decisions), claim, gate, buffer, rows (who carries the commands out), drainer, intake (the API), app.
"""

from samekey.intake.intake import AsyncIntake, Intake
from samekey.intake.pipeline import Triggered
from samekey.intake.runs import Problem, Run, RunState
from samekey.intake.settings import Settings, Task

__all__ = ["AsyncIntake", "Intake", "Problem", "Run", "RunState", "Settings", "Task", "Triggered"]
