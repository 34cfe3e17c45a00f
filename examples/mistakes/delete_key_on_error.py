"""An error frees the key: but a timeout is an error too, and the charge has landed."""

BREAKS = {"Boundary"}


def broken(shop):
    keys, provider = shop.keys(), shop.provider

    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        if not keys.insert(order_id, amount):
            return keys.replay(order_id, amount)
        try:
            receipt = provider.charge(amount, order=order_id).id
        except Exception:  # whatever it was, let the client try again
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
        except shop.declined:  # only what is known not to have happened
            keys.delete(order_id)
            raise
        keys.answer(order_id, receipt)
        return receipt

    return charge
