"""What the store writes: one string per key, its retention, its token, and its checks."""

from __future__ import annotations

from uuid import uuid4

import pytest

from samekey import Guard
from samekey.core.commands import Read, Renew, Take
from samekey.core.errors import RecordUnreadable
from samekey.core.inquiry import LATE_SECONDS
from samekey.core.states import Role, State
from samekey.stores.redis import _records
from tests.servers.redis.helpers import LEASE, RETAIN, B, opening, raw_key, settling, there
from tests.servers.redis.topologies import until


def test_only_a_settle_lets_redis_forget(server, store):
    """A held or doubted record has no TTL; a settled one has its retention, and a retaken one has none again."""
    held = store.carry_out(opening())
    assert server.call("PTTL", raw_key(held)) == -1
    released = there(store.carry_out(settling(held, State.RELEASED)))
    assert 0 < server.call("PTTL", raw_key(held)) <= RETAIN * 1000
    taken = there(store.carry_out(Take(released, B, "opaque", LEASE, False)))
    assert server.call("PTTL", raw_key(held)) == -1
    doubt = there(store.carry_out(settling(taken, State.IN_DOUBT, by=B)))
    assert server.call("PTTL", raw_key(held)) == -1
    store.carry_out(settling(doubt, State.COMPLETED, Role.LOOKUP))
    assert (
        0 < server.call("PTTL", raw_key(held)) <= LATE_SECONDS * 1000
    )  # it turned out late: kept until that is delivered


def test_long_field_names_of_a_client_are_not_kept_in_memory(server):
    """64 of them in each request: thousands of such requests would stay in the memory of this process."""
    remembered = _records._intent_line, _records._intent_of
    for one in remembered:
        one.cache_clear()
    with Guard(server.url()) as guard:
        for key in (uuid4().hex, uuid4().hex):
            payload = {f"{key}{number}" + "\N{GRINNING FACE}" * 80: number for number in range(64)}
            answers = [guard.run("own", lambda: "done", key=key, payload=payload) for _ in range(2)]
            assert [answer.replayed for answer in answers] == [False, True]
            record = guard.peek("own", key)
            assert record is not None
            assert dict(record.fields).keys() == payload.keys()

    assert [one.cache_info().currsize for one in remembered] == [0, 0]


def test_a_settled_key_is_one_string_and_nothing_else(server, store):
    """A settled key is one string; the set of unsettled keys no longer knows it."""
    held = store.carry_out(opening())
    index = raw_key(held).rpartition(":")[0] + ":unsettled"
    assert held.key.digest.hex() in server.call("ZRANGE", index, 0, -1)

    store.carry_out(settling(held))

    assert server.call("TYPE", raw_key(held)) == "string"
    assert held.key.digest.hex() not in server.call("ZRANGE", index, 0, -1)


@pytest.mark.parametrize("value", ["", "hello", "k2" + "0" * 200, "k1" + "x" * 300])
def test_a_foreign_value_is_refused_loudly(server, store, value):
    """A value that another program wrote at our key is not a record, and is never overwritten."""
    command = opening()
    server.call("SET", raw_key(command), value)

    with pytest.raises(RecordUnreadable):
        store.carry_out(command)

    assert server.call("GET", raw_key(command)) == value
    server.call("DEL", raw_key(command))


def test_a_token_grows_although_the_clock_was_set_back(server, store):
    """A token from the future, as after a clock that ran ahead: the next holder's is higher all the same."""
    held = store.carry_out(opening())
    ahead = held.token + 10**12
    value = server.call("GET", raw_key(held))
    server.call("SET", raw_key(held), f"{value[:12]}{ahead:016d}{value[28:]}")
    seen = there(store.carry_out(Read(held.key)))
    released = there(store.carry_out(settling(seen, State.RELEASED)))

    taken = there(store.carry_out(Take(released, B, "opaque", LEASE, False)))

    assert taken.token == ahead + 1
    assert taken.moves[-1].token == ahead + 1


def test_a_lease_that_ended_on_the_way_is_judged_by_the_server(server, store):
    """The client's guess of the time decides nothing: the server says whether the lease lives."""
    held = store.carry_out(opening(lease=0.05))
    known = store._process.known
    known._clock_offset -= 3600.0  # an hour too early: by this estimate the lease is live
    until(lambda: not there(store.carry_out(Read(held.key))).lease_live)
    known._clock_offset -= 3600.0

    renewed = there(store.carry_out(Renew(held, LEASE)))

    assert (renewed.version, renewed.lease_live) == (held.version, False)
    known._clock_offset += 7200.0 * 2  # far ahead: by this guess a live one is dead
    live = store.carry_out(opening())
    known._clock_offset += 7200.0 * 2
    doubted = there(store.carry_out(settling(live, State.IN_DOUBT, Role.PASSER_BY, B)))
    assert doubted.state is State.STARTED
