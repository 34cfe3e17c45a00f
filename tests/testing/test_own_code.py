"""A handler is stopped in its own code, wherever that is installed; where there is none, nothing is said to hold."""

from __future__ import annotations

import functools
import os
import site as places
import subprocess
import venv
from pathlib import Path

import pytest

import samekey
from samekey import Guard
from samekey.testing import LedgerProvider, ManualClock, crash_everywhere, four_assumptions, lose_lease
from samekey.testing.handlers.own_code import OwnCode, installed

ORDER = {"order_id": "o", "amount": 1}

SHOP = """
from samekey.testing import LedgerProvider

provider, receipts = LedgerProvider(), {}

def careless(order_id, amount):
    return provider.charge(amount, order=order_id).id

def check_then_act(order_id, amount):
    if order_id not in receipts:
        receipts[order_id] = provider.charge(amount, order=order_id).id
    return receipts[order_id]
"""

TRIED = """
import shop.charges as charges
from samekey.testing import ManualClock, crash_everywhere, four_assumptions, lose_lease

through_the_test = lambda order_id, amount: charges.check_then_act(order_id, amount)
around = dict(key="order_id", provider=charges.provider)
order = {"order_id": "o", "amount": 1}
for tried in (
    lambda: crash_everywhere(charges.careless, order, **around),
    lambda: lose_lease(charges.careless, order, clock=ManualClock(), **around),
    lambda: four_assumptions(charges.check_then_act, payload=order, **around).check(),
    lambda: lose_lease(through_the_test, order, clock=ManualClock(), **around),
):
    try:
        print("passed", tried())
    except AssertionError as error:
        print("found" if "for one operation" in str(error) else error)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A Python of its own with a project in its site-packages, as `pip install .` leaves it there."""
    folder = tmp_path_factory.mktemp("tox")
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "shop").mkdir()
    (packages / "shop" / "__init__.py").touch()
    (packages / "shop" / "charges.py").write_text(SHOP)
    return folder, packages


def tried(folder: Path) -> list[str]:
    (folder / "tried.py").write_text(TRIED)
    environment = {**os.environ, "PYTHONPATH": str(Path(samekey.__file__).parents[1])}
    done = subprocess.run(
        [folder / "bin" / "python", "tried.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines()


def test_an_installed_handler_is_stopped_like_any_other(site):
    """As in tox and CI, where the project is not editable: by its package, or because it was installed from here."""
    folder, packages = site
    by_package = tried(folder)
    (packages / "shop-1.dist-info").mkdir()
    (packages / "shop-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1\n")
    (packages / "shop-1.dist-info" / "RECORD").write_text("shop/__init__.py,,\nshop/charges.py,,\n")
    (packages / "shop-1.dist-info" / "direct_url.json").write_text('{"url": "file:///src/shop", "dir_info": {}}')

    assert by_package[:3] == ["found"] * 3
    assert by_package[-1].endswith("it was not stopped inside shop: if that is your code, install it from its folder")
    assert tried(folder) == ["found"] * 4


def test_where_no_line_could_be_stopped_at_nothing_is_said_to_hold():
    """It may be right or wrong; nobody has tried."""
    provider = LedgerProvider()

    with pytest.raises(AssertionError, match=r"crashes   unknown, 0 schedules played\n.*it was stopped nowhere"):
        crash_everywhere(provider.charge, {"order": "o", "amount": 1}, key="order", provider=provider)
    with pytest.raises(AssertionError, match="lease     unknown, 0 schedules played"):
        lose_lease(provider.charge, {"order": "o", "amount": 1}, key="order", provider=provider, clock=ManualClock())


def test_claim_and_boundary_are_unknown_without_points():
    provider = LedgerProvider()
    report = four_assumptions(
        provider.charge, payload={"order": "o", "key": "k", "amount": 1}, key="key", provider=provider
    )

    assert (report.claim.holds, report.boundary.holds, report.holds) == (None, None, False)
    with pytest.raises(AssertionError, match="it was stopped nowhere"):
        report.check()


def test_the_function_is_found_under_what_wraps_it():
    guard = Guard("memory://")

    @guard.once(name="buy", key="order")
    def buy(order: str) -> None: ...

    class Shop:
        @guard.once(name="sell", key="order")
        def sell(self, order: str) -> None: ...

        def plain(self) -> None: ...

        def __call__(self) -> None: ...

    for handler in (buy, Shop().sell, Shop.sell, Shop().plain, Shop(), functools.partial(buy), lambda: None):
        assert OwnCode(handler)._places[0] == __file__
    assert OwnCode(len)._places == ()
    assert OwnCode(guard.run)._places == ()


def test_what_is_installed_for_a_user_or_the_system_is_installed():
    """A venv may see them, too; a handler is not stopped inside of them."""
    for folder in (*places.getsitepackages(), places.getusersitepackages()):
        inside = os.path.join(folder, "requests", "api.py")
        assert installed(inside)
        assert inside not in OwnCode(test_what_is_installed_for_a_user_or_the_system_is_installed)
