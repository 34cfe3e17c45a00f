"""The command line: `samekey ls | show | explain | resolve | doctor | sweep | migrate | prove | db | demo`.

The commands parse arguments and print. `ops` decides what an operator may do, and a store does it. Nothing in this file
needs click or rich, so that a missing one is reported in one line.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from samekey.cli.exits import Exit

__all__ = ["Exit", "main"]


def main() -> NoReturn:
    """Run the command of `sys.argv` and leave with one of the codes in `Exit`."""
    try:
        from samekey.cli._root import root
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("click", "rich"):
            raise
        print(f"samekey: the command line needs {missing.name}: pip install 'samekey[cli]'", file=sys.stderr)
        sys.exit(Exit.USAGE)
    root.main(prog_name="samekey")
    sys.exit(Exit.FINE)
