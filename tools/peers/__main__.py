"""`make peers`: examine a small shop guarded by each library, and write docs/peers.md.

python -m tools.peers PYTHON        PYTHON is the interpreter where the libraries are installed
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from samekey.prove import ASSUMPTIONS, SCENARIOS, Probe, Report, Standing, Target, examine

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "peers.md"

# What the released documentation of each says: no library is blamed for what it never promised.
INTENT = {
    "samekey": "every endpoint declares the principal of a key and the boundary of its effect",
    "asgi-idempotency-header": "answers are kept and replayed, modelled after Stripe, so failures are, too; JSON only; "
    "two users with one key are said to be treated as one",
    "django-idempotency-key": "key required; success is replayed, here with its own status; "
    "a lock of 0.1 s, then 423; supports Django up to 4.2",
    "fastapi-idempotency": "same key from the same caller; without a key, equal requests within 10 s are one, and "
    "5xx is never stored, both on purpose",
    "idempot": "no documentation in the release; by default only answers with status 200 are kept, here 201 too",
    "idemptx": "key required; the signature is method, URL, headers and body; only JSONResponse is kept",
}
GET = f"{sys.executable} -c 'import sys, urllib.request as it; it.urlopen(sys.argv[1]).read()'"
KEEPS_FAILURES = {"asgi-idempotency-header"}
INTRODUCTION = """# Side by side

Written by `make peers`; do not edit. One small FastAPI shop (Django for the Django library) guarded by each library as
its documentation says, with its in-memory store and in one process, examined by [`samekey prove`](prove.md) with the
same options. A charge takes 20 ms. It is made to fail before a charge (402) and after one (500). The shop is
`tools/peers/shop.py`, the versions are in `tools/peers/requirements.txt`.

Read it with what each library says of itself: a scenario can be broken on purpose. `quoted-and-bare` and `doubled-keys`
are about the header as the IETF draft writes it, which none of the others parses. What one process and a memory store
cannot show - crashes, leases, two machines - is not in this table, for any of them.
`replayed-cookie` is skipped (`-`): the shop sets no cookie, because one library keeps no answer that sets one."""
MARKS = {Standing.HOLDS: "holds", Standing.BROKEN: "**broken**", Standing.UNKNOWN: "unknown", Standing.SKIPPED: "-"}


def main(python: str) -> None:
    reports: dict[str, Report] = {}
    for name in INTENT:
        with opened(python, name) as url:
            reports[name] = prove(name, url)
        print(f"{name}: {', '.join(reports[name].broken) or 'all hold'}", flush=True)
    PAGE.write_text(page(reports, versions(python)), encoding="utf-8")
    print(f"written: {PAGE.relative_to(HERE.parent.parent)}")


@contextmanager
def opened(python: str, name: str) -> Iterator[str]:
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with listening:
        shop = subprocess.Popen(  # noqa: S603 - our own program
            [python, str(HERE / "shop.py"), name, str(listening.fileno())],
            pass_fds=[listening.fileno()],
            stderr=subprocess.DEVNULL,
        )
    try:
        yield url
    finally:
        shop.kill()
        shop.wait()


def prove(name: str, url: str) -> Report:
    return examine(
        Target(
            url=f"{url}/charges",
            body=b'{"amount": 200, "currency": "usd"}',
            headers=(("Authorization", "ann"),),
            other_headers=(("Authorization", "bob"),),
            breaks=2,
            failures_kept=name in KEEPS_FAILURES,
            stream_url=f"{url}/streamed",
            oversize_bytes=16 << 20,
        ),
        probe=Probe(url=f"{url}/count"),
        # By command, not by a header: some count every header among the intent.
        break_commands=(f"{GET} {url}/fail/before", f"{GET} {url}/fail/after"),
        heal_command=f"{GET} {url}/fail/never",
        timeout_seconds=30,  # the first answer waits for the shop to start
    )


def versions(python: str) -> dict[str, str]:
    asked = f"from importlib.metadata import version\nfor name in {list(INTENT)!r}: print(name, version(name))"
    said = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout  # noqa: S603
    return dict(line.split() for line in said.splitlines())


def page(reports: dict[str, Report], released: dict[str, str]) -> str:
    lines = [
        *INTRODUCTION.splitlines(),
        "",
        "| | " + " | ".join(ASSUMPTIONS) + " | what it says of itself |",
        "|---|" + "---|" * len(ASSUMPTIONS) + "---|",
    ]
    for name, report in reports.items():
        marks = " | ".join(MARKS[report.standing(one)] for one in ASSUMPTIONS)
        lines.append(f"| {name} {released[name]} | {marks} | {INTENT[name]} |")
    lines += ["", "## Scenario by scenario", "", "| | " + " | ".join(reports) + " |", "|---|" + "---|" * len(reports)]
    for scenario, what in SCENARIOS.items():
        for assumption in what.assumptions:
            found = [
                next(f for f in report.findings if (f.scenario, f.assumption) == (scenario, assumption))
                for report in reports.values()
            ]
            lines.append(f"| `{scenario}`, {assumption} | " + " | ".join(MARKS[f.standing] for f in found) + " |")
    lines += ["", "## What was seen", ""]
    for name, report in reports.items():
        lines += [f"### {name} {released[name]}", ""]
        seen = [f for f in report.findings if f.standing in (Standing.BROKEN, Standing.UNKNOWN)]
        lines += [f"- `{f.scenario}`, {f.assumption}, {f.standing}: {f.evidence}" for f in seen]
        noted = {f.scenario: f.notes for f in report.findings if f.notes}
        lines += [f"- `{scenario}`, noted: {'; '.join(notes)}" for scenario, notes in noted.items()]
        lines += [*([] if seen or noted else ["Nothing."]), ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    main(sys.argv[1])
