"""The customer is the key: the second honest order is taken for a repetition of the first."""

BREAKS = {"Intent"}
PAYLOAD = {"customer": "ann", "order_id": "o", "amount": 200, "client_ts": 1}


def broken(shop):
    @shop.guard().once(name="charge", key="customer", ignore={"order_id", "client_ts"})
    def charge(customer: str, order_id: str, amount: int, client_ts: int = 0) -> str:
        return shop.provider.charge(amount, order=order_id).id

    return charge


def repaired(shop):
    @shop.guard().once(name="charge", key=("customer", "order_id"), ignore={"client_ts"})
    def charge(customer: str, order_id: str, amount: int, client_ts: int = 0) -> str:
        return shop.provider.charge(amount, order=order_id).id

    return charge
