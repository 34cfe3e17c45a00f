"""The web console: see what samekey guards, and decide what it cannot know.

`console_app(store, access)` is an ASGI application; `samekey console` serves it.
"""

from __future__ import annotations

from samekey.console.access import Access, Role
from samekey.console.app import console_app
from samekey.console.sources import (
    DeadLetter,
    IntakeGate,
    IntakeSource,
    IntakeStatus,
    MessageSource,
    MessagesSource,
    ParkedMessage,
    ReconciledDay,
    ReconcileSource,
    Sources,
)

__all__ = [
    "Access",
    "DeadLetter",
    "IntakeGate",
    "IntakeSource",
    "IntakeStatus",
    "MessageSource",
    "MessagesSource",
    "ParkedMessage",
    "ReconcileSource",
    "ReconciledDay",
    "Role",
    "Sources",
    "console_app",
]
