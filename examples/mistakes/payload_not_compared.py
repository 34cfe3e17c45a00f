"""Only the key is compared: a caller that asks for 500 under it gets the answer that 200 were paid."""

BREAKS = {"Intent"}


def broken(shop):
    keys, provider = shop.keys(), shop.provider

    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        if not keys.insert(order_id, amount):
            return keys.replay(order_id, keys.find(order_id).intent)  # whatever was asked for
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
        if not keys.insert(order_id, amount):
            return keys.replay(order_id, amount)
        try:
            receipt = provider.charge(amount, order=order_id).id
        except shop.declined:
            keys.delete(order_id)
            raise
        keys.answer(order_id, receipt)
        return receipt

    return charge
