"""The provider dedups, so there is one charge; but each caller gets a confirmation number of its own."""

from uuid import uuid4

BREAKS = {"Claim"}


def broken(shop):
    keys, provider = shop.keys(), shop.provider

    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        if keys.find(order_id) is not None:
            return keys.replay(order_id, amount)
        receipt = provider.charge(amount, order=order_id, key=order_id).id
        answer = f"{receipt}, confirmation {uuid4().hex[:6]}"
        keys.insert(order_id, amount, answer)  # another caller may have been first
        return answer

    return charge


def repaired(shop):
    keys, provider = shop.keys(), shop.provider

    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        if keys.find(order_id) is not None:
            return keys.replay(order_id, amount)
        receipt = provider.charge(amount, order=order_id, key=order_id).id
        keys.insert(order_id, amount, f"{receipt}, confirmation {uuid4().hex[:6]}")
        return keys.replay(order_id, amount)  # what the record says, never our own copy

    return charge
