"""A shop in 60 lines: whatever happens on the way, an order is charged once. Copy it, put in your own provider.
`python examples/shop.py` prints what the arrows say."""

import tempfile
from typing import Any

from samekey import Absent, Asks, Guard, Happened, Record, Refused


class Provider:
    """Charges as often as it is told to - but it can be asked what is on its books."""

    def __init__(self) -> None:
        self.books: dict[str, int] = {}

    def charge(self, order_id: str, amount: int, card: str) -> dict[str, Any]:
        if card == "stolen":
            raise Refused("the card is stolen")  # final: say so, and the key keeps it
        self.books[order_id] = self.books.get(order_id, 0) + amount
        if card == "slow":
            raise TimeoutError("no answer")  # charged all the same; never call this "not done"
        return {"order": order_id, "paid": self.books[order_id]}


provider = Provider()
guard = Guard(f"sqlite:///{tempfile.mkdtemp()}/shop.db")  # yours: sqlite:///shop.db


def find_charge(record: Record) -> Happened | Absent:  # did it happen? Asked after a timeout or a crash
    paid = provider.books.get(record.key.text)
    return Absent() if paid is None else Happened({"order": record.key.text, "paid": paid})


@guard.once(name="charge", key="order_id", boundary=Asks(find_charge))
def charge(order_id: str, amount: int, card: str = "good") -> dict[str, Any]:
    return provider.charge(order_id, amount, card)


@guard.once(name="voucher", key="order_id")  # nobody can be asked: the boundary is Opaque, the default
def redeem_voucher(order_id: str, amount: int) -> dict[str, Any]:
    return provider.charge(order_id, amount, "slow")


def say(what: str, function: Any, *args: Any) -> None:
    try:
        print(f"{what}: {function(*args)}")
    except Exception as error:
        print(f"{what}: {type(error).__name__}: {error}")


say("first", charge, "o-1", 200)  # -> first: {'order': 'o-1', 'paid': 200}
say("replay", charge, "o-1", 200)  # -> replay: {'order': 'o-1', 'paid': 200}
say("reused", charge, "o-1", 500)  # -> reused: KeyReused: ... 'amount' differs
say("refused", charge, "o-2", 200, "stolen")  # -> refused: Refused: the card is stolen
say("refused", charge, "o-2", 200, "stolen")  # -> refused: Refused: the card is stolen
say("timeout", charge, "o-3", 300, "slow")  # -> timeout: TimeoutError: no answer
say("asked", charge, "o-3", 300, "slow")  # -> asked: {'order': 'o-3', 'paid': 300}
say("timeout", redeem_voucher, "o-4", 400)  # -> timeout: TimeoutError: no answer
say("in doubt", redeem_voucher, "o-4", 400)  # -> in doubt: InDoubt: ... samekey resolve voucher o-4
print("books:", provider.books)  # -> books: {'o-1': 200, 'o-3': 300, 'o-4': 400}
