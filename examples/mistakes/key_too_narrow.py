"""The time is part of the key: a retry is never the same request."""

BREAKS = {"Intent"}


def broken(shop):
    @shop.guard().once(name="charge", key=("order_id", "client_ts"))
    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        return shop.provider.charge(amount, order=order_id).id

    return charge


def repaired(shop):
    @shop.guard().once(name="charge", key="order_id", ignore={"client_ts"})
    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        return shop.provider.charge(amount, order=order_id).id

    return charge
