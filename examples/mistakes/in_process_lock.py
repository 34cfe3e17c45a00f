"""A lock around check and insert: it holds for the threads of one process, and there are two."""

import threading

BREAKS = {"Claim"}


def broken(shop):
    keys, provider, lock = shop.keys(), shop.provider, threading.Lock()

    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        with lock:
            if keys.find(order_id) is not None:
                return keys.replay(order_id, amount)
            keys.insert(order_id, amount)
        try:
            receipt = provider.charge(amount, order=order_id).id
        except shop.declined:
            keys.delete(order_id)
            raise
        keys.answer(order_id, receipt)
        return receipt

    return charge


def repaired(shop):
    @shop.guard().once(name="charge", key="order_id", ignore={"client_ts"})
    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        return shop.provider.charge(amount, order=order_id).id

    return charge
