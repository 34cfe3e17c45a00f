"""Everything is compared, a timestamp too: an honest retry is called another request."""

BREAKS = {"Intent"}


def broken(shop):
    @shop.guard().once(name="charge", key="order_id")
    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        return shop.provider.charge(amount, order=order_id).id

    return charge


def repaired(shop):
    @shop.guard().once(name="charge", key="order_id", ignore={"client_ts"})
    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        return shop.provider.charge(amount, order=order_id).id

    return charge
