"""Memory and Boundary: what a key remembers, and what happens when the client did not get the answer."""

from __future__ import annotations

from samekey.prove._steps import Break, Heal
from samekey.prove._trial import UNCOUNTED, Play, Trial, difference, effects_text

CLAIM, MEMORY, BOUNDARY = "Claim", "Memory", "Boundary"
NEEDS_PROBE = "an answer is lost here, so only a probe can count: give --count-url or --count-cmd"


def after_a_timeout(trial: Trial) -> Play:
    """The client gave up, and the server may have gone on: the next request must not cause a second effect."""
    if not (trial.tally.probed and trial.countable):
        trial.cannot_tell(BOUNDARY, NEEDS_PROBE)
        return
    for when, after in (("at once", 0.0), ("in the middle", trial.tally.latency_seconds / 2)):
        yield from trial.start_count()
        request = trial.request(next(trial.keys))
        yield from trial.hang_up(f"a request whose client gives up {when}", request, after=after)
        reply = yield from trial.until_answered("the same again", request)
        again = yield from trial.until_answered("and again", request)
        effects = yield from trial.settled_effects()
        made = effects_text(effects)
        if effects > 1:
            trial.wrong(BOUNDARY, f"a client that gave up {when} and asked again made {made}")
        elif reply.good and effects < 1:
            trial.wrong(BOUNDARY, f"a client that gave up {when} was then answered {reply.status}, with {made}")
        elif reply.good and (differs := difference(reply, again)):
            trial.wrong(BOUNDARY, f"after a client gave up {when}, two answers differ: {differs}")
        elif reply.busy and effects < 1 and not reply.doubtful:
            stays = f"{reply.status} for {trial.target.patience_seconds:g} s, with {made}"
            trial.cannot_tell(BOUNDARY, f"after a client gave up {when} the key answers {stays}: stuck?")
        elif reply.busy:
            trial.note(f"after a client gave up {when} the key answers {reply.status}; so far there is {made}")
        elif not reply.good:
            trial.wrong(BOUNDARY, f"after a client gave up {when}, the same again is answered {reply.described}")


def after_a_failure(trial: Trial) -> Play:
    """A request that failed may have taken effect: a retry never repeats it. If it had none, a retry can do it."""
    target = trial.target
    if not (target.fail_headers or target.breaks):
        trial.cannot_tell((MEMORY, BOUNDARY), "not tried: give --fail-header, or --break-cmd and --heal-cmd")
        return
    if not (trial.tally.probed and trial.countable):
        trial.cannot_tell((MEMORY, BOUNDARY), NEEDS_PROBE)
        return
    for way in (*target.fail_headers, *range(target.breaks)):
        yield from _one_failure(trial, way)


def _one_failure(trial: Trial, way: tuple[str, str] | int) -> Play:
    way_text = f"broken by command {way + 1}" if isinstance(way, int) else ": ".join(way)
    yield from trial.start_count()
    key = next(trial.keys)
    request = trial.request(key)
    if isinstance(way, int):
        trouble: str = yield Break(way)
        if trouble:
            trial.cannot_tell((MEMORY, BOUNDARY), f"not tried ({way_text}): {trouble}")
            yield Heal()  # the command may have broken something before it failed
            return
        failed = yield from trial.send(f"a request that fails ({way_text})", request, fails=True)
        yield Heal()
    else:
        failing = trial.request(key, more=(way,))
        failed = yield from trial.send(f"a request that fails ({way_text})", failing, fails=True)
    at_first = yield from trial.settled_effects()
    retry = yield from trial.until_answered("the same again, in good order", request)
    again = yield from trial.until_answered("and again", request)
    effects = yield from trial.settled_effects()
    made, failure = effects_text(effects), f"({way_text}, {failed.status})"
    if failed.good:
        trial.cannot_tell((MEMORY, BOUNDARY), f"{way_text} did not make the request fail ({failed.status})")
        return
    when = "after it had taken effect" if at_first else "before it took effect"
    if effects > 1 and at_first:
        trial.wrong(BOUNDARY, f"a request failed {when} {failure}; retries made it {made}")
    elif effects > 1:
        trial.wrong(MEMORY, f"a request failed {when} {failure}; its retries were done {effects} times")
    elif retry.good and effects < 1:
        trial.wrong(BOUNDARY, f"after a failure ({way_text}) a retry is answered {retry.status}, with {made}")
    if at_first or effects > 1:
        return
    if retry.good:
        if differs := difference(retry, again):
            trial.wrong(MEMORY, f"after a failure ({way_text}) and a success, the answer does not stay: {differs}")
    elif retry.busy and retry.doubtful:
        trial.note(f"after a failure {when} ({way_text}) the key answers {retry.status}: a person decides")
    elif retry.busy:  # a doubt that the answer does not mention looks like a lost key
        stays = f"{retry.status} for {trial.target.patience_seconds:g} s"
        trial.cannot_tell(MEMORY, f"after a failure {when} ({way_text}) the key answers {stays}: stuck?")
    elif not difference(failed, retry):
        if trial.target.failures_kept:
            trial.note(f"the failure {failure} is kept and replayed, as the endpoint documents")
        else:
            trial.wrong(MEMORY, f"a failure that did nothing {failure} is replayed after its cause is gone")
    else:
        trial.wrong(MEMORY, f"after a failure {failure} a retry is answered {retry.described}")


def replayed_cookie(trial: Trial) -> Play:
    """A cookie is for the client that got the answer: replayed, it can hand an old session to another browser.

    A cookie that every answer sets to the same value is no memory of the key. So a request under another key shows
    which values are new for each answer.
    """
    request = trial.request(next(trial.keys))
    first = yield from trial.send("a request", request)
    if not first.good:
        trial.cannot_tell(MEMORY, f"an ordinary request was answered {first.described}")
        return
    if not first.cookies:
        trial.does_not_apply(MEMORY, "the answer sets no cookie")
        return
    again = yield from trial.send("the same again", request)
    fresh = yield from trial.send("a request under another key", trial.request(next(trial.keys)))
    if not again.good or not fresh.good:
        bad = fresh if again.good else again
        trial.cannot_tell(MEMORY, f"a request was answered {bad.described}")
        return
    kept = again.cookies.items() & first.cookies.items()
    if named := sorted(name for name, _ in kept - fresh.cookies.items()):
        trial.wrong(MEMORY, f"the replay sets the cookie of the first answer again: {', '.join(named)}")


def streamed_answer(trial: Trial) -> Play:
    """A streamed answer is replayed whole, or refused as not kept; it is never cut, and the effect never repeated."""
    yield from trial.start_count()
    request = trial.request(next(trial.keys), url=trial.target.stream_url)
    first = yield from trial.send("a request", request)
    if trial.target.stream_url is None and not first.chunked:
        trial.does_not_apply(MEMORY, "the answer is not streamed (--stream-url names an endpoint whose answer is)")
        return
    if not first.chunked:  # a guard may buffer a stream until it is settled
        trial.note("the streamed answer came in one piece")
    second = yield from trial.until_answered("the same again", request)
    effects = yield from trial.effects()
    if not first.good:
        trial.cannot_tell(MEMORY, f"the stream was answered {first.described}")
    elif not first.body:
        trial.cannot_tell(MEMORY, "the streamed answer was empty: its replay cannot be compared")
    elif second.good and (differs := difference(first, second)):
        trial.wrong(MEMORY, f"a streamed answer is not replayed as it was: {differs}")
    elif trial.tally.probed and trial.countable and effects > 1:
        trial.wrong(MEMORY, f"a request with a streamed answer, sent twice with one key, made {effects_text(effects)}")
    elif not second.good and not second.refused and not second.busy:
        trial.wrong(MEMORY, f"the repetition of a streamed answer is answered {second.described}")
    elif not second.good:
        trial.note(f"a streamed answer is not replayed; its repetition is answered {second.status}")
    elif not trial.countable:
        trial.cannot_tell(MEMORY, UNCOUNTED)
