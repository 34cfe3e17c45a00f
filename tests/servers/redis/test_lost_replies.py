"""Lost replies and scripts that the server does not know: each command is carried out once."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from samekey import Guard
from samekey.core.commands import Ask, Free, Open, Read, Redact, Renew, Settle, StoreCommand
from samekey.core.key import make_key
from samekey.core.record import Record
from samekey.core.states import Role
from samekey.stores.redis import AsyncRedisStore, RedisStore
from tests.servers.proxy import FaultProxy
from tests.servers.redis.helpers import A, counted, every_command


@pytest.mark.parametrize("cuts", [1, 3])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_repeated_command_recognises_its_own_write(server, store, colour, cuts):
    """The server carried it out and the reply was lost. Sent again it is not done twice, and is known as our own."""

    async def repeated(command: StoreCommand) -> Record | None:
        ours = AsyncRedisStore(f"redis://127.0.0.1:{proxy.port}")
        try:
            await ours.carry_out(Read(make_key("own", "warm")))
            proxy.lose_replies(cuts)
            return await ours.carry_out(command)  # type: ignore[no-any-return]
        finally:
            await ours.close()

    with FaultProxy(server.port) as proxy:
        through = RedisStore(f"redis://127.0.0.1:{proxy.port}")
        for command, before in every_command(store):
            audits = len(store.audit(1000))
            if colour == "sync":
                through.carry_out(Read(make_key("own", "warm")))
                proxy.lose_replies(cuts)
                after = through.carry_out(command)
            else:
                after = asyncio.run(repeated(command))

            assert proxy.to_lose == 0
            if isinstance(command, Free):
                assert after is None
            elif before is None:
                assert (after.version, after.attempt) == (1, A) if isinstance(command, Open) else after is not None
            else:
                once = 2 if isinstance(command, (Renew, Ask)) else 1  # these say the same again
                assert before.version < after.version <= before.version + once + (cuts - 1) * (once - 1)
                assert len(after.moves) <= len(before.moves) + 1
            if isinstance(command, (Redact, Free)) or (isinstance(command, Settle) and command.role is Role.OPERATOR):
                assert len(store.audit(1000)) == audits + 1
        through.close()


def test_a_lost_claim_runs_its_effect_once(server):
    """Through the guard, with every second reply lost: one effect for each key, and one answer."""
    effects: list[int] = []
    with FaultProxy(server.port) as proxy, Guard(f"redis://127.0.0.1:{proxy.port}") as guard:
        guard.run("own", lambda: None, key=uuid4().hex, payload=1)
        for number in range(10):
            key = uuid4().hex
            proxy.lose_replies(1)
            first = guard.run("own", lambda: counted(effects), key=key, payload=1)
            again = guard.run("own", lambda: counted(effects), key=key, payload=1)

            assert (first.result, first.replayed) == (number + 1, False)
            assert (again.result, again.replayed) == (number + 1, True)


def test_scripts_that_are_gone_are_sent_again(server, store):
    """SCRIPT FLUSH between any two commands costs one more round trip."""
    for command, _ in every_command(store):
        server.call("SCRIPT", "FLUSH")
        store.carry_out(command)

    assert server.call("SCRIPT", "EXISTS", "0" * 40) == [0]
