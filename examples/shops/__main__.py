"""`python examples/shops fastapi` or `python examples/shops django`: a shop with four workers, until Ctrl-C."""

import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from running import SERVERS, running

TRY = """
  curl -i {shop.url}/charges -H 'Authorization: Bearer ann-token' -H 'Idempotency-Key: k-1' \\
       -H 'Content-Type: application/json' -d '{{"order": "o-1", "amount": 200}}'       # twice, then with 500
  curl {shop.provider}/ledger                                                        # what the provider charged
  samekey ls --store {shop.store}

The same for /vouchers (outcome unknown) and, with {{"item": "book"}}, for /orders (one transaction). Ctrl-C ends it.
"""

if len(sys.argv) != 2 or sys.argv[1] not in SERVERS:
    sys.exit(__doc__)
signal.signal(signal.SIGTERM, signal.default_int_handler)  # a signal that ends this program ends the shop, too
with tempfile.TemporaryDirectory() as folder, running(sys.argv[1], Path(folder)) as shop:
    print(TRY.format(shop=shop), flush=True)
    try:
        signal.pause()
    except KeyboardInterrupt:
        pass
