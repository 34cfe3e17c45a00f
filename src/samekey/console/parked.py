"""The Messages page from the store alone: messages that handlers parked. Brokers need a source of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from samekey.console.sources import MessageSource, ParkedMessage
from samekey.core.errors import Misconfigured, SamekeyError
from samekey.core.key import make_key
from samekey.core.parking import Parked, ParkedQuery
from samekey.core.ports import AsyncStore

PARKED_MAX = 1000  # that are counted
IN_DOUBT = "in doubt"


class StoreMessages:
    """What a store keeps about messages; for one tenant, or for all."""

    def __init__(self, store: AsyncStore, tenant: str | None = None) -> None:
        self._store, self._tenant = store, tenant

    async def any(self) -> bool:
        return bool(await self._store.parked(self._query(1)))

    async def sources(self) -> Sequence[MessageSource]:
        parked = await self._store.parked(self._query(PARKED_MAX))
        numbers = Counter((one.destination, one.operation) for one in parked)
        return [
            MessageSource(place, operation, 0, 0, 0, number, None, None, "the console does not reach the broker")
            for (place, operation), number in sorted(numbers.items())
        ]

    async def parked(self, *, limit: int) -> Sequence[ParkedMessage]:
        return [_shown(one) for one in await self._store.parked(self._query(limit))]

    async def redeliver(self, id: str, *, who: str, why: str) -> str:
        raise Misconfigured("this console does not reach the broker: run samekey redeliver")

    def _query(self, limit: int) -> ParkedQuery:
        return ParkedQuery(waiting=True, tenant=self._tenant, limit=limit)


def _shown(one: Parked) -> ParkedMessage:
    try:
        digest = make_key(one.operation, one.key, one.tenant).digest.hex() if one.key else ""
    except SamekeyError:  # no record can have such a key
        digest = ""
    return ParkedMessage(
        id=one.id,
        source=one.destination,
        key=one.key or one.id,
        at=one.at,
        why=f"{one.kind}: {one.reason}",
        digest=digest,
        in_doubt=one.kind == IN_DOUBT,
    )
