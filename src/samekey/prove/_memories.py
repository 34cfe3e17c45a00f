"""Memory and Boundary: what a key remembers, and what it does when nobody saw how it ended."""

from __future__ import annotations

from samekey.prove._steps import Break, Heal
from samekey.prove._trial import UNTOLD, Play, Trial, difference, told_effects

CLAIM, MEMORY, BOUNDARY = "Claim", "Memory", "Boundary"
NEEDS_PROBE = "an answer is lost here, so only a probe can count: give --count-url or --count-cmd"


def after_a_timeout(trial: Trial) -> Play:
    """The client gave up; the server may not have. Whoever asks again must not make it happen twice."""
    if not (trial.tally.probed and trial.telling):
        trial.cannot_tell(BOUNDARY, NEEDS_PROBE)
        return
    for told, after in (("at once", 0.0), ("in the middle", trial.tally.latency_seconds / 2)):
        yield from trial.start_count()
        request = trial.request(next(trial.keys))
        yield from trial.hang_up(f"a request whose client gives up {told}", request, after=after)
        reply = yield from trial.until_answered("the same again", request)
        again = yield from trial.until_answered("and again", request)
        effects = yield from trial.settled_effects()
        if effects > 1:
            trial.wrong(BOUNDARY, f"a client that gave up {told} and asked again made {told_effects(effects)}")
        elif reply.good and effects < 1:
            trial.wrong(
                BOUNDARY,
                f"a client that gave up {told} was then answered {reply.status}, with {told_effects(effects)}",
            )
        elif reply.good and (differs := difference(reply, again)):
            trial.wrong(BOUNDARY, f"after a client gave up {told}, two answers differ: {differs}")
        elif reply.busy and effects < 1 and not reply.doubtful:
            stays = f"{reply.status} for {trial.target.patience_seconds:g} s, with {told_effects(effects)}"
            trial.cannot_tell(BOUNDARY, f"after a client gave up {told} the key answers {stays}: stuck?")
        elif reply.busy:
            trial.note(
                f"after a client gave up {told} the key answers {reply.status}; so far there is {told_effects(effects)}"
            )
        elif not reply.good:
            trial.wrong(BOUNDARY, f"after a client gave up {told}, the same again is answered {reply.told}")


def after_a_failure(trial: Trial) -> Play:
    """What failed may have happened. A retry never does it twice; and what did not happen can still be done."""
    target = trial.target
    if not (target.fail_headers or target.breaks):
        for assumption in (MEMORY, BOUNDARY):
            trial.cannot_tell(assumption, "not tried: give --fail-header, or --break-cmd and --heal-cmd")
        return
    if not (trial.tally.probed and trial.telling):
        for assumption in (MEMORY, BOUNDARY):
            trial.cannot_tell(assumption, NEEDS_PROBE)
        return
    ways = [*target.fail_headers, *range(target.breaks)]
    for way in ways:
        yield from _one_failure(trial, way)


def _one_failure(trial: Trial, way: tuple[str, str] | int) -> Play:
    told = f"broken by command {way + 1}" if isinstance(way, int) else ": ".join(way)
    yield from trial.start_count()
    key = next(trial.keys)
    request = trial.request(key)
    if isinstance(way, int):
        trouble: str = yield Break(way)
        if trouble:
            for assumption in (MEMORY, BOUNDARY):
                trial.cannot_tell(assumption, f"not tried ({told}): {trouble}")
            yield Heal()  # the command may have broken something before it failed
            return
        failed = yield from trial.send(f"a request that fails ({told})", request, fails=True)
        yield Heal()
    else:
        failing = trial.request(key, more=(way,))
        failed = yield from trial.send(f"a request that fails ({told})", failing, fails=True)
    at_first = yield from trial.settled_effects()
    retry = yield from trial.until_answered("the same again, in good order", request)
    again = yield from trial.until_answered("and again", request)
    effects = yield from trial.settled_effects()
    if failed.good:
        for assumption in (MEMORY, BOUNDARY):
            trial.cannot_tell(assumption, f"{told} did not make the request fail ({failed.status})")
        return
    when = "after it had taken effect" if at_first else "before it took effect"
    if effects > 1 and at_first:
        trial.wrong(
            BOUNDARY, f"a request failed {when} ({told}, {failed.status}); retries made it {told_effects(effects)}"
        )
    elif effects > 1:
        trial.wrong(MEMORY, f"a request failed {when} ({told}, {failed.status}); its retries were done {effects} times")
    elif retry.good and effects < 1:
        trial.wrong(
            BOUNDARY, f"after a failure ({told}) a retry is answered {retry.status}, with {told_effects(effects)}"
        )
    if at_first or effects > 1:
        return
    if retry.good:
        if differs := difference(retry, again):
            trial.wrong(MEMORY, f"after a failure ({told}) and a success, the answer does not stay: {differs}")
    elif retry.busy and retry.doubtful:
        trial.note(f"after a failure {when} ({told}) the key answers {retry.status}, and says that a person decides")
    elif retry.busy:  # a doubt that nobody can know of is a key that is lost
        patience = f"for {trial.target.patience_seconds:g} s"
        trial.cannot_tell(MEMORY, f"after a failure {when} ({told}) the key answers {retry.status} {patience}: stuck?")
    elif not difference(failed, retry):
        if trial.target.failures_kept:
            trial.note(f"the failure ({told}, {failed.status}) is kept and replayed, as the endpoint documents")
        else:
            trial.wrong(
                MEMORY, f"a failure that did nothing ({told}, {failed.status}) is replayed after its cause is gone"
            )
    else:
        trial.wrong(MEMORY, f"after a failure ({told}, {failed.status}) a retry is answered {retry.told}")


def replayed_cookie(trial: Trial) -> Play:
    """A cookie is for the client that got the answer: replayed, it can hand an old session to another browser.

    A cookie that every answer sets to the same value is no memory of the key. So a request under another key shows
    which values are new for each answer.
    """
    request = trial.request(next(trial.keys))
    first = yield from trial.send("a request", request)
    if not first.good:
        trial.cannot_tell(MEMORY, f"an ordinary request was answered {first.told}")
        return
    if not first.cookies:
        trial.does_not_apply(MEMORY, "the answer sets no cookie")
        return
    again = yield from trial.send("the same again", request)
    fresh = yield from trial.send("a request under another key", trial.request(next(trial.keys)))
    if not again.good or not fresh.good:
        bad = fresh if again.good else again
        trial.cannot_tell(MEMORY, f"a request was answered {bad.told}")
        return
    kept = again.cookies.items() & first.cookies.items()
    if named := sorted(name for name, _ in kept - fresh.cookies.items()):
        trial.wrong(MEMORY, f"the replay sets the cookie of the first answer again: {', '.join(named)}")


def streamed_answer(trial: Trial) -> Play:
    """An answer in pieces is replayed whole, or said to be not kept; never half of it, never done again."""
    yield from trial.start_count()
    request = trial.request(next(trial.keys), url=trial.target.stream_url)
    first = yield from trial.send("a request", request)
    if trial.target.stream_url is None and not first.chunked:
        trial.does_not_apply(MEMORY, "the answer is not streamed (--stream-url names an endpoint whose answer is)")
        return
    if not first.chunked:  # a guard may hold a stream back until it is settled
        trial.note("the streamed answer came in one piece")
    second = yield from trial.until_answered("the same again", request)
    effects = yield from trial.effects()
    if not first.good:
        trial.cannot_tell(MEMORY, f"the stream was answered {first.told}")
    elif not first.body:
        trial.cannot_tell(MEMORY, "the streamed answer came empty: what is replayed of it cannot be told")
    elif second.good and (differs := difference(first, second)):
        trial.wrong(MEMORY, f"a streamed answer is not replayed as it was: {differs}")
    elif trial.tally.probed and trial.telling and effects > 1:
        trial.wrong(MEMORY, f"a request with a streamed answer, sent twice with one key, made {told_effects(effects)}")
    elif not second.good and not second.refused and not second.busy:
        trial.wrong(MEMORY, f"the repetition of a streamed answer is answered {second.told}")
    elif not second.good:
        trial.note(f"a streamed answer is not replayed; its repetition is answered {second.status}")
    elif not trial.telling:
        trial.cannot_tell(MEMORY, UNTOLD)
