"""The provider does not have the charge yet, so it is sent again: then both requests arrive."""

from samekey import Absent, Asks, Declined, Happened, current

BREAKS = {"Claim", "Boundary"}


def broken(shop):
    def find(record):
        found = shop.provider.find(record.provider_key())
        return Happened(found.id) if found else Declined(reason="not on the books")

    return charging(shop, Asks(find))


def repaired(shop):
    def find(record):
        found = shop.provider.find(record.provider_key())
        return Happened(found.id) if found else Absent()  # not on the books *yet*: in doubt until a person knows

    return charging(shop, Asks(find))


def charging(shop, boundary):
    @shop.guard().once(name="charge", key="order_id", ignore={"client_ts"}, boundary=boundary)
    def charge(order_id: str, amount: int, client_ts: int = 0) -> str:
        return shop.provider.charge(amount, order=order_id, reference=current().provider_key()).id

    return charge
