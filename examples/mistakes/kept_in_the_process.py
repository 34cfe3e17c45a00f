"""Keys in a dict: the next process, and this one after a restart, does not have them."""

import threading

BREAKS = {"Claim", "Intent", "Memory", "Boundary"}


def broken(shop):
    answers, lock, provider = {}, threading.Lock(), shop.provider

    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        with lock:
            if order_id not in answers:
                answers[order_id] = provider.charge(amount, order=order_id).id
            return answers[order_id]

    return charge


def repaired(shop):
    @shop.guard().once(name="charge", key="order_id", ignore={"client_ts"})
    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        return shop.provider.charge(amount, order=order_id).id

    return charge
