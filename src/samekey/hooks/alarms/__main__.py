"""python -m samekey.hooks.alarms rules|watch|dashboard: print rules for Prometheus, or the dashboard for Grafana."""

from __future__ import annotations

import argparse
import sys
from importlib.resources import files

FILES = {"rules": "rules.yml", "watch": "watch.yml", "dashboard": "dashboard.json"}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m samekey.hooks.alarms",
        description="Print the alarm rules for Prometheus, or the dashboard for Grafana.",
    )
    parser.add_argument("what", choices=FILES)
    asked = parser.parse_args()
    sys.stdout.write(files("samekey.hooks.alarms").joinpath(FILES[asked.what]).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
