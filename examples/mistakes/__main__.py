"""`python examples/mistakes check_then_insert` prints what samekey.testing finds; without a name: all of them."""

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from shop import Shop, tried  # noqa: E402 - found beside this file, however it was started

for name in sys.argv[1:] or sorted(path.stem for path in HERE.glob("[a-z]*.py") if path.stem != "shop"):
    mistake: Any = importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder, Shop(Path(folder)) as shop:
        print(f"{name}: {mistake.__doc__}\n{tried(mistake.broken, shop, mistake)}\n")
