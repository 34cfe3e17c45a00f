"""What every scenario of the suite starts from."""

from __future__ import annotations

from samekey.messages import Rules
from samekey.testing._asserts import require_asserts
from samekey.testing.messages.lab import Broker, Lab

SHORT_LEASE = 2.0  # a dead holder blocks its key for so long
QUICK = Rules(backoff=0.1, backoff_max=0.5, later_max=0.3)


class Scenarios:
    """Inherit from it and give `make_broker`."""

    lab: Lab

    def make_broker(self) -> Broker:
        """A broker with an empty queue for this test."""
        raise NotImplementedError("give make_broker()")

    def setup_method(self) -> None:
        require_asserts()

    def teardown_method(self) -> None:
        lab = self.__dict__.pop("lab", None)
        if lab is not None:
            lab.close()

    def open(self) -> Lab:
        lab = self.lab = Lab(self.make_broker())
        return lab
