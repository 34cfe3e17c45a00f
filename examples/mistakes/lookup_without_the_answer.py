"""The lookup asks whether it happened, and not with which receipt: the next caller gets none."""

from samekey import Absent, Asks, Happened, current

BREAKS = {"Claim", "Boundary"}


def broken(shop):
    return charging(shop, lambda found: Happened())


def repaired(shop):
    return charging(shop, lambda found: Happened(found.id))


def charging(shop, happened):
    def find(record):
        found = shop.provider.find(record.provider_key())
        return happened(found) if found else Absent()

    @shop.guard().once(name="charge", key="order_id", ignore={"client_ts"}, boundary=Asks(find))
    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        return shop.provider.charge(amount, order=order_id, reference=current().provider_key()).id

    return charge
