"""A claim that ends by itself: the order of a caller that was slow, or died after the charge, is charged again."""

BREAKS = {"Claim", "Boundary"}


def broken(shop):
    keys, provider = shop.keys(), shop.provider

    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        row = keys.find(order_id)
        if row is not None and row.answer is None and row.until <= shop.clock():
            keys.delete(order_id)  # half a minute is over, so the holder is taken for dead
        if not keys.insert(order_id, amount, until=shop.clock() + 30):
            return keys.replay(order_id, amount)
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
