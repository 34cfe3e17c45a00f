"""A repetition is noticed and gets no answer: a caller that lost the first answer never gets one."""

BREAKS = {"Memory", "Boundary"}


def broken(shop):
    keys, provider = shop.keys(), shop.provider

    def charge(order_id: str, amount: int, client_ts: int = 0) -> str | None:
        if not keys.insert(order_id, amount):
            keys.check(order_id, amount)
            return None  # a duplicate; also when the first one died before it charged
        try:
            return provider.charge(amount, order=order_id).id
        except shop.declined:
            keys.delete(order_id)
            raise

    return charge


def repaired(shop):
    @shop.guard().once(name="charge", key="order_id", ignore={"client_ts"})
    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        return shop.provider.charge(amount, order=order_id).id

    return charge
