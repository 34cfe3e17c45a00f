""" "No funds" is remembered as the answer: after the top-up it is still "no funds"."""

BREAKS = {"Memory"}


def broken(shop):
    keys, provider = shop.keys(), shop.provider

    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        if not keys.insert(order_id, amount):
            return keys.replay(order_id, amount)
        try:
            answer = provider.charge(amount, order=order_id).id
        except shop.declined:
            answer = "declined"
        keys.answer(order_id, answer)
        return answer

    return charge


def repaired(shop):
    @shop.guard().once(name="charge", key="order_id", ignore={"client_ts"})
    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        return shop.provider.charge(amount, order=order_id).id

    return charge
