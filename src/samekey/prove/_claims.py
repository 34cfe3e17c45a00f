"""Claim: claiming a key is checking that it is free. One key is one effect, however it is sent."""

from __future__ import annotations

from samekey.prove._bodies import padded
from samekey.prove._steps import Request
from samekey.prove._trial import UNCOUNTED, Play, Trial, difference, effects_text

CLAIM, MEMORY = "Claim", "Memory"


def in_sequence(trial: Trial) -> Play:
    yield from trial.start_count()
    request = trial.request(next(trial.keys))
    first = yield from trial.send("a request", request)
    second = yield from trial.send("the same again", request)
    if not first.good:
        trial.cannot_tell((CLAIM, MEMORY), f"an ordinary request was answered {first.described}")
        return
    effects = yield from trial.effects()
    if not trial.countable:
        trial.cannot_tell(CLAIM, UNCOUNTED)
    elif effects != 1:
        trial.wrong(CLAIM, f"one key sent twice, one after the other, made {effects_text(effects)}")
    if not second.good:
        trial.wrong(MEMORY, f"the first was answered {first.status}, and the same again {second.described}")
    elif differs := difference(first, second):
        trial.wrong(MEMORY, f"the second answer is not the first: {differs}")


def in_parallel(trial: Trial) -> Play:
    for number in range(1, trial.target.rounds + 1):
        yield from trial.start_count()
        request = trial.request(next(trial.keys))
        replies = yield from trial.together(f"round {number}, at once", [request] * trial.target.callers)
        effects = yield from trial.settled_effects()
        last = yield from trial.until_answered("then once more", request)
        in_all = yield from trial.settled_effects()
        crowd = f"{len(replies)} requests with one key at once"
        good = [reply for reply in replies if reply.good]
        if not trial.countable:
            trial.cannot_tell(CLAIM, UNCOUNTED)
        elif effects > 1:
            trial.wrong(CLAIM, f"{crowd} made {effects_text(effects)}")
        elif in_all != 1:
            trial.wrong(CLAIM, f"{crowd}, and one after them, made {effects_text(in_all)}")
        elif len({trial.name_of(reply) for reply in good}) > 1:
            trial.wrong(CLAIM, f"{crowd} were given different answers")
        elif odd := [reply for reply in replies if not reply.good and not reply.busy]:
            trial.wrong(CLAIM, f"of {crowd}, one was answered {odd[0].described}")
        elif not good and not last.good:
            trial.wrong(CLAIM, f"of {crowd} none was answered well, nor one after them")
        if trial.broken or trial.unknown:
            return


def unfinished_body(trial: Trial) -> Play:
    """A body that did not arrive completely claims nothing: a client that sends it again is served."""
    if len(trial.target.body) < 2:
        trial.does_not_apply(CLAIM, "the body is too short to be cut")
        return
    yield from trial.start_count()
    request = trial.request(next(trial.keys))
    yield from trial.hang_up("half of a request", request, part=0.5)
    reply = yield from trial.until_answered("the whole of it", request)
    effects = yield from trial.settled_effects()
    made = effects_text(effects)
    if trial.countable and effects > 1:
        trial.wrong(CLAIM, f"half a request and a whole one made {made}")
    elif reply.busy:
        patience = f"for {trial.target.patience_seconds:g} s"
        trial.wrong(CLAIM, f"after half a request the key is taken: {reply.described}, {patience}")
    elif not reply.good:
        trial.wrong(CLAIM, f"after half a request the whole one is answered {reply.described}")
    elif not trial.countable:
        trial.cannot_tell(CLAIM, UNCOUNTED)
    elif effects < 1:
        trial.wrong(CLAIM, f"after half a request the whole one is answered {reply.described}, with {made}")


def oversized_body(trial: Trial) -> Play:
    """An endpoint may refuse a body above its limit; it may not run it without the key."""
    body = padded(trial.target.body, trial.target.content_type, trial.target.oversize_bytes)
    if body is None:
        trial.cannot_tell(CLAIM, "a body of this kind cannot be made larger by us: --skip oversized-body")
        return
    yield from trial.start_count()
    request = trial.request(next(trial.keys), body=body)
    what = f"a body of {len(body) / (1 << 20):.1f} MiB"
    first = yield from trial.send(what, request)
    second = yield from trial.until_answered("the same again", request)
    effects = yield from trial.settled_effects()
    if not trial.countable:
        trial.cannot_tell(CLAIM, UNCOUNTED)
    elif effects > 1:
        trial.wrong(CLAIM, f"{what}, sent twice with one key, made {effects_text(effects)}: large ones are not guarded")
    elif (first.refused or not first.status) and effects:
        trial.wrong(CLAIM, f"{what} was answered {first.described}, and took effect")
    elif first.status >= 500 and not first.busy:
        trial.wrong(CLAIM, f"{what} was answered {first.described}")
    elif first.good and not second.good:
        trial.note(f"{what} is done once, and its repetition is answered {second.status}")


def malformed_keys(trial: Trial) -> Play:
    """A client that sends a key relies on it: a key that cannot be used is refused, never ignored."""
    fresh = next(trial.keys).encode()
    for what, key in (
        ("an empty key", b""),
        ("a key of spaces", b"   "),
        ("a quote that does not end", b'"' + fresh),
        ("a list of keys", fresh + b"-a, " + fresh + b"-b"),
        ("a key with a control character", fresh + b"\x01"),
        ("a key that is not ASCII", fresh + b"\xe9\xff"),
        ("a key of 5,000 characters", fresh + b"k" * 5000),
    ):
        sent = {what: trial.request(key), "the same again": trial.request(key)}
        yield from _unusable(trial, sent, f"{what} is", "ignored: sent twice, it made")


def doubled_keys(trial: Trial) -> Play:
    """Two key headers: proxies join them, and frameworks pick different ones."""
    one, two = next(trial.keys), next(trial.keys)
    sent = {"two key headers": trial.request(one, two), "the same two in the other order": trial.request(two, one)}
    yield from _unusable(trial, sent, "two key headers are", "taken: sent in both orders they made")


def _unusable(trial: Trial, sent: dict[str, Request], these_are: str, ignored: str) -> Play:
    """Send two requests whose key cannot be used: both are refused, or there is one effect."""
    yield from trial.start_count()
    for what, request in sent.items():
        yield from trial.send(what, request)
    first, second = trial.replies
    effects = yield from trial.effects()
    if not trial.countable:
        trial.cannot_tell(CLAIM, UNCOUNTED)
    elif effects > 1:
        trial.wrong(CLAIM, f"{these_are} {ignored} {effects_text(effects)}")
    elif first.status >= 500 and not first.busy:
        trial.wrong(CLAIM, f"{these_are} answered {first.status}")
    elif first.refused and effects:
        trial.wrong(CLAIM, f"{these_are} refused with {first.status}, and took effect")
    elif first.good or second.good:
        trial.note(f"{these_are} taken as a key")
