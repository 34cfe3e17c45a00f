"""What is said to callers and operators, and how it travels."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle

import pytest

from samekey.core.boundary import Asks, Keyed, Opaque
from samekey.core.call import (
    ERROR_MAX_CHARS,
    Answer,
    Call,
    Failed,
    doubt_note,
    in_doubt,
    key_reused,
    replay,
    resolve_line,
    retain_seconds,
    say_it_better,
    shown,
)
from samekey.core.commands import Begin, Command, Open, Read, Sleep, StoreCommand, Tell
from samekey.core.drive import adrive, drive
from samekey.core.envelope import encode
from samekey.core.errors import InProgress, NotDone, Refused, ResultNotKept, ResultUnreadable, StoreUnavailable
from samekey.core.fingerprint import Intent
from samekey.core.key import make_key
from samekey.core.policy import Policy
from samekey.core.ports import LIST_MAX, Event, Health, Query
from samekey.core.record import Record
from samekey.core.states import State
from samekey.core.transaction import CLAIM, EFFECT, Commit, Release, RollbackTo, Savepoint

KEY = make_key("charge", "o-1", "acme")
RECORD = Record(KEY, State.COMPLETED, 7, "me", b"", "1", (), "opaque", 1, 2, 10.0, 10.0, 1.0, "", now=15.0)


def calling(boundary=None, key=KEY, **how):
    boundary = boundary or Opaque()
    policy = how.pop("policy", Policy())
    return Call(key, Intent({}), "me", boundary, boundary.terms, boundary.terms.text(), policy, **how)


# -- notes -------------------------------------------------------------------------------------------------------


def test_a_reused_key_names_the_fields_that_differ_or_the_payload():
    there = Intent({"amount": 200, "to": "x", "note": ""}).fingerprint()
    record = RECORD._replace(fingerprint=there.digest, form=there.form, fields=there.fields)

    def told(payload):
        words = str(key_reused(dataclasses.replace(calling(), intent=Intent(payload)), record))
        return words.partition("with another payload: ")[2].partition(".")[0]

    assert told({"amount": 500, "to": "x", "note": ""}) == "'amount' differs"
    assert told({"amount": 500, "to": "y", "note": ""}) == "'amount', 'to' differ"
    assert told([500]) == "the payload differs"


def test_what_stands_in_memory_is_settled_by_no_command():
    note = doubt_note(calling(store_name="memory://"), RECORD, "because")

    assert "Two ways out: let it end with this process: the record is in memory, where no command reaches it; " in note


@pytest.mark.parametrize(
    ("boundary", "way_out"),
    [
        (Keyed(), "runs again under the same provider key, within the provider's window."),
        (Asks(print), "the next call with this key asks the provider first."),
        (Opaque(), "(this one is opaque): Keyed if the provider dedups, Asks(lookup) if it can be asked."),
    ],
)
def test_a_note_names_the_ways_out(boundary, way_out):
    note = doubt_note(calling(boundary), RECORD, "because")

    assert note.startswith("samekey: charge o-1 (tenant acme) is now in doubt: because. Two ways out: ")
    assert note.endswith(way_out)
    assert resolve_line(calling(), RECORD) in note


MARK = "declare marked=True and call current().sending() right before the provider is called."


@pytest.mark.parametrize(
    ("boundary", "error", "ways"),
    [
        (Opaque(), ValueError(), "raise NotDone, or list ValueError in releases= of the policy, or " + MARK),
        (Keyed(marked=True), ValueError(), "raise NotDone, or list ValueError in releases= of the policy."),
        (Opaque(), TimeoutError(), MARK),  # NotDone would be a guess
        (Opaque(), KeyboardInterrupt(), MARK),
        (Opaque(marked=True), TimeoutError(), ""),
    ],
)
def test_a_note_names_the_ways_to_say_it_better(boundary, error, ways):
    said = say_it_better(calling(boundary), error)

    assert said == (f" An effect that knows that nothing happened can say so: {ways}" if ways else "")


def test_the_line_for_a_shell_is_quoted():
    assert resolve_line(calling(), RECORD) == "samekey resolve charge o-1 --tenant acme --happened --why 'how you know'"
    odd = RECORD._replace(key=make_key("a b", "-x", None))
    assert (
        resolve_line(calling(store_name="sqlite:///my keys.db"), odd)
        == "samekey resolve --happened --why 'how you know' --store 'sqlite:///my keys.db' -- 'a b' -x"
    )
    dashed = RECORD._replace(key=make_key("-a", "x"))
    assert resolve_line(calling(), dashed).endswith(" -- -a x")


def test_a_doubt_in_memory_is_not_sent_to_a_command_line():
    call = calling(store_name="memory://")
    for said in (doubt_note(call, RECORD, "why"), str(in_doubt(call, RECORD, "why"))):
        assert "samekey resolve" not in said
        assert "let it end with this process" in said


def test_a_doubt_tells_its_age_and_what_led_to_it():
    doubt = in_doubt(calling(), RECORD._replace(error="Timeout"), "why")
    assert (doubt.key, doubt.token, doubt.error, doubt.age_seconds) == ("o-1", 7, "Timeout", 5.0)
    assert "why (Timeout, 5 s ago)" in str(doubt)
    young = in_doubt(calling(), RECORD._replace(now=1.0), "why")  # a clock that went back
    assert young.age_seconds == 0.0
    assert "no error recorded" in str(young)


def test_foreign_text_is_bounded_and_clean():
    assert shown("a\ud800") == "a\\ud800"
    assert len(shown("x" * 1000)) == ERROR_MAX_CHARS == 500


# -- replays -----------------------------------------------------------------------------------------------------


def test_an_answer_that_was_not_kept_or_cannot_be_read_never_runs_again():
    with pytest.raises(
        ResultNotKept, match=r"\(too large\); the effect is not run again. The effect happened: look"
    ) as told:
        replay(calling(), RECORD._replace(error="too large"))
    assert told.value.key == "o-1"
    with pytest.raises(ResultNotKept, match="no reason given"):
        replay(calling(), RECORD)
    with pytest.raises(ResultUnreadable) as unreadable:
        replay(calling(), RECORD._replace(result=b"\x07"))
    assert unreadable.value.key == "o-1"
    assert unreadable.value.__cause__ is not None


def test_a_replay_finds_the_classes_that_the_call_was_given():
    @dataclasses.dataclass
    class Receipt:
        number: int

    there = RECORD._replace(result=encode(Receipt(7), max_bytes=1000, types=[Receipt]))

    assert replay(calling(types=(Receipt,)), there) == Answer(Receipt(7), State.COMPLETED, True, "o-1", 7, 2)
    with pytest.raises(ResultUnreadable, match="Receipt is gone, or not loaded here"):
        replay(calling(), there)


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        (None, "CardStolen", "refused: CardStolen"),
        (None, None, "no detail kept"),
        (b"\x07", None, "can no longer be read"),
        (b"\x07", "CardStolen", "refused: CardStolen"),
    ],
)
def test_a_refusal_without_its_detail_is_a_refusal_still(result, error, words):
    failed = replay(calling(), RECORD._replace(state=State.CLOSED, result=result, error=error))

    assert isinstance(failed, Failed)
    assert isinstance(failed.error, Refused)
    assert words in str(failed.error)


def test_a_released_record_stays_for_as_long_as_a_late_word_may_come():
    policy = Policy(lease=10, retention=30)
    believing = calling(Asks(print, 60), policy=policy)

    assert retain_seconds(believing, State.RELEASED) == 70.0
    assert retain_seconds(believing, State.COMPLETED) == 30.0
    assert retain_seconds(calling(policy=policy), State.RELEASED) == 30.0
    assert retain_seconds(calling(policy=Policy(lease=50, retention=30)), State.RELEASED) == 50.0


def test_an_answer_is_recorded_and_guarded_unless_it_says_otherwise():
    answer = Answer(1, State.COMPLETED, False, "k", 1, 1)

    assert (answer.recorded, answer.guarded) == (True, True)
    assert hash(answer) == hash(Answer(1, State.COMPLETED, False, "k", 1, 1))


# -- errors ------------------------------------------------------------------------------------------------------


class Odd(Refused):
    def __init__(self, one, two):
        super().__init__(f"{one} {two}")
        self.one = one


class NewbornError(StoreUnavailable):
    def __new__(cls, *args, **facts):
        return super().__new__(cls)  # which leaves it without its arguments


class NewbornWord(Refused):
    def __new__(cls, *args):
        return super().__new__(cls)


def test_errors_survive_a_queue_with_their_facts():
    error = InProgress("busy", key="k", token=3, retry_after=1.5)
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.key, back.token, back.retry_after) == (InProgress, "busy", "k", 3, 1.5)
    assert back.message == "busy"
    for word in (Refused("no", detail={"a": 1}), NotDone("no", detail=[2])):
        again = pickle.loads(pickle.dumps(word))
        assert (type(again), again.args, again.reason, again.detail) == (type(word), ("no",), "no", word.detail)
    assert pickle.loads(pickle.dumps(Odd(1, 2))).one == 1
    for newborn in (NewbornError("why", key="k"), NewbornWord("why")):
        assert pickle.loads(pickle.dumps(newborn)).args == newborn.args == ("why",)
    assert (Refused().reason, Refused().detail, NotDone().reason, NotDone().detail) == ("", None, "", None)
    assert str(Refused("why")) == "why"
    for named in (Refused(reason="why"), NotDone(reason="why"), StoreUnavailable(message="why")):
        assert (str(named), named.args) == ("why", ("why",))
    assert StoreUnavailable("x").tried_seconds == 0.0


# -- driving -----------------------------------------------------------------------------------------------------


def counted(log):
    try:
        first = yield Sleep(1)
        try:
            yield Tell("two", None)
        except ValueError:
            log.append("thrown")
        got = yield Sleep(3)
        return first, got
    finally:
        log.append("closed")


def perform(command):
    if isinstance(command, Tell):
        raise ValueError
    return command.seconds * 10


async def aperform(command):
    return perform(command)


def test_steps_are_driven_to_their_end_in_both_colours():
    for run in (lambda log: drive(counted(log), perform), lambda log: asyncio.run(adrive(counted(log), aperform))):
        log: list[str] = []
        assert run(log) == (10, 30)
        assert log == ["thrown", "closed"]


def test_steps_stop_at_a_command_and_go_on_with_its_reply():
    for go in (drive, lambda *a, **k: asyncio.run(adrive(*a, **k))):
        act = perform if go is drive else aperform
        log: list[str] = []
        steps = counted(log)
        assert go(steps, act, until=Tell) == Tell("two", None)
        assert log == []
        assert go(steps, act, reply=ValueError()) == (10, 30)
        assert log == ["thrown", "closed"]


def test_whatever_interrupts_a_driver_the_steps_are_closed():
    class Stop(BaseException):
        pass

    def interrupted(command):
        raise Stop

    async def ainterrupted(command):
        raise Stop

    for go, act in ((drive, interrupted), (lambda *a: asyncio.run(adrive(*a)), ainterrupted)):
        log: list[str] = []
        steps = counted(log)
        with pytest.raises(Stop):
            go(steps, act)
        assert log == ["closed"]


# -- ports and transactions --------------------------------------------------------------------------------------


def test_a_query_picks_by_everything_it_names():
    assert Query().picks(RECORD)
    assert Query((State.COMPLETED,), False, "charge", "acme", "o-1", before=(10.1, b"")).picks(RECORD)
    for query in (
        Query((State.STARTED,)), Query(operation="pay"), Query(tenant="other"), Query(text="o-2"),
        Query(before=(10.0, KEY.digest)), Query(before=(9.9, b"\xff" * 16)),
    ):  # fmt: skip
        assert not query.picks(RECORD)
    assert Query(before=(10.0, b"\xff" * 16)).picks(RECORD)
    assert (Query().limit, LIST_MAX) == (100, 1000)
    assert (Health("a", "b", "c").warnings, Health("a", "b", "c").facts) == ((), ())
    assert Event("a", "b", "c") == Event("a", "b", "c", None, "", 0, "", "")


def test_the_sql_of_a_savepoint_names_its_depth():
    assert Savepoint(CLAIM, 0).sql == "SAVEPOINT samekey_claim_0"
    assert RollbackTo(EFFECT, 2).sql == "ROLLBACK TO SAVEPOINT samekey_effect_2"
    assert Release(EFFECT, 1).sql == "RELEASE SAVEPOINT samekey_effect_1"
    assert Commit().sql == "COMMIT"
    assert Commit() == Commit()


def test_a_store_command_is_called_by_its_verb():
    def subclasses(cls):
        return [one for child in cls.__subclasses__() for one in (child, *subclasses(child))]

    verbs = {one.__name__.lower(): one.verb for one in subclasses(StoreCommand) if "verb" in vars(one)}
    known = ("open", "take", "begin", "renew", "settle", "ask", "deliver", "testify", "redact", "free", "read", "wait")
    assert verbs == {name: name for name in known}
    assert Begin(RECORD).key is KEY
    assert next(iter(Read(KEY))) == Read(KEY)
    assert issubclass(Open, Command)
