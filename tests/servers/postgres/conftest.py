"""PostgreSQL's own tests restart and promote servers under load: minutes of work, for `make proof`."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("SAMEKEY_BUDGET") == "full" else ["test_own.py"]
