"""`make mutants`: change core one small thing at a time, and see whether a test notices.

python -m tools.mutation                         every mutant (about half an hour of one core); goes on where it stopped
python -m tools.mutation --sample 200 --seed 1   so many (5 minutes), the same for the same seed, and what that says
python -m tools.mutation --only register         of one file
python -m tools.mutation --list                  what there is, without running anything
python -m tools.mutation --check                 that survivors.txt speaks of mutants that there are

Ends with 1 if a mutant survived that survivors.txt does not explain.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
from collections.abc import Container, Iterable
from dataclasses import asdict
from pathlib import Path

from tools.mutation.mutants import Mutant, mutants
from tools.mutation.quick import Quick
from tools.mutation.seen import CORE, ROOT, Seen, look
from tools.mutation.trial import Told, Trials, prepare

HERE = Path(__file__).parent
KEPT = ROOT / ".cache" / "mutation"
# Of tests that come by a mutant. First all of them meet the few that tell nearly always; what then lives, and is not
# explained, meets more of them, and is imported anew.
SHORT_SECONDS = 1.0
LONG_SECONDS = 60.0
SURVIVORS = HERE / "survivors.txt"

# What is quick and needs no server. The others say less about core for the time they take.
TESTS = (
    "tests/core", "tests/guard", "tests/proofs/schedules", "tests/proofs/simulation", "tests/proofs/induction",
    "tests/proofs/fuzz", "tests/ops", "tests/hooks", "tests/testing", "tests/examples", "tests/http/test_exchange.py",
    "tests/stores/test_memory_store.py", "tests/stores/test_sqlite_store.py", "tests/stores/test_layered_store.py",
    "--ignore=tests/guard/test_processes.py", "--ignore=tests/testing/test_pytest_plugin.py",
)  # fmt: skip


def main() -> int:
    asked = _arguments()
    everything = population(asked.only)
    explained = survivors()
    if asked.list:
        for mutant in everything:
            print(f"{mutant.line:4}  {mutant.name}")
        return 0
    if asked.check:
        gone = sorted(set(explained) - {mutant.name for mutant in everything})
        for name in gone:
            print(f"survivors.txt explains a mutant that is not there any more: {name}")
        print(f"{len(everything)} mutants, {len(explained)} explained survivors")
        return 1 if gone else 0
    # Shuffled: whatever has been tried when somebody stops it is a fair sample of all.
    chosen = random.Random(asked.seed).sample(everything, len(everything))[: asked.sample or None]  # noqa: S311
    told = run(chosen, explained, part=asked.part, again=asked.again)
    return report(chosen, told, explained, everything=len(everything), as_json=asked.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description="mutation testing of core")
    parser.add_argument("--only", nargs="+", default=[], metavar="FILE", help="these modules of core, by name")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="so many mutants instead of all")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument(
        "--part",
        type=_part,
        default="0/1",
        metavar="I/N",
        help="every Nth mutant, I from 0: run N processes side by side",
    )
    parser.add_argument("--again", action="store_true", help="try unexplained survivors again, with the tests of today")
    parser.add_argument("--json", action="store_true", help="every mutant with its fate, to stdout")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


def _part(text: str) -> tuple[int, int]:
    mine, _, of = text.partition("/")
    if not (mine.isdecimal() and of.isdecimal() and int(mine) < int(of)):
        raise argparse.ArgumentTypeError(f"{text} is no part: of two there are 0/2 and 1/2")
    return int(mine), int(of)


def population(only: Iterable[str] = ()) -> list[Mutant]:
    wanted = {name.removesuffix(".py").rpartition("/")[2] for name in only}
    files = sorted(CORE.glob("*.py"))
    return [
        mutant
        for file in files
        if not wanted or file.stem in wanted
        for mutant in mutants(f"samekey.core.{file.stem}", file)
    ]


def survivors() -> dict[str, str]:
    """Explained survivors: a reason, a colon at its end; below it the mutants, indented."""
    found: dict[str, str] = {}
    reason = ""
    for line in SURVIVORS.read_text(encoding="utf-8").splitlines():
        if line.startswith("    "):
            found[line.strip()] = reason
        elif line.strip() and not line.startswith("#"):
            reason = line.strip().rstrip(":")
    return found


def run(chosen: list[Mutant], explained: Container[str], *, part: tuple[int, int], again: bool) -> dict[str, Told]:
    """The fate of each, from what is kept or tried now."""
    KEPT.mkdir(parents=True, exist_ok=True)
    mine, of = part
    told = kept()
    if again:
        told = {name: one for name, one in told.items() if not one.alive or name.partition(" ")[2] in explained}
    ours = [mutant for number, mutant in enumerate(chosen) if number % of == mine]
    trials: Trials | None = None
    quick: Quick | None = None
    for budget in (SHORT_SECONDS, LONG_SECONDS):
        left = [mutant for mutant in ours if _is_left(told.get(_id(mutant)), mutant.name in explained, budget)]
        for number, mutant in enumerate(left, 1):
            if trials is None:
                trials, quick = start()
                telling = {name.partition(" ")[2]: one.by for name, one in told.items()}  # of older texts, too
                for known in chosen:
                    trials.learn(known, telling.get(known.name, ""))
            one = trials.trial(mutant, budget, slowly=budget == LONG_SECONDS)
            told[_id(mutant)] = one
            with open(KEPT / f"fates-{mine}.jsonl", "a", encoding="utf-8") as keeping:
                keeping.write(json.dumps({"id": _id(mutant), **asdict(one)}) + "\n")
            print(f"{number}/{len(left)} {one.fate:8} {one.seconds:6.1f} s  {mutant.name}", file=sys.stderr, flush=True)
    if quick is not None:
        quick.close()
        cpu = sum(os.times()[:4])  # ours and that of every child
        print(f"tried in {cpu / 60:.0f} CPU minutes", file=sys.stderr)
    return {**kept(), **told}


def _is_left(one: Told | None, is_explained: bool, budget: float) -> bool:
    if one is None:
        return budget == SHORT_SECONDS
    return one.alive and one.budget < budget and not is_explained


def start() -> tuple[Trials, Quick]:
    parts, loaded = look(TESTS, KEPT / "seen.json")
    quick = Quick(TESTS, {name: seconds for part in parts for name, seconds in part.seconds.items()})
    prepare(loaded)
    return Trials(Seen(parts, quick.names), quick.tried), quick


def kept() -> dict[str, Told]:
    found: dict[str, Told] = {}
    for file in sorted(KEPT.glob("fates-*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            said = json.loads(line)
            name = said.pop("id")
            now = Told(**said)
            if name not in found or found[name].alive:  # a test was written since, or there was more time
                found[name] = now
    return found


def _id(mutant: Mutant) -> str:
    """A mutant of this very text of its function: whatever changes there, it is tried again."""
    return f"{mutant.text} {mutant.name}"


# -- what it came to -------------------------------------------------------------------------------------------


def report(
    chosen: list[Mutant], told: dict[str, Told], explained: dict[str, str], *, everything: int, as_json: bool
) -> int:
    fates = {mutant: told[_id(mutant)] for mutant in chosen if _id(mutant) in told}
    alive = [mutant for mutant, one in fates.items() if one.alive]
    unexplained = [mutant for mutant in alive if mutant.name not in explained]
    if as_json:
        print(json.dumps([{**asdict(mutant), **asdict(one)} for mutant, one in fates.items()], indent=1))
        return 1 if unexplained else 0
    print(
        "| file | mutants | killed | by a limit | equivalent | unexplained | killed of those that are not equivalent |"
    )
    print("|---|---|---|---|---|---|---|")
    for module in sorted({mutant.module for mutant in fates}):
        print(_row(module.rpartition(".")[2], {m: one for m, one in fates.items() if m.module == module}, explained))
    print(_row("all", fates, explained))
    if len(fates) < everything:
        dead, equivalent = len(fates) - len(alive), len(alive) - len(unexplained)
        low, high = _interval(dead, len(fates) - equivalent)
        print(
            f"\n{len(fates)} of {everything} mutants. Of all that are not equivalent {low:.1%} to {high:.1%} are killed"
        )
        print("(95 %, Wilson).")
    for mutant, one in fates.items():
        if mutant.name in explained and not one.alive:
            print(f"explained, and killed all the same, line {mutant.line}: {mutant.name}")
    for mutant in unexplained:
        print(f"survived, line {mutant.line}: {mutant.name}")
    return 1 if unexplained else 0


def _row(name: str, fates: dict[Mutant, Told], explained: dict[str, str]) -> str:
    alive = [mutant for mutant, one in fates.items() if one.alive]
    dead = len(fates) - len(alive)
    circles = sum(one.fate == "circles" for one in fates.values())
    known = sum(mutant.name in explained for mutant in alive)
    share = f"{dead / (len(fates) - known):.1%}" if len(fates) > known else "-"
    return (
        f"| {name} | {len(fates)} | {dead} ({dead / len(fates):.1%}) | {circles} | {known} | {len(alive) - known} "
        f"| {share} |"
    )


def _interval(hits: int, of: int, z: float = 1.96) -> tuple[float, float]:
    share = hits / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return middle - half, middle + half


if __name__ == "__main__":
    sys.exit(main())
