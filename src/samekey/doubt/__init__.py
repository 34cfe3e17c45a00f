"""The way out of a doubt: workers that look, provider packs, reconciliation, late truth."""

from samekey.doubt.late import LateTruth
from samekey.doubt.pace import SlowDown
from samekey.doubt.pack import OutcomeUnknown, Pack, load_pack
from samekey.doubt.worker import AsyncWorker, Tally, Worker

__all__ = ["AsyncWorker", "LateTruth", "OutcomeUnknown", "Pack", "SlowDown", "Tally", "Worker", "load_pack"]
