"""The suites on variants: a dozen of its scenarios in `make test`, all of them in `make proof`.

Every store passes the whole suite once in each colour. A second PostgreSQL major, PgBouncer, trio, a store without
fsync and the like are variants (`@pytest.mark.variant`, on a class or on a parameter): they run the same code of ours
on another server, loop or clock. The dozen has one scenario for each way in which those could differ. A scenario that
is named on the command line runs on every variant.
"""

from __future__ import annotations

import os

import pytest

FULL = os.environ.get("SAMEKEY_BUDGET") == "full"
DOZEN = frozenset(
    f"test_{scenario}"
    for scenario in (
        "random_commands_agree_with_the_register",  # every rule, in some order
        "every_claim_survives",  # types and encodings
        "every_result_survives",
        "take_looks_at_the_lease_as_it_is_now",  # the clock
        "the_store_counts_the_lease_down",
        "batch_keeps_a_failure_to_itself",  # transactions and pipelines
        "wait_is_woken_when_the_holder_settles",  # notifications, timers, event loops
        "wait_does_not_return_early",
        "a_crowd_that_opens_has_one_holder",  # isolation
        "a_late_holder_and_a_taker_never_both_win",
        "list_pages_without_gaps_or_repeats",  # indexes and plans
        "processes_that_race_have_one_holder_for_each_key",
        # of the suite for message adapters, one for each thing that a broker does differently
        "first_run",
        "duplicate_while_running_comes_later",  # a message that comes later
        "not_done_backs_off",  # counted tries
        "kill_before_settle",  # redelivery
        "kill_before_ack",
        "opaque_parks",
        "store_down_at_settle_not_acked",  # no answer
        "lost_lease_says_nothing",  # timers
        "shutdown_gives_back",
        "shutdown_past_grace",
    )
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the other scenarios of variants, or with the full budget mark all of them for `make proof`."""
    variants = [item for item in items if item.get_closest_marker("variant") is not None]
    others = [item for item in variants if (getattr(item, "originalname", None) or item.name) not in DOZEN]
    if FULL:
        for item in variants:
            item.add_marker(pytest.mark.proof)
    elif others and not any("::" in argument for argument in config.args):
        left_out = {*others}
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=others)
