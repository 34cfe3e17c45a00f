"""Look whether the key is there, then write it: two who look in the same millisecond both charge."""

BREAKS = {"Claim"}


def broken(shop):
    keys, provider = shop.keys(), shop.provider

    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        if keys.find(order_id) is not None:  # both come here before either has written
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
    keys, provider = shop.keys(), shop.provider

    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        if not keys.insert(order_id, amount):  # the write is the check
            return keys.replay(order_id, amount)
        try:
            receipt = provider.charge(amount, order=order_id).id
        except shop.declined:
            keys.delete(order_id)
            raise
        keys.answer(order_id, receipt)
        return receipt

    return charge
