"""python -m bench [--json] [--only GROUP[,GROUP]] [--quick] [--list]

0: every target is met; 1: some are not, or an experiment failed; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from bench import groups
from bench.figures import Experiment, Result
from bench.measure import FULL, QUICK, Effort
from bench.report import Table, json_line, summary

Planned = list[tuple[str, Experiment]]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    names = groups.NAMES if options.only is None else (groups.ALWAYS, *options.only)
    plan: Planned = [(name, one) for name in dict.fromkeys(names) for one in groups.experiments(name)]
    table = Table(figure for _, experiment in plan for figure in experiment.figures)
    if options.list:
        for _, experiment in plan:
            for figure in experiment.figures:
                print(table.announced(figure))
        return 0

    begun, results = time.monotonic(), []
    if not options.json:
        print(table.head())
    for result in carried_out(plan, QUICK if options.quick else FULL):
        results.append(result)
        print(json_line(result) if options.json else table.row(result), flush=True)
    print(f"{summary(results)} ({time.monotonic() - begun:.0f} s)", file=sys.stderr)
    return 1 if any(result.fails for result in results) else 0


def carried_out(plan: Planned, effort: Effort) -> Iterator[Result]:
    """Every figure's result, as it is found; a broken experiment is told in its own rows and stops no other."""
    for group, experiment in plan:
        try:
            readings = experiment.run(effort)
        except Exception as error:
            for figure in experiment.figures:
                yield Result(group, figure, None, error=f"{type(error).__name__}: {error}")
        else:
            for figure, reading in zip(experiment.figures, readings, strict=True):
                yield Result(group, figure, reading)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench", description="What samekey costs on this machine.")
    made.add_argument("--json", action="store_true", help="one JSON object per figure and line")
    made.add_argument("--only", type=some_groups, metavar="GROUP[,GROUP]", help=f"of {', '.join(groups.NAMES)}")
    made.add_argument("--quick", action="store_true", help="few and short rounds: does it run, not how fast")
    made.add_argument("--list", action="store_true", help="what is measured, without measuring it")
    return made


def some_groups(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in groups.NAMES:
            raise argparse.ArgumentTypeError(f"no group {name!r}; there are {', '.join(groups.NAMES)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
