"""Keys on outgoing requests: one for each operation, the same in every retry and after a crash.

One file per library: `httpx`, `httpx2`, `requests`, `aiohttp`. They share which key a request gets (`_keys`), whether
it may be sent again (`_retry`), and the user's options for both (`_rules`).
"""

from samekey.clients._keys import same_key
from samekey.clients._retry import Retry

__all__ = ["Retry", "same_key"]
