"""Books: counts add up and end after 14 days; findings are kept once, listed in pages, and accepted by people."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from samekey.core.books import (
    ACCEPTANCE_MAX_CHARS,
    COUNTS_ADDED_MAX,
    EVIDENCE_MAX_CHARS,
    PROPOSAL_MAX_CHARS,
    SEVERITIES,
    TITLE_MAX_CHARS,
    Count,
    Finding,
    FindingQuery,
    finding_id,
    kept_minutes,
)
from samekey.core.errors import Misconfigured
from samekey.core.key import NAME_MAX_BYTES
from samekey.core.record import ATTRIBUTE_MAX_CHARS, Audit
from samekey.testing.stores.keeping import ODD_TEXT
from samekey.testing.stores.scene import Scene, Steps, scenario
from samekey.testing.stores.steps import Invoke, Together

WRITERS = 6
DAY = 24 * 3600.0


def _now(scene: Scene) -> Steps[float]:
    """The time by the store's clock."""
    held = yield from scene.held("what time is it")
    return held.created_at


def _minute(scene: Scene) -> Steps[int]:
    now = yield from _now(scene)
    return (
        int(now // 60) + 10
    )  # ahead, as the clock of another machine may be: so even a new clock has minutes before it


def _counted(scene: Scene, since: int, until: int, *, on: int = 0) -> Steps[list[Count]]:
    """The counts of this scenario's operations, from one minute to another."""
    found: list[Count] = yield from Invoke("counts", (since * 60.0, until * 60.0), on)
    return [one for one in found if one.operation.startswith(scene.operation)]


def _finding(scene: Scene, text: str = "one", *, at: float = 1e9, **changes: Any) -> Finding:
    whole = Finding(
        id=finding_id("late", scene.operation, text),
        at=at,
        kind="late",
        severity="high",
        operation=scene.operation,
        tenant="acme",
        digest="ab" * 16,
        title=f"{text}: a late success",
        evidence='{"token": 7}',
        proposal="compare it with the provider's books",
        source="guard",
    )
    return replace(whole, **changes)


def _found(scene: Scene, *, on: int = 0, **asked: Any) -> Steps[list[Finding]]:
    query = FindingQuery(**{"operation": scene.operation, **asked})
    found: list[Finding] = yield from Invoke("findings", (query,), on)
    return found


def _accepting(finding: Finding | str, *, by: str = "ada", why: str = "known", until: float, on: int = 0) -> Invoke:
    id = finding if isinstance(finding, str) else finding.id
    return Invoke("accept_finding", (id,), on, (("by", by), ("why", why), ("until", until)))


def _audit(scene: Scene) -> Steps[list[Audit]]:
    entries: list[Audit] = yield from Invoke("audit", (100,))
    return [one for one in entries if one.operation == scene.operation]


# -- counts ----------------------------------------------------------------------------------------------


@scenario
def counts_of_several_writers_add_up(scene: Scene) -> Steps[None]:
    """A minute that is there already grows, whichever connection counted it, and so does one named twice in a list."""
    minute = yield from _minute(scene)
    new = Count(minute, scene.operation, "web", "new", 2)
    replayed = Count(minute, scene.operation, "web", "replayed", 1)
    yield from Invoke("add_counts", ([new, replayed, new],))
    yield from Invoke("add_counts", ([replace(new, number=3)],), 1)

    expected = [replace(new, number=7), replayed]
    assert (yield from _counted(scene, minute, minute + 1)) == expected
    assert (yield from _counted(scene, minute, minute + 1, on=1)) == expected


@scenario
def counts_of_writers_at_one_time_add_up(scene: Scene) -> Steps[None]:
    """Writers of the same minute lose nothing to each other, in whatever order each one names the series."""
    minute = yield from _minute(scene)
    counts = [Count(minute, scene.operation, f"source {number}", "new", 1) for number in range(8)]
    lists = [counts[::-1] if writer % 2 else counts for writer in range(WRITERS)]

    yield from Together(tuple((Invoke("add_counts", (each,), at % 2),) for at, each in enumerate(lists)))

    assert (yield from _counted(scene, minute, minute + 1)) == [replace(one, number=WRITERS) for one in counts]


@scenario
def counts_are_read_by_the_minute(scene: Scene) -> Steps[None]:
    """Oldest minute first; a minute that the asked time touches is counted whole, all others are left out."""
    minute = yield from _minute(scene)
    counts = [Count(minute - 4 + number, scene.operation, "", "new", number + 1) for number in range(5)]
    yield from Invoke("add_counts", (counts[::-1],))

    assert (yield from _counted(scene, minute - 4, minute + 1)) == counts
    assert (yield from _counted(scene, minute - 3, minute - 1)) == counts[1:3]
    assert (yield from _counted(scene, minute + 1, minute + 60)) == []
    touched: list[Count] = yield from Invoke("counts", (minute * 60 - 61.0, minute * 60 + 1.0))
    assert [one for one in touched if one.operation == scene.operation] == counts[2:]
    whole: list[Count] = yield from Invoke("counts", (0.0, float("inf")))
    assert [one for one in whole if one.operation == scene.operation] == counts


@scenario
def counts_outside_the_time_they_are_kept_for_are_not_kept(scene: Scene) -> Steps[None]:
    """Older than 14 days, or of a clock that is days ahead: forgotten, and the others of the same list are there."""
    first, last = kept_minutes((yield from _now(scene)))
    kept = [Count(minute, scene.operation, "", "new", 1) for minute in (max(first + 2, 0), last - 2)]
    ahead = Count(last + 60, scene.operation, "", "new", 1)
    old = [Count(first - 60, scene.operation, "", "new", 1)] if first >= 60 else []  # none by a clock that is new
    for _ in range(2):
        yield from Invoke("add_counts", ([*old, *kept, ahead],))

    assert (yield from _counted(scene, 0, last + 120)) == [replace(one, number=2) for one in kept]


@scenario
def a_list_of_counts_has_a_limit(scene: Scene) -> Steps[None]:
    """A full list is one addition; a longer one is refused, and adds nothing; an empty one is nothing."""
    minute = yield from _minute(scene)
    full = [Count(minute, scene.operation, f"{number:04}", "new", 1) for number in range(COUNTS_ADDED_MAX)]
    yield from Invoke("add_counts", ([],))
    yield from Invoke("add_counts", (full,))
    try:
        yield from Invoke("add_counts", ([*full, full[0]],))
    except Misconfigured:
        pass
    else:
        raise AssertionError("a list of counts above the limit was taken")

    assert (yield from _counted(scene, minute, minute + 1)) == full


@scenario
def every_name_is_counted_by_itself(scene: Scene) -> Steps[None]:
    """No folding, no trimming, no cutting short: each text is a series of its own."""
    minute = yield from _minute(scene)
    names = ["", "a", "A", "a ", " a", "á", "null", "0", ODD_TEXT, "\N{PILE OF POO}" * ATTRIBUTE_MAX_CHARS]
    room = NAME_MAX_BYTES - len(scene.operation)
    counts = [Count(minute, scene.operation, name, "new", at + 1) for at, name in enumerate(names)]
    counts += [Count(minute, scene.operation + more, "", "new", 9) for more in (" ", "-x", "x" * room)]
    counts.append(Count(minute, scene.operation, "", "store_down", 10**12))
    yield from Invoke("add_counts", (counts,))

    assert (yield from _counted(scene, minute, minute + 1, on=1)) == sorted(counts)


# -- findings --------------------------------------------------------------------------------------------


@scenario
def a_finding_is_new_once(scene: Scene) -> Steps[None]:
    """The second one with the same id changes nothing, whatever else it holds, over every connection."""
    finding = _finding(scene)
    replies = []
    for on, again in ((0, finding), (0, finding), (1, replace(finding, title="another title", at=2e9))):
        replies.append((yield from Invoke("keep_finding", (again,), on)))

    assert replies == [True, False, False]
    assert (yield from _found(scene, on=1)) == [finding]


@scenario
def a_finding_that_several_find_at_one_time_is_new_once(scene: Scene) -> Steps[None]:
    """One of them keeps it, and the others find it there."""
    finding = _finding(scene)
    lane = tuple((Invoke("keep_finding", (finding,), writer % 2),) for writer in range(WRITERS))
    replies = yield from Together(lane)

    assert sorted(reply for (reply,) in replies) == [False] * (WRITERS - 1) + [True]
    assert (yield from _found(scene)) == [finding]


@scenario
def findings_are_listed_newest_first_in_pages(scene: Scene) -> Steps[None]:
    """In the order of their times, then of their ids; the last place of a page leads to the next one, without gaps."""
    findings = [_finding(scene, f"{number}", at=1e9 + number // 3 + 0.125) for number in range(7)]
    for finding in findings:
        yield from Invoke("keep_finding", (finding,))
    whole = sorted(findings, key=lambda one: one.place, reverse=True)

    assert (yield from _found(scene)) == whole
    assert (yield from _found(scene, limit=0)) == []
    paged: list[Finding] = []
    before = None
    for _ in range(4):
        page = yield from _found(scene, limit=2, before=before)
        assert len(page) <= 2
        paged += page
        before = page[-1].place
    assert paged == whole
    assert (yield from _found(scene, limit=2, before=before)) == []


@scenario
def findings_are_filtered(scene: Scene) -> Steps[None]:
    """By kind, severity, operation and whether one is accepted, each alone and all together."""
    now = yield from _now(scene)
    other = Scene(scene.short)
    findings = [_finding(scene, severity, severity=severity, at=1e9 + at) for at, severity in enumerate(SEVERITIES)]
    findings.append(_finding(scene, "kind", kind="late ", at=1e9 + 10))
    for finding in (*findings, _finding(other)):
        yield from Invoke("keep_finding", (finding,))
    accepted = yield from _accepting(findings[1], until=now + DAY)

    low, medium, high, critical, kind = findings
    assert (yield from _found(scene, severity="critical")) == [critical]
    assert (yield from _found(scene, kind="late ")) == [kind]
    assert (yield from _found(scene, kind="LATE")) == []
    assert (yield from _found(scene, accepted=True)) == [accepted]
    assert (yield from _found(scene, accepted=False)) == [kind, critical, high, low]
    assert (yield from _found(scene, accepted=False, kind="late", severity="low")) == [low]
    assert (yield from _found(other)) == [_finding(other)]
    assert accepted == medium.accepted("ada", "known", now + DAY)


@scenario
def a_finding_is_accepted_with_name_reason_and_end(scene: Scene) -> Steps[None]:
    """Every connection sees it, and the audit log has the person; a later acceptance replaces the earlier one."""
    now = yield from _now(scene)
    finding = _finding(scene)
    yield from Invoke("keep_finding", (finding,))

    first = yield from _accepting(finding, by="ada", why="a test order", until=now + DAY)
    seen = yield from _found(scene, on=1)
    again = yield from _accepting(finding, by="grace", why="until the migration", until=now + 2 * DAY, on=1)

    assert first == finding.accepted("ada", "a test order", now + DAY)
    assert seen == [first]
    assert again == finding.accepted("grace", "until the migration", now + 2 * DAY)
    assert (yield from _found(scene)) == [again]
    entries = yield from _audit(scene)
    assert [(one.who, one.action, one.before, one.after, one.why) for one in entries] == [
        ("grace", "accept", "accepted", "accepted", "until the migration"),
        ("ada", "accept", "", "accepted", "a test order"),
    ]
    assert all((one.operation, one.tenant, one.text) == (scene.operation, "acme", finding.id) for one in entries)
    assert all(one.at >= now for one in entries)


@scenario
def an_acceptance_ends(scene: Scene) -> Steps[None]:
    """Past its end the finding is open again, and still shows who had accepted it."""
    now = yield from _now(scene)
    finding = _finding(scene)
    yield from Invoke("keep_finding", (finding,))
    ended = yield from _accepting(finding, until=now - 1)

    assert (yield from _found(scene, accepted=True)) == []
    assert (yield from _found(scene, accepted=False)) == [ended]
    assert ended.accepted_by == "ada"


@scenario
def what_cannot_be_accepted_changes_nothing(scene: Scene) -> Steps[None]:
    """An unknown finding is answered with None; without name, reason and end nothing is written."""
    now = yield from _now(scene)
    finding = _finding(scene)
    yield from Invoke("keep_finding", (finding,))

    assert (yield from _accepting(finding_id("late", scene.operation, "unknown"), until=now + DAY)) is None
    for missing in ({"by": ""}, {"why": ""}, {"until": float("inf")}, {"why": "x" * (ACCEPTANCE_MAX_CHARS + 1)}):
        given: dict[str, Any] = {"until": now + DAY, **missing}
        try:
            yield from _accepting(finding, **given)
        except Misconfigured:
            continue
        raise AssertionError(f"an acceptance with {missing} was taken")

    assert (yield from _found(scene)) == [finding]
    assert (yield from _audit(scene)) == []


@scenario
def every_finding_survives(scene: Scene) -> Steps[None]:
    """Any text and any time comes back as it went in, up to the longest."""
    now = yield from _now(scene)
    snowmen = "\N{SNOWMAN}" * NAME_MAX_BYTES
    findings = [
        _finding(scene, "odd", title=ODD_TEXT, proposal=ODD_TEXT, source=ODD_TEXT, digest="", tenant=None),
        _finding(scene, "none", title=" ", proposal="", source="", evidence="[]", tenant="\N{SNOWMAN}" * 85),
        _finding(
            scene,
            "long",
            at=1e9 + 1 / 3,
            title=snowmen[:TITLE_MAX_CHARS],
            evidence=f'"{"ü" * (EVIDENCE_MAX_CHARS - 2)}"',
            proposal="\N{PILE OF POO}" * PROPOSAL_MAX_CHARS,
            source=snowmen,
        ),
    ]
    for finding in findings:
        yield from Invoke("keep_finding", (finding,))
    accepted = yield from _accepting(
        findings[2], by=ODD_TEXT, why="\N{SNOWMAN}" * ACCEPTANCE_MAX_CHARS, until=now + 1 / 3
    )

    found = yield from _found(scene, on=1)
    assert {one.id: one for one in found} == {one.id: one for one in (*findings[:2], accepted)}
    entry, *_ = yield from _audit(scene)
    assert (entry.who, entry.why) == (ODD_TEXT, "\N{SNOWMAN}" * ACCEPTANCE_MAX_CHARS)


# -- actions that change no record -------------------------------------------------------------------------


@scenario
def an_action_that_changed_nothing_is_in_the_audit_log(scene: Scene) -> Steps[None]:
    """With the store's time, among the other entries, newest first; the texts as they were given."""
    before = yield from _now(scene)
    entry = Audit(0.0, "ada", "resolve", scene.operation, "acme", ODD_TEXT, "in_doubt", "refused", "it moved on")
    yield from Invoke("note_action", (entry,))
    yield from Invoke("note_action", (entry._replace(tenant=None, text="", action="sign_in", before=""),))
    entries = yield from _audit(scene)
    assert len(entries) == 2, entries
    second, first = entries
    assert before - 1 <= first.at <= second.at, (before, first.at, second.at)
    assert first._replace(at=0.0) == entry, first
    assert second.tenant is None and second.action == "sign_in", second
