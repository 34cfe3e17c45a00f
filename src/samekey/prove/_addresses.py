"""Intent, seen from the address: one key on another path, with another query, by another method.

A second request under a used key may be refused, or it may be an operation of its own (keys are per route in many
designs). It must never be given the answer to the first: the caller would believe that it was done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from samekey.prove._steps import Reply, Request, Step
from samekey.prove._trial import UNCOUNTED, Play, Trial

INTENT = "Intent"
METHODS = ("PUT", "PATCH", "POST")  # never DELETE: an examiner deletes nothing that it did not make
MADE_UP = "samekey-prove"


def another_path(trial: Trial) -> Play:
    target = trial.target
    url = target.other_url or target.stream_url or _with_path(target.url)
    alone = yield from _another_request(trial, "another path", lambda key: trial.request(key, url=url))
    if not alone.good and not trial.broken and not trial.unknown:
        trial.cannot_tell(
            INTENT, f"another path is answered {alone.described} alone: give --other-url, or --skip another-path"
        )


def another_query(trial: Trial) -> Play:
    url = _with_query(trial.target.url)
    alone = yield from _another_request(trial, "another query", lambda key: trial.request(key, url=url))
    if not alone.good and not trial.broken and not trial.unknown:
        trial.does_not_apply(INTENT, f"another query is answered {alone.described} by itself")


def another_method(trial: Trial) -> Play:
    refused: list[str] = []
    for method in METHODS:
        if method == trial.target.method:
            continue
        changed = _by_method(trial, method)
        alone = yield from _another_request(trial, f"the method {method}", changed)
        if alone.good or trial.broken or trial.unknown:
            return
        refused.append(f"{method} is answered {alone.described}")
    trial.does_not_apply(INTENT, f"no other method is served here: {', '.join(refused)}")


def _by_method(trial: Trial, method: str) -> Callable[[str], Request]:
    return lambda key: trial.request(key, method=method)


def _another_request(trial: Trial, what: str, changed: Callable[[str], Request]) -> Generator[Step, Any, Reply]:
    """Send the changed request under a key of its own and under a used key; return the reply to the former."""
    yield from trial.start_count()
    alone = yield from trial.send(f"{what}, under a key of its own", changed(next(trial.keys)))
    does = yield from trial.effects()
    key = next(trial.keys)
    yield from trial.start_count()
    first = yield from trial.send("a request", trial.request(key))
    other = yield from trial.send(f"its key with {what}", changed(key))
    effects = yield from trial.effects()
    same = trial.name_of(first) == trial.name_of(other)
    if not alone.status or not other.status:  # no answer is not a refusal
        silent = other if alone.status else alone
        trial.cannot_tell(INTENT, f"{what} was answered {silent.described}")
    elif not first.good:
        trial.cannot_tell(INTENT, f"an ordinary request was answered {first.described}")
    elif not other.good:
        if other.status >= 500 and not other.busy and alone.status < 500:
            trial.wrong(INTENT, f"{what} under a used key is answered {other.described}")
        elif trial.countable and trial.tally.probed and effects > 1:
            trial.wrong(INTENT, f"{what} under a used key is refused with {other.described}, and took effect")
    elif trial.countable and effects > 1:
        trial.note(f"{what} under a used key is done as an operation of its own")
    elif not alone.good:  # only the record of the key can have answered
        trial.wrong(INTENT, f"{what} under a used key is given the answer to the first")
    elif not trial.countable or (not does and trial.name_of(alone) == trial.name_of(first)):
        trial.cannot_tell(INTENT, UNCOUNTED)
    elif same:
        trial.wrong(INTENT, f"{what} under a used key is given the answer to the first")
    elif does:
        trial.wrong(INTENT, f"{what} under a used key is answered {other.status}, and nothing was done")
    return alone


def _with_path(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{MADE_UP}"))


def _with_query(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(query=f"{parts.query}&{MADE_UP}=1" if parts.query else f"{MADE_UP}=1"))
