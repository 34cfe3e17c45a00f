"""The client went away, so it is called "not done": but what it asked for was done by then."""

import asyncio

from samekey import NotDone

BREAKS = {"Boundary"}


def broken(shop):
    @shop.async_guard().once(name="charge", key="order_id", ignore={"client_ts"})
    async def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        try:
            return await charged(shop, order_id, amount)
        except asyncio.CancelledError:
            raise NotDone("the caller does not wait any more") from None

    return charge


def repaired(shop):
    @shop.async_guard().once(name="charge", key="order_id", ignore={"client_ts"})
    async def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        return await charged(shop, order_id, amount)

    return charge


async def charged(shop, order_id: str, amount: int) -> str:
    receipt = shop.provider.charge(amount, order=order_id)
    await asyncio.sleep(0)  # the answer comes over a network
    return receipt.id
