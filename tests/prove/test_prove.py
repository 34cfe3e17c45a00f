"""The examiner names what is wrong with an endpoint, and finds nothing wrong with one that is right."""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest

import samekey
from samekey import Misconfigured
from samekey.prove import (
    SCENARIOS,
    Budget,
    Finding,
    NotYours,
    Probe,
    Report,
    Standing,
    Target,
    Unreachable,
    check_ours,
    examine,
)
from tests.prove.shops import HABITS, MISTAKES, opened

ALICE = (("Authorization", "Bearer alice-secret"),)
BOB = (("Authorization", "Bearer bob-secret"),)
FAILING = (("X-Fail", "before"), ("X-Fail", "after"))
GET = f'{sys.executable} -c "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"'
POST = f"{sys.executable} -c \"import sys, urllib.request as u; u.urlopen(sys.argv[1], b'').read()\""


def aim(url, path="/charges", **options):
    quick = {"oversize_bytes": 2 << 20, "patience_seconds": 0.15, "settle_seconds": 0.01, "rounds": 1}
    whole = {"headers": ALICE, "other_headers": BOB, "fail_headers": FAILING, "stream_url": f"{url}/streamed"}
    body = b'{"amount": 200, "currency": "usd"}'
    return Target(url=url + path, **{"body": body, **quick, **whole, **options})


def prove(mistake="", *, count=True, budget=None, **options) -> Report:
    with opened(mistake) as (url, _):
        probe = Probe(url=f"{url}/count") if count else None
        return examine(aim(url, **options), probe=probe, budget=budget)


def broken(report):
    return {(finding.scenario, finding.assumption) for finding in report.findings if finding.standing == "broken"}


def unknown(report):
    return {finding.scenario for finding in report.findings if finding.standing is Standing.UNKNOWN}


def test_an_endpoint_that_keeps_its_promises_holds_all_four():
    report = prove()

    assert not broken(report)
    assert report.complete
    assert set(report.to_dict()["assumptions"].values()) == {"holds"}


# What is found with each mistake: exactly this, so that a scenario which cries wolf fails here as well.
NAMED = {
    "bodies are not compared": {("another-body", "Intent")},
    "check, then act": {("in-parallel", "Claim"), ("after-a-timeout", "Boundary")},
    "the key is deleted on an error": {("after-a-failure", "Boundary")},
    "a success after a failure is forgotten": {("after-a-failure", "Memory")},
    "a decline is remembered": {("after-a-failure", "Memory")},
    "tenants share keys": {("another-principal", "Intent")},
    "the status is not kept": {
        *{("in-sequence", "Memory"), ("streamed-answer", "Memory"), ("after-a-failure", "Memory")},
        ("after-a-timeout", "Boundary"),
    },
    "large bodies are not guarded": {("oversized-body", "Claim")},
    "bad keys are ignored": {("malformed-keys", "Claim")},
    "the first of two keys is taken": {("doubled-keys", "Claim")},
    "quotes belong to the key": {("quoted-and-bare", "Intent")},
    "the browser belongs to the intent": {("volatile-headers", "Intent")},
    "the key is claimed before the body is there": {("unfinished-body", "Claim")},
    "equal requests without a key are one": {("no-key", "Intent")},
    "streams are not kept": {("streamed-answer", "Memory")},
    "losers are answered 500": {("in-parallel", "Claim"), ("after-a-timeout", "Boundary")},
    "keys are compared without case": {("similar-keys", "Intent")},
    "keys are cut at 64 characters": {("similar-keys", "Intent")},
    "dashes are dropped from keys": {("similar-keys", "Intent")},
    "cookies are replayed": {("replayed-cookie", "Memory")},
    "the path is not compared": {("another-path", "Intent")},
    "the query is not compared": {("another-query", "Intent")},
    "the method is not compared": {("another-method", "Intent")},
}


# Found only if two requests met in the server; on a busy machine they may not. Those sent at once meet in some round.
BY_CHANCE = {("after-a-timeout", "Boundary")}


@pytest.mark.parametrize("mistake", NAMED)
def test_a_mistake_is_named_and_nothing_else(mistake):
    report = prove(mistake, rounds=10 if NAMED[mistake] & BY_CHANCE else 1)

    assert NAMED[mistake] - BY_CHANCE <= broken(report) <= NAMED[mistake]
    assert report.complete


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_that_loses_nothing_is_not_called_a_mistake(habit):
    report = prove(habit)

    assert not broken(report)
    assert report.complete


def evidence(report, scenario):
    return next(one.evidence for one in report.findings if one.scenario == scenario)


@pytest.mark.parametrize(
    ("mistake", "what"),
    [
        ("keys are compared without case", "in upper case"),
        ("keys are cut at 64 characters", "the last of 300 characters"),
        ("dashes are dropped from keys", "without its dashes"),
    ],
)
def test_which_keys_are_taken_for_one_is_named(mistake, what):
    """The second of two purchases was swallowed: the report says which pair of keys did it."""
    found = evidence(prove(mistake), "similar-keys")

    assert what in found
    assert "taken for the first key" in found


@pytest.mark.parametrize("mistake", ["keys are compared without case", "the query is not compared"])
def test_mistakes_of_keys_and_addresses_are_found_without_a_probe(mistake):
    assert broken(prove(mistake, count=False)) == NAMED[mistake]


def test_a_replayed_cookie_is_named_without_its_value():
    report = prove("cookies are replayed")
    found = evidence(report, "replayed-cookie")

    assert "visit" in found
    assert "theme" not in found
    assert "HttpOnly" not in str(report.to_dict())


def test_a_path_that_is_not_served_shows_nothing_and_the_report_asks_for_another():
    report = prove("only known paths are served", stream_url=None)

    assert unknown(report) == {"another-path"}
    assert "--other-url" in evidence(report, "another-path")


def test_a_guard_in_front_of_the_routes_that_ignores_the_path_is_found_on_a_path_that_is_not_served():
    assert broken(prove("the path is not compared", stream_url=None)) == {("another-path", "Intent")}


def test_the_other_address_of_the_user_is_tried():
    with opened("the path is not compared") as (url, shop):
        report = examine(
            aim(url, stream_url=None, other_url=f"{url}/refunds", skip=frozenset(SCENARIOS) - {"another-path"}),
            probe=Probe(url=f"{url}/count"),
        )

    assert broken(report) == {("another-path", "Intent")}
    assert {path for path, _ in shop.seen} == {"/charges", "/refunds"}


def test_a_part_that_is_done_again_is_no_rounding_error():
    """One row of twenty: whatever a replay does again is done again, in every scenario that repeats."""
    report = prove("a replay writes one row of twenty again")

    assert {("in-sequence", "Claim"), ("in-parallel", "Claim"), ("reordered-fields", "Intent")} <= broken(report)
    assert "21/20 effects" in next(one.evidence for one in report.findings if one.scenario == "in-sequence")


def test_an_endpoint_without_keys_breaks_all_four():
    report = prove("no key at all")

    assert report.broken == ("Claim", "Intent", "Memory", "Boundary")
    assert ("in-sequence", "Claim") in broken(report)


TRIED_BELOW = {
    "a decline locks the key",
    "a client that hangs up leaves its claim",
    "after thirty requests everybody is refused",
    "bad keys are answered later",
    "PUT gets no answer",
    "long keys get no answer",
}


def test_every_mistake_has_a_name():
    assert set(MISTAKES) == {*NAMED, *TRIED_BELOW, "no key at all", "a replay writes one row of twenty again"}


def test_every_scenario_is_broken_by_some_mistake():
    """But one: a shop that swallows other keys cannot be examined further."""
    every = set().union(*NAMED.values(), broken(prove("no key at all")))

    assert {scenario for scenario, _ in every} == set(SCENARIOS) - {"two-keys"}


# -- what cannot be judged is unknown, never "holds" -------------------------------------------------------------------


def test_without_a_probe_answers_name_effects():
    report = prove("check, then act", count=False, rounds=10)

    assert ("in-parallel", "Claim") in broken(report)


def test_without_a_probe_lost_answers_cannot_be_judged():
    report = prove(count=False)

    assert not broken(report)
    assert not report.complete
    assert unknown(report) == {"after-a-timeout", "after-a-failure"}


def test_answers_that_name_nothing_tell_nothing():
    """Every operation is answered alike: then no scenario that counts may hold."""
    with opened() as (url, _):
        report = examine(aim(url, "/break", stream_url=None))

    assert not broken(report) - {("another-body", "Intent")}
    assert {"two-keys", "in-sequence", "in-parallel", "no-key", "malformed-keys"} <= unknown(report)


def test_a_probe_that_does_not_count_ends_the_examination():
    with opened() as (url, _), opened() as (elsewhere, _):
        report = examine(aim(url), probe=Probe(url=f"{elsewhere}/count"))

    assert unknown(report) == set(SCENARIOS)
    assert report.requests == 2


def test_a_key_that_stays_busy_after_nothing_happened_is_not_called_sound():
    """A stuck lock and an honest doubt look alike, unless the answer states which it is."""
    report = prove("a decline locks the key")

    assert not broken(report)
    assert unknown(report) == {"after-a-failure"}
    assert not report.complete


def test_a_key_that_stays_busy_after_a_client_gave_up_and_nothing_happened_is_not_called_sound():
    report = prove("a client that hangs up leaves its claim")

    assert not broken(report)
    assert "after-a-timeout" in unknown(report)
    assert "with 0 effects: stuck?" in next(one.evidence for one in report.findings if one.assumption == "Boundary")


def test_an_endpoint_that_refuses_everybody_says_nothing_about_its_keys():
    """A limit was reached: what was tried until then is kept, and the rest is neither sound nor broken."""
    report = prove("after thirty requests everybody is refused")
    held = {one.scenario for one in report.findings if one.standing is Standing.HOLDS}

    assert not broken(report)
    assert {"in-sequence", "in-parallel"} <= held
    assert {"malformed-keys", "doubled-keys", "oversized-body", "after-a-timeout"} <= unknown(report)
    assert held | unknown(report) == set(SCENARIOS)


def test_an_answer_that_says_too_much_for_now_is_no_answer_about_the_key():
    """Also where ordinary requests are served: whether bad keys are ignored was not seen."""
    report = prove("bad keys are answered later")

    assert not broken(report)
    assert unknown(report) == {"malformed-keys", "doubled-keys", "similar-keys"}


@pytest.mark.parametrize(
    ("mistake", "scenario"), [("PUT gets no answer", "another-method"), ("long keys get no answer", "similar-keys")]
)
def test_a_request_without_an_answer_is_not_taken_for_a_refusal(mistake, scenario):
    report = prove(mistake)

    assert scenario in unknown(report)
    assert not report.complete


def test_what_there_is_nothing_to_try_with_is_skipped_with_its_reason():
    report = prove(body=b"7", other_body=b"8", stream_url=None)
    skipped = {one.scenario: one.evidence for one in report.findings if one.standing is Standing.SKIPPED}

    assert skipped == {
        "reordered-fields": "the body has no fields to reorder",
        "unfinished-body": "the body is too short to be cut",
        "streamed-answer": "the answer is not streamed (--stream-url names an endpoint whose answer is)",
    }


def test_what_was_not_given_is_not_tried_and_says_so():
    report = prove(other_headers=(), fail_headers=(), stream_url=None)

    assert unknown(report) == {"another-principal", "after-a-failure"}
    assert "--other-header" in next(f.evidence for f in report.findings if f.scenario == "another-principal")


def test_what_is_skipped_is_not_missed():
    report = prove(other_headers=(), fail_headers=(), skip=frozenset({"another-principal", "after-a-failure"}))

    assert report.complete
    assert report.standing("Intent") is Standing.HOLDS
    assert report.holds


def test_an_assumption_of_which_nothing_was_tried_does_not_hold():
    report = prove(skip=frozenset({"after-a-failure", "after-a-timeout"}))

    assert report.standing("Boundary") is Standing.SKIPPED
    assert report.complete
    assert not report.to_dict()["holds"]


def test_an_ordinary_request_that_fails_ends_the_examination():
    report = prove(body=b"no json")

    assert unknown(report) == set(SCENARIOS)
    assert "answered 400" in report.findings[0].evidence


def test_another_body_that_is_refused_by_itself_proves_nothing():
    report = prove("bodies are not compared", other_body=b"no json")

    assert unknown(report) == {"another-body"}


# -- ways to fail, ways to count ---------------------------------------------------------------------------------------


def test_commands_break_and_heal_the_endpoint():
    with opened("a decline is remembered") as (url, shop):
        report = examine(
            aim(url, fail_headers=(), breaks=1, skip=frozenset(SCENARIOS) - {"after-a-failure"}),
            probe=Probe(command=f"{GET} {url}/count"),
            break_commands=(f"{POST} {url}/break",),
            heal_command=f"{POST} {url}/heal",
        )

    assert broken(report) == {("after-a-failure", "Memory")}
    assert not shop.declining


def test_a_break_command_that_fails_keeps_the_other_results():
    """The second command makes the endpoint fail and finds the mistake; the first one's failure is reported."""
    with opened("a decline is remembered") as (url, shop):
        report = examine(
            aim(url, fail_headers=(), breaks=2, skip=frozenset(SCENARIOS) - {"in-sequence", "after-a-failure"}),
            probe=Probe(url=f"{url}/count"),
            break_commands=("false --password secret", f"{POST} {url}/break"),
            heal_command=f"{POST} {url}/heal",
        )

    assert broken(report) == {("after-a-failure", "Memory")}
    assert report.standing("Claim") is Standing.HOLDS
    assert "the command 'false' failed: exit code 1" in str(report.to_dict())
    assert not report.complete
    assert not shop.declining
    assert "secret" not in str(report.to_dict())


@pytest.mark.parametrize("breaks", ["false", "true"])
def test_a_heal_command_that_fails_keeps_the_other_results_and_says_that_the_endpoint_may_be_broken(breaks):
    with opened() as (url, _):
        report = examine(
            aim(url, fail_headers=(), breaks=1),
            probe=Probe(url=f"{url}/count"),
            break_commands=(breaks,),
            heal_command="false",
        )

    assert unknown(report) == {"after-a-failure"}
    assert "may still be broken" in evidence(report, "after-a-failure")
    assert report.standing("Claim") is Standing.HOLDS


def test_an_examination_that_ends_in_between_heals_what_it_broke():
    """The budget ends with the request that fails: the endpoint works afterwards all the same."""
    skip = frozenset(SCENARIOS) - {"after-a-failure"}
    with opened() as (url, shop):
        report = examine(
            aim(url, fail_headers=(), breaks=1, skip=skip),
            probe=Probe(url=f"{url}/count"),
            budget=Budget(requests=2),
            break_commands=(f"{POST} {url}/break",),
            heal_command=f"{POST} {url}/heal",
        )

    assert unknown(report) == {"after-a-failure"}
    assert ("/break", "") in shop.seen
    assert not shop.declining


def test_failures_may_be_kept_if_the_endpoint_says_so():
    report = prove("a decline is remembered", failures_kept=True)

    assert not broken(report)
    assert any("as the endpoint documents" in note for finding in report.findings for note in finding.notes)


@pytest.mark.parametrize(
    ("answer", "field", "number"), [("7", "", 7), ("[1, 2]", "", 2), ('{"a": [{"b": 3}]}', "a.0.b", 3)]
)
def test_a_probe_reads_numbers_lists_and_fields(answer, field, number, tmp_path):
    from samekey.prove._client import Client
    from samekey.prove._steps import Count

    (tmp_path / "count").write_text(answer)
    probe = Probe(command=f"cat {tmp_path / 'count'}", field=tuple(field.split(".")) if field else ())
    client = Client(aim("http://localhost"), probe=probe, budget=Budget())

    assert client.perform(Count()) == number


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [Budget(requests=20), Budget(bytes=1 << 20), Budget(seconds=0.1)])
def test_an_examination_ends_with_its_budget(budget):
    report = prove(budget=budget)

    assert not broken(report)
    assert not report.complete
    assert budget.used_requests <= budget.requests
    assert budget.used_bytes <= budget.bytes


def test_an_endpoint_that_does_not_answer():
    with opened() as (url, _):
        pass

    with pytest.raises(Unreachable, match="does not answer"):
        examine(aim(url))


def test_an_answer_that_never_ends_is_none():
    """A server that sends for ever is left at the limit of an answer."""
    listening = socket.create_server(("127.0.0.1", 0))

    def pour():
        listening.accept()[0].close()  # the first connection only checks that the endpoint answers
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            try:
                while True:
                    connection.sendall(b"x" * 65536)
            except OSError:
                return

    thread = threading.Thread(target=pour)
    thread.start()
    try:
        with pytest.raises(Unreachable, match="longer than"):
            examine(aim(f"http://127.0.0.1:{listening.getsockname()[1]}"))
    finally:
        thread.join()
        listening.close()


@contextmanager
def saying(head, piece=b""):
    """A server that answers every request with this head, and then with this piece for ever."""
    left = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))

    def answer():
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection, suppress(OSError):
                    if connection.recv(65536):
                        connection.sendall(head)
                        while piece and not left.wait(0.02):
                            connection.sendall(piece)
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(65536):  # closed with a request half read, it would reset the answer
                            pass

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        left.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
    ],
)
def test_a_server_that_answers_piece_by_piece_for_ever_is_abandoned_at_the_timeout(head, piece):
    """The time for an answer is for the whole of it, from its first byte on."""
    with saying(head, piece) as url, pytest.raises(Unreachable, match="does not answer"):
        examine(aim(url), timeout_seconds=0.2)


def test_a_length_of_thousands_of_digits_is_no_answer():
    head = b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n{}"
    with saying(head) as url, pytest.raises(Unreachable, match="2 bytes of an answer of 9999"):
        examine(aim(url))


def test_what_is_not_http_is_not_quoted():
    with saying(b"the-secret-body\r\n\r\n") as url, pytest.raises(Unreachable, match="is not HTTP") as caught:
        examine(aim(url))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://192.0.2.1/pay", "https://[2001:db8::1]/", "http://0.0.0.0:8000/"])
def test_other_machines_are_refused(url):
    with pytest.raises(NotYours, match="not this machine"):
        check_ours(url, said=False)
    check_ours(url, said=True)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://localhost/",
        "localhost:8000",
        "file:///etc/passwd",
        "http://localhost:99999/",
        "http://localhost/a b",
        "http://localhost/ä",
    ],
)
def test_only_http_is_examined_also_with_permission(url):
    with pytest.raises(Misconfigured, match="no http"):
        check_ours(url, said=True)


def test_a_password_in_the_address_is_refused_and_not_repeated():
    with pytest.raises(Misconfigured) as caught:
        check_ours("http://ann:secret@localhost/", said=True)
    assert "secret" not in str(caught.value)


def test_this_machine_is_not_refused():
    check_ours("http://localhost:8000/", "http://127.0.0.1/", "http://[::1]/", None, said=False)


# -- the report --------------------------------------------------------------------------------------------------------


def test_a_report_tells_no_secret_and_no_body():
    with opened("tenants share keys") as (url, _):
        report = examine(aim(url, "/charges?token=secret"), probe=Probe(url=f"{url}/count"))
    everything = str(report.to_dict()) + report.to_html()

    assert report.broken == ("Intent",)
    assert "secret" not in everything
    assert '"charge"' not in everything


@pytest.mark.parametrize(
    "probe",
    [
        Probe(url="http://localhost:8000/count?token=secret"),
        Probe(command="psql postgresql://app:secret@db/shop -tAc 'select 1'"),
        Probe(command="false --password secret"),
        Probe(command=f"{sys.executable} -c 'import sys, time; time.sleep(60)' secret"),
        Probe(command="psql 'no end of secret"),
    ],
)
def test_a_report_says_how_it_counted_and_no_password(probe):
    """A query of the probe's address, and the arguments of a command, are not in the report."""
    with opened() as (url, _):
        report = examine(aim(url), probe=probe, timeout_seconds=0.3)
    everything = str(report.to_dict()) + report.to_html()

    assert not report.complete
    assert "secret" not in everything


def test_the_page_quotes_nothing_as_markup():
    page = Report("http://localhost/<script>", (), "<b>", 0).to_html()

    assert "<script>" not in page
    assert "<b>" not in page


class Page(HTMLParser):
    """The text of a page, and the attributes of its elements."""

    def __init__(self, text):
        super().__init__()
        self.text, self.found, self.open, self.style = "", [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["style"]:
            self.style += data
        else:
            self.text += data


@pytest.mark.parametrize(
    ("mistake", "options", "verdict"),
    [
        ("", {}, "All four assumptions hold"),
        ("bodies are not compared", {}, "Broken: Intent"),
        ("", {"fail_headers": ()}, "Nothing is known to be broken. Not everything could be tried: Memory, Boundary"),
        ("", {"skip": frozenset({"after-a-timeout", "after-a-failure"})}, "What was tried holds. Skipped: Boundary"),
    ],
)
def test_a_page_says_verdict_date_and_version(mistake, options, verdict):
    before = datetime.now(UTC)
    report = prove(mistake, **options)
    page = Page(report.to_html())

    assert page.open == []
    assert verdict in page.text
    assert verdict == report.to_dict()["verdict"]
    assert report.examined_at in (f"{one:%Y-%m-%d %H:%M} UTC" for one in (before, datetime.now(UTC)))
    assert f"Examined on {report.examined_at} by samekey {samekey.__version__}" in page.text


def test_a_page_reads_on_a_phone():
    """Rows become blocks on a narrow screen, and each cell that loses its column has its name."""
    page = Page(Report("http://localhost/", (Finding("no-key", "Intent", Standing.HOLDS, "fine"),), "", 0).to_html())

    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.found
    narrow = page.style.partition("@media (max-width: 40rem)")[2]
    assert "table, tbody, tr, th, td { display: block; }" in narrow
    assert "content: attr(data-name)" in narrow
    assert [one["data-name"] for tag, one in page.found if "data-name" in one] == ["assumption", "scenario", "standing"]


def test_a_broken_assumption_has_its_story():
    report = prove("bodies are not compared")
    (found,) = (finding for finding in report.findings if finding.standing is Standing.BROKEN)

    assert "given the answer to the first" in found.evidence
    assert "marked as a replay" in found.story[2]
    assert found.story[-1] == "effects so far: 1"
