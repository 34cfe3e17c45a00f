"""`samekey demo`: see a double charge happen, and not happen.

Reading order: _plan (what will go wrong), _columns (three ways to charge), _worker (the client that calls
again), _provider (the judge), _stage (processes), _verdict (the count), _screen (what you see).
"""

from __future__ import annotations

import click

from samekey.cli.demo._plan import ORDERS_MAX, ORDERS_MIN

SEED, ORDERS = 7, 200


@click.command(
    epilog="Example: samekey demo --seed 3 --orders 100", context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option("--seed", type=click.IntRange(min=0), default=SEED, help="Which orders meet a fault.")
@click.option("--orders", type=click.IntRange(ORDERS_MIN, ORDERS_MAX), default=ORDERS, help="Orders in each column.")
@click.option("--console", "with_console", is_flag=True, help="A shop with the web console open on it, until Ctrl-C.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of the console; 0 takes a free one.")
@click.option("--json", "as_json", is_flag=True, help="Only the outcome, as JSON.")
@click.pass_context
def demo(ctx: click.Context, seed: int, orders: int, with_console: bool, port: int, as_json: bool) -> None:
    """See a double charge happen, and not happen.

    Three shops charge the same orders at the same provider, with real processes: one without a guard, one
    with the textbook's key and TTL, one with samekey. The provider answers some orders after 500 ms while
    clients wait 300; three workers are killed with -9 right after a charge; some orders arrive twice. The
    provider's ledger is the judge.

    With --console it is one shop with samekey instead, and a web page on it: the address and a token are printed, and
    orders with faults come while you look.

    Exits with 0 if the ledger agrees: samekey charged every order once (one it calls in doubt), the others charged
    some twice. With 70 if samekey broke its promise, with 4 if another column never charged twice.
    """
    if with_console:
        from samekey.cli.demo import _console

        ctx.exit(_console.show(seed=seed, port=port))
    # Imported here: the demo's own child processes import this package, and need neither rich nor the stage.
    from samekey.cli.demo import _show

    ctx.exit(_show.show(seed=seed, orders=orders, as_json=as_json))
