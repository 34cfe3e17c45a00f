"""The examination: the scenarios in their order, and the finding of each."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from importlib.metadata import version

from samekey.prove import _addresses, _claims, _intents, _memories
from samekey.prove._client import Budget, Client, OutOfBudget, Probe, ProbeFailed, Unreachable
from samekey.prove._report import Finding, Report, Standing
from samekey.prove._steps import Target
from samekey.prove._trial import Play, Tally, Trial


@dataclass(frozen=True, slots=True)
class Scenario:
    """A way to try an endpoint, the assumptions it tries, and what is right."""

    play: Callable[[Trial], Play]
    assumptions: tuple[str, ...]
    right: str


# Cheap scenarios first: an endpoint without any guard is found after five requests.
SCENARIOS = {
    "two-keys": Scenario(lambda trial: _two_keys(trial), ("Intent",), "two keys are two operations"),
    "in-sequence": Scenario(_claims.in_sequence, ("Claim", "Memory"), "one key twice: one effect, one answer"),
    "in-parallel": Scenario(_claims.in_parallel, ("Claim",), "one key, many at once: one effect"),
    "another-body": Scenario(_intents.another_body, ("Intent",), "refused, and not done"),
    "reordered-fields": Scenario(_intents.reordered_fields, ("Intent",), "the same intent"),
    "volatile-headers": Scenario(_intents.volatile_headers, ("Intent",), "the same intent"),
    "quoted-and-bare": Scenario(_intents.quoted_and_bare, ("Intent",), '"k" and k are one key'),
    "similar-keys": Scenario(_intents.similar_keys, ("Intent",), "keys that are nearly equal are two keys"),
    "another-path": Scenario(_addresses.another_path, ("Intent",), "never given the answer to the first"),
    "another-query": Scenario(_addresses.another_query, ("Intent",), "never given the answer to the first"),
    "another-method": Scenario(_addresses.another_method, ("Intent",), "never given the answer to the first"),
    "another-principal": Scenario(_intents.another_principal, ("Intent",), "keys of two principals are two keys"),
    "no-key": Scenario(_intents.no_key, ("Intent",), "two requests without a key are two"),
    "malformed-keys": Scenario(_claims.malformed_keys, ("Claim",), "refused, or guarded; never ignored"),
    "doubled-keys": Scenario(_claims.doubled_keys, ("Claim",), "two keys in one request are refused"),
    "unfinished-body": Scenario(_claims.unfinished_body, ("Claim",), "half a request claims nothing"),
    "oversized-body": Scenario(_claims.oversized_body, ("Claim",), "refused, or guarded; never run without the key"),
    "replayed-cookie": Scenario(_memories.replayed_cookie, ("Memory",), "a replay sets no cookie of the first answer"),
    "streamed-answer": Scenario(_memories.streamed_answer, ("Memory",), "replayed whole, or refused as not kept"),
    "after-a-timeout": Scenario(_memories.after_a_timeout, ("Boundary",), "the client gave up and asked: one effect"),
    "after-a-failure": Scenario(
        _memories.after_a_failure, ("Memory", "Boundary"), "never done twice; what was not done can still be done"
    ),
}


def examine(
    target: Target,
    *,
    probe: Probe | None = None,
    budget: Budget | None = None,
    timeout_seconds: float = 10.0,
    break_commands: tuple[str, ...] = (),
    heal_command: str | None = None,
    on_scenario: Callable[[str], None] = lambda name: None,
) -> Report:
    """Play every scenario that is not skipped; `on_scenario` is called with the name of each before it begins.

    Makes real effects at the target. Raises Unreachable if the target does not answer. An ordinary request whose status
    is not 2xx or 3xx ends the examination: then everything is unknown, and the report names the reason.
    """
    probe = probe or Probe()
    budget = budget or Budget()
    client = Client(target, probe, budget, timeout_seconds, break_commands, heal_command)
    client.greet()
    tally = Tally(probed=bool(probe))
    keys = _keys(secrets.token_hex(8))
    findings: list[Finding] = []
    over = ""  # why no later scenario can be tried
    for name, scenario in SCENARIOS.items():
        if name in target.skip and name != "two-keys":
            findings += (Finding(name, one, Standing.SKIPPED, "skipped") for one in scenario.assumptions)
            continue
        trial = Trial(target, tally, keys)
        if over:
            trial.cannot_tell(scenario.assumptions, f"not tried: {over}")
        else:
            on_scenario(name)
            over = _play(trial, scenario, client)
        findings += _found(name, scenario, trial)
        if name == "two-keys":
            over = over or _cannot_begin(trial)
    # A query may hold a secret.
    return Report(
        url=target.url.partition("?")[0],
        findings=tuple(findings),
        counted_by=str(probe),
        requests=budget.used_requests,
        examined_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        version=version("samekey"),
    )


def _play(trial: Trial, scenario: Scenario, client: Client) -> str:
    """Carry out the scenario; return why no later scenario can be tried, or ""."""
    steps = _to_its_end(trial, scenario)
    reply = None
    try:
        while True:
            step = steps.send(reply)
            reply = client.perform(step)
            if not trial.tally.latency_seconds:
                trial.tally.latency_seconds = client.latency_seconds
    except StopIteration:
        return f"ordinary requests are answered {trial.refusing}" if trial.refusing else ""
    except (OutOfBudget, ProbeFailed) as ended:
        trial.cannot_tell(scenario.assumptions, ended.message)
        return ended.message
    finally:
        trouble = client.leave_in_order()
        if trouble:
            trial.cannot_tell(scenario.assumptions, trouble)


def _to_its_end(trial: Trial, scenario: Scenario) -> Play:
    yield from scenario.play(trial)
    if trial.unserved and trial.countable:
        yield from trial.still_serves()


def _two_keys(trial: Trial) -> Play:
    """Two ordinary requests: are effects counted, and are two keys two operations? All other scenarios rely on this."""
    tally = trial.tally
    counts: list[Fraction] = []
    names: list[bytes] = []
    for what in ("an ordinary request", "another, under another key"):
        yield from trial.start_count()
        reply = yield from trial.send(what, trial.request(next(trial.keys)))
        if not reply.status:
            raise Unreachable(f"{trial.target.url} does not answer: {reply.trouble}")
        if not reply.good:
            hint = "; it may want its keys quoted: --quoted" if reply.status == 400 and not trial.target.quoted else ""
            trial.cannot_tell("Intent", f"{what} is answered {reply.status}: nothing can be examined{hint}")
            return
        counts.append((yield from trial.effects()))
        names.append(trial.name_of(reply))
    first, second = counts
    if not tally.probed:
        tally.countable = names[0] != names[1]
        if not tally.countable:
            trial.cannot_tell("Intent", "two operations are answered alike: give --count-url or --count-cmd")
    elif first <= 0:
        trial.cannot_tell("Intent", "the probe did not count an ordinary request")
    elif second == 0:
        trial.wrong("Intent", "a request under another key was swallowed")
    elif first != second:
        trial.cannot_tell("Intent", f"the probe counted {first}, then {second}: something else is counted too")
    else:
        tally.unit, tally.countable = int(first), True


def _cannot_begin(trial: Trial) -> str:
    """Return why the other scenarios cannot be tried, or "". Answers can be compared even without a count."""
    if trial.countable or (not trial.tally.probed and trial.replies[-1].good):
        return ""
    return next((text for _, text in [*trial.unknown, *trial.broken]), "")


def _found(name: str, scenario: Scenario, trial: Trial) -> Iterator[Finding]:
    for assumption in scenario.assumptions:
        broken = [text for one, text in trial.broken if one == assumption]
        unknown = [text for one, text in trial.unknown if one == assumption]
        not_applicable = [text for one, text in trial.not_applicable if one == assumption]
        if broken and (not trial.inconclusive or trial.most_effects > 1):
            standing, evidence = Standing.BROKEN, "; ".join(dict.fromkeys(broken))
        elif trial.inconclusive:
            standing, evidence = Standing.UNKNOWN, trial.inconclusive
        elif unknown:
            standing, evidence = Standing.UNKNOWN, "; ".join(dict.fromkeys(unknown))
        elif not_applicable:
            standing, evidence = Standing.SKIPPED, "; ".join(not_applicable)
        else:
            standing, evidence = Standing.HOLDS, scenario.right
        yield Finding(name, assumption, standing, evidence, tuple(trial.notes), tuple(trial.story))


def _keys(run: str) -> Iterator[str]:
    """Yield keys that were never used: each examination has 64 random bits of its own."""
    number = 0
    while True:
        number += 1
        yield f"samekey-prove-{run}-{number}"
