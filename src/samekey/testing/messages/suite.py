"""The suite for message adapters: what every consumer promises, as tests to inherit.

    class TestMyBroker(MessageAdapterSuite):
        def make_broker(self):
            return MyBroker(...)          # a `Broker` of samekey.testing.messages

Each test is one scenario on a real worker process. Effects are counted in a ledger outside of the guard.
"""

from __future__ import annotations

from samekey.testing.messages.delivering import Delivering
from samekey.testing.messages.trouble import Trouble


class MessageAdapterSuite(Delivering, Trouble):
    """Inherit from it and give `make_broker`."""
