"""Charge, then write the key down: by then two have charged, or one has died."""

BREAKS = {"Claim", "Boundary"}


def broken(shop):
    keys, provider = shop.keys(), shop.provider

    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        if keys.find(order_id) is not None:
            return keys.replay(order_id, amount)
        receipt = provider.charge(amount, order=order_id).id  # no other caller sees this attempt yet
        if not keys.insert(order_id, amount, receipt):
            return keys.replay(order_id, amount)
        return receipt

    return charge


def repaired(shop):
    @shop.guard().once(name="charge", key="order_id", ignore={"client_ts"})
    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        return shop.provider.charge(amount, order=order_id).id

    return charge
