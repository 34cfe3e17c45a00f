"""The phases of a guarded call in a transaction: every move that is allowed, and every other one refused."""

from __future__ import annotations

import pytest

from samekey.core.transaction import CLAIM_SET, MOVE, NEXT, OFF_CONNECTION, OVER, OWN_OPEN, Phase

ALLOWED = """
away        arrived
arrived     begun open away
begun       open undone stuck
open        marked committing done undone stuck
marked      open waiting running committing done undone stuck
waiting     running away undone stuck
running     ran undone stuck
ran         settled done undone stuck
settled     open committing done undone stuck
committing  done undone stuck
done
undone      arrived
stuck       arrived
"""
TABLE = {Phase(now): {Phase(to) for to in moves} for now, *moves in map(str.split, ALLOWED.strip().splitlines())}


@pytest.mark.parametrize("now", Phase)
def test_a_call_makes_the_moves_of_the_table_and_no_other(now: Phase):
    for to in Phase:
        if to in TABLE[now]:
            assert MOVE[now, to] is to
        else:
            with pytest.raises(KeyError):
                MOVE[now, to]


def test_the_table_has_every_phase():
    assert set(TABLE) == set(NEXT) == set(Phase)


def test_every_phase_on_a_connection_can_leave_it():
    """An interrupt may come in any phase: from each there is one move off the connection."""
    assert all(NEXT[now] & OFF_CONNECTION for now in Phase if now not in OFF_CONNECTION)


def test_what_may_have_to_be_rolled_back_can_be():
    assert all({Phase.UNDONE, Phase.STUCK} <= NEXT[now] for now in OWN_OPEN)
    assert CLAIM_SET < OWN_OPEN
    assert OVER < OFF_CONNECTION


def test_the_effect_runs_after_its_savepoint_only():
    assert [now for now in Phase if Phase.RUNNING in NEXT[now]] == [Phase.MARKED, Phase.WAITING]
    assert [now for now in Phase if Phase.WAITING in NEXT[now]] == [Phase.MARKED]
