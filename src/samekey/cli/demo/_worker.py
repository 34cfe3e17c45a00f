"""One worker process: takes orders from the parent, charges each one its column's way, and calls again
when no answer came - as every client, queue and impatient customer does."""

from __future__ import annotations

import time
from functools import partial

from samekey import InDoubt, NotDone, SamekeyError
from samekey.cli.demo._columns import WAYS, Charge, StillRunning, Tools
from samekey.cli.demo._plan import Order, plan
from samekey.cli.demo._provider import KEYS_TIMEOUT_SECONDS, Till
from samekey.cli.demo._service import Message, Remote, inbox, tell

TRIES_MAX = 40  # about 15 s: longer than the worst moment of a busy machine
TRIES_OPAQUE_MAX = 5  # the doubt stays: enough tries to see that it is not charged again
PAUSE_SECONDS, PAUSE_MAX_SECONDS = 0.05, 0.4

Trouble = (OSError, SamekeyError, NotDone, StillRunning)  # what a client meets by saying it again


def main() -> None:
    messages = inbox()
    part = messages.get()
    orders = {order.id: order for order in plan(seed=part["seed"], orders=part["orders"])}
    charge = WAYS[part["column"]](tools(part))
    tell(event="ready")
    while True:
        order = orders[messages.get()["order"]]
        tell(event=charge_until_answered(charge, order), order=order.id)


def charge_until_answered(charge: Charge, order: Order) -> str:
    """How it ended for the client: done, in doubt, or gave up."""
    ended, pause = "gave up", PAUSE_SECONDS
    for _ in range(TRIES_OPAQUE_MAX if order.opaque else TRIES_MAX):
        try:
            charge(order)
            return "done"
        except Trouble as trouble:
            tell(event="trouble", order=order.id, what=type(trouble).__name__)
            ended = "in doubt" if isinstance(trouble, InDoubt) else "gave up"
        time.sleep(pause)
        pause = min(pause * 2, PAUSE_MAX_SECONDS)
    return ended


def tools(part: Message) -> Tools:
    remote = Remote(port=part["provider"], secret=part["secret"])
    keys = partial(remote.call, timeout_seconds=KEYS_TIMEOUT_SECONDS)
    return Tools(till=Till(remote, part["column"]), keys=keys, store=part["store"])


if __name__ == "__main__":
    main()
