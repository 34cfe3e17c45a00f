"""A connection that breaks is called "not done": it broke on the way back, and the charge has landed."""

from samekey import NotDone

BREAKS = {"Boundary"}


def broken(shop):
    @shop.guard().once(name="charge", key="order_id", ignore={"client_ts"})
    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        try:
            return shop.provider.charge(amount, order=order_id).id
        except ConnectionError as error:
            raise NotDone("no connection") from error

    return charge


def repaired(shop):
    @shop.guard().once(name="charge", key="order_id", ignore={"client_ts"})
    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        return shop.provider.charge(amount, order=order_id).id

    return charge
