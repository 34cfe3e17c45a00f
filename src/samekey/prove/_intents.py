"""Intent: the same key carries the same intent. A true retry is recognised, and no other request is taken for one."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from samekey.prove._bodies import another, rewritten
from samekey.prove._steps import Reply, Request, Step
from samekey.prove._trial import UNCOUNTED, Play, Trial, difference, effects_text

INTENT = "Intent"

# Longest first: an endpoint that refuses long keys is tried with shorter ones. 300 is more than a column of 255 holds.
LONG_KEYS = (300, 255, 129, 65)

# What proxies, tracers and newer clients change from one attempt to the next.
VOLATILE = (
    ("User-Agent", "samekey-prove-retry"),
    ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("X-Request-Id", "3f1c2b9e-second-attempt"),
)


def similar_keys(trial: Trial) -> Play:
    """Keys are compared as they are: keys that are nearly equal are two keys, and two purchases."""
    for what, change in (("in upper case", str.upper), ("without its dashes", lambda key: key.replace("-", ""))):
        key = next(trial.keys)
        yield from _two_operations(trial, f"the same key {what}", key, change(key))
    for size in LONG_KEYS:
        key = next(trial.keys).ljust(size, "k")
        what = f"a key that differs in the last of {size} characters"
        if (yield from _two_operations(trial, what, key, key[:-1] + "x")):
            return


def _two_operations(trial: Trial, what: str, key: str, similar: str) -> Generator[Step, Any, bool]:
    """Send one request under each of two keys; return whether the first was served."""
    yield from trial.start_count()
    first = yield from trial.send("a request", trial.request(key))
    if not first.status:
        trial.cannot_tell(INTENT, f"a key of {len(key)} characters was answered {first.described}")
    if not first.good:
        trial.note(f"a key of {len(key)} characters is answered {first.described}")
        return False
    second = yield from trial.send(what, trial.request(similar))
    effects = yield from trial.effects()
    if not second.good and second.refused:
        trial.note(f"{what} is refused with {second.status}")
    elif not second.good:
        trial.wrong(INTENT, f"{what} is answered {second.described}")
    elif not trial.countable:
        trial.cannot_tell(INTENT, UNCOUNTED)
    elif effects < 2:
        trial.wrong(INTENT, f"{what} is taken for the first key: two requests made {effects_text(effects)}")
    return True


def another_body(trial: Trial) -> Play:
    target = trial.target
    other = target.other_body
    if other is None:
        other = another(target.body, target.content_type)
    if other is None:
        trial.cannot_tell(INTENT, "no other body can be made from yours: give --other-body")
        return
    alone = yield from trial.send("another body, under a key of its own", trial.request(next(trial.keys), body=other))
    if not alone.good:  # otherwise a validation error would look like a comparison
        trial.cannot_tell(INTENT, f"another body is answered {alone.status} by itself: give a valid --other-body")
        return
    yield from trial.start_count()
    key = next(trial.keys)
    first = yield from trial.send("a request", trial.request(key))
    second = yield from trial.send("its key with another body", trial.request(key, body=other))
    effects = yield from trial.effects()
    if not second.good and not (second.refused or second.busy):
        trial.wrong(INTENT, f"another body under a used key is answered {second.described}")
    elif second.good and (trial.name_of(first) == trial.name_of(second)):
        trial.wrong(INTENT, "another body under a used key is given the answer to the first")
    elif second.good or (trial.countable and effects > 1):
        trial.wrong(INTENT, f"another body under a used key is done: {second.status}")
    elif not trial.countable:
        trial.cannot_tell(INTENT, UNCOUNTED)


def reordered_fields(trial: Trial) -> Play:
    again = rewritten(trial.target.body, trial.target.content_type)
    if again is None:
        trial.does_not_apply(INTENT, "the body has no fields to reorder")
        return
    key = next(trial.keys)
    first, second = trial.request(key), trial.request(key, body=again)
    yield from _same_intent(trial, "the same fields in another order", first, second, refusal_is_strict=True)


def volatile_headers(trial: Trial) -> Play:
    key = next(trial.keys)
    what, again = "other User-Agent, traceparent, X-Request-Id", trial.request(key, more=VOLATILE)
    yield from _same_intent(trial, what, trial.request(key), again)


def quoted_and_bare(trial: Trial) -> Play:
    """The draft writes "k", nearly every client writes k; a retry may be sent by another client."""
    key = next(trial.keys)
    forms = [f'"{key}"'.encode(), key.encode()]
    if not trial.target.quoted:
        forms.reverse()
    what = "the same key, bare" if trial.target.quoted else "the same key, quoted"
    first, second = map(trial.request, forms)
    yield from _same_intent(trial, what, first, second, refusal_is_strict=True)


def _same_intent(trial: Trial, what: str, first: Request, again: Request, *, refusal_is_strict: bool = False) -> Play:
    yield from trial.start_count()
    one: Reply = yield from trial.send("a request", first)
    two: Reply = yield from trial.send(what, again)
    effects = yield from trial.effects()
    if not one.good:
        trial.cannot_tell(INTENT, f"an ordinary request was answered {one.described}")
    elif trial.countable and effects > 1:
        trial.wrong(INTENT, f"{what}: the retry was done again, {effects_text(effects)}")
    elif not two.good and refusal_is_strict and two.refused:
        strict = "nothing is doubled, but the endpoint is stricter than it must be"
        trial.note(f"{what}: refused with {two.status}: {strict}")
    elif not two.good:
        trial.wrong(INTENT, f"{what}: a true retry is answered {two.described}")
    elif not trial.countable:
        trial.cannot_tell(INTENT, UNCOUNTED)
    elif difference(one, two):
        trial.note(f"{what}: done once, and {difference(one, two)}")


def another_principal(trial: Trial) -> Play:
    if not trial.target.other_headers:
        trial.cannot_tell(INTENT, "not tried: give --other-header, or --skip another-principal if there is only one")
        return
    theirs = trial.target.other_headers
    alone = yield from trial.send("another principal, own key", trial.request(next(trial.keys), more=theirs))
    if not alone.good:
        trial.cannot_tell(INTENT, f"another principal is not served at all ({alone.status}): check --other-header")
        return
    yield from trial.start_count()
    key = next(trial.keys)
    first = yield from trial.send("a request", trial.request(key))
    other = yield from trial.send("another principal, the same key", trial.request(key, more=theirs))
    effects = yield from trial.effects()
    if not other.good and (other.refused or other.busy):
        trial.note(f"a key of another principal is refused with {other.status}: nothing leaks, but it can be blocked")
    elif not other.good:
        trial.wrong(INTENT, f"another principal with the same key is answered {other.described}")
    elif not trial.countable:
        trial.cannot_tell(INTENT, UNCOUNTED)
    elif effects < 2:
        whose = "the answer of the first" if trial.name_of(first) == trial.name_of(other) else "an answer"
        trial.wrong(INTENT, f"another principal with the same key is given {whose}, and nothing was done for them")


def no_key(trial: Trial) -> Play:
    """Two equal requests without a key are two honest purchases."""
    yield from trial.start_count()
    first = yield from trial.send("no key", trial.request())
    second = yield from trial.send("the same again, no key", trial.request())
    effects = yield from trial.effects()
    if first.status >= 500:
        trial.wrong(INTENT, f"a request without a key is answered {first.described}")
    elif not trial.countable:
        trial.cannot_tell(INTENT, UNCOUNTED)
    elif first.refused and second.refused:
        if effects:
            trial.wrong(INTENT, f"a request without a key is refused with {first.status}, and took effect")
        else:
            trial.note(f"a key is required: without one, {first.status}")
    elif effects < 2:
        trial.wrong(INTENT, f"two requests without a key made {effects_text(effects)}: the second was swallowed")
