"""The scenarios of the intake, each under its number, on the embedded default and on PostgreSQL with Redis."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from samekey.core.errors import Misconfigured
from samekey.intake import Problem, Run, RunState, Settings, Task
from samekey.intake import commands as c
from samekey.intake.draining import Drain
from samekey.intake.ids import key_digest
from samekey.intake.runs import fold
from tests.intake.conftest import together

BUFFERED: dict[str, Any] = {"gate": "divert"}


def ids(answers):
    failed = [one for one in answers if isinstance(one, Exception)]
    assert not failed, failed[:3]
    return {one.id for one in answers}


def first(answers):
    return sum(not one.cached for one in answers)


def test_01_a_burst_is_buffered_and_a_buffered_run_can_be_read(setup):
    intake = setup.intake(gate_limit=5, gate_window=0.05, gate_hold=5.0)
    control = intake.trigger("hello", {"n": -1})
    burst = [intake.trigger("hello", {"n": n}) for n in range(60)]

    assert not intake.get(control.id).buffered
    read = [intake.get(one.id) for one in burst]
    assert [one.id for one in read] == [one.id for one in burst]
    assert any(one.buffered for one in read)
    assert [json.loads(one.payload)["n"] for one in read] == list(range(60))


def test_03_changes_of_a_buffered_run(setup):
    intake = setup.intake(**BUFFERED)
    run = intake.trigger("hello", {}, delay="1h").id
    for _ in range(2):
        intake.add_tags(run, ["a", "b"])
    intake.update_metadata(run, {"x": 1})
    for number in (5, 3):
        intake.update_metadata(run, operations=[{"type": "increment", "key": "counter", "value": number}])
    moved = intake.reschedule(run, "2h")

    read = intake.get(run)
    assert read.buffered
    assert read.tags == ("a", "b")
    assert read.metadata == {"x": 1, "counter": 8}
    assert read.delayed_until == moved.delayed_until > time.time() + 3600


@pytest.mark.parametrize("state", ["off", "shadow", "cold", "tripping", "tripped", "draining", "flapping"])
def test_04_same_key_triggers_at_a_cold_gate_have_one_run(setup, state):
    settings: dict[str, Any] = {
        "off": {"gate": "off"},
        "shadow": {"gate": "shadow"},
        "tripped": BUFFERED,
        "draining": BUFFERED,
        "flapping": {"gate_limit": 1, "gate_window": 0.002, "gate_hold": 0.001},
    }.get(state, {"gate_limit": 3, "gate_window": 0.05})
    nodes = [setup.intake(**settings) for _ in range(2)]
    if state == "tripping":
        for number in range(3):
            nodes[0].trigger("other", {"n": number})

    def burst():
        return together(30, lambda n: nodes[n % 2].trigger("hello", {"a": 1}, key="k"))

    if state == "draining":
        with setup.draining():
            answers = burst()
    else:
        answers = burst()
    assert len(ids(answers)) == 1
    assert first(answers) == 1

    later = nodes[1].trigger("hello", {"a": 1}, key="k")
    assert (later.id in ids(answers), later.cached) == (True, True)
    assert nodes[0].get(later.id).id == later.id


def test_05_a_drained_run_keeps_its_changes(setup):
    intake = setup.intake(**BUFFERED)
    run = intake.trigger("hello", {}, key="k").id
    accepted = intake.get(run).created_at
    intake.add_tags(run, "t")
    intake.update_metadata(run, operations=[{"type": "append", "key": "list", "value": 1}])
    Drain(intake, ["dev"]).until_empty()

    row = intake.get(run)
    assert (row.buffered, row.tags, row.metadata, row.created_at) == (False, ("t",), {"list": [1]}, accepted)


def test_06_a_canceled_run_stays_canceled(setup):
    handed = []
    intake = setup.intake(sink=lambda connection, run: handed.append(run.id), **BUFFERED)
    run = intake.trigger("hello", {}).id
    assert [intake.cancel(run).state for _ in range(2)] == [RunState.CANCELED] * 2
    Drain(intake, ["dev"]).until_empty()

    row = intake.cancel(run)
    assert (row.buffered, row.state) == (False, RunState.CANCELED)
    assert row.finished_at is not None
    assert handed == []  # it was over before it was written


def test_09_concurrent_increments_of_a_buffered_run(setup):
    intake = setup.intake(**BUFFERED)
    run = intake.trigger("hello", {}, metadata={"counter": 0}).id
    step = [{"type": "increment", "key": "counter", "value": 1}]
    done = together(50, lambda _: intake.update_metadata(run, operations=step))

    assert not [one for one in done if isinstance(one, Exception)]
    assert intake.get(run).metadata == {"counter": 50}


def test_10_a_reset_key_makes_a_new_run(setup):
    intake = setup.intake(**BUFFERED)
    answers = together(10, lambda _: intake.trigger("hello", {}, key="k"))
    intake.reset_key("hello", "k")
    new = intake.trigger("hello", {}, key="k")

    assert new.id not in ids(answers)
    assert not new.cached
    with pytest.raises(Problem) as problem:
        intake.reset_key("hello", "never used")
    assert problem.value.status == 404


def test_13_and_wait_materialises_a_buffered_run(setup):
    intake, worker = setup.intake(**BUFFERED), setup.intake()
    holder = intake.trigger("hello", {"a": 1}, key="k")
    assert intake.get(holder.id).buffered

    def finish(_):
        while intake.get(holder.id).buffered:
            time.sleep(0.01)
        return worker.complete(holder.id, {"done": True})

    waited, done = together(
        2,
        lambda n: intake.trigger_and_wait("hello", {"a": 1}, key="k", deadline=30) if n == 0 else finish(n),
    )
    assert waited.id == done.id == holder.id
    assert (waited.state, waited.output) == (RunState.COMPLETED, '{"done": true}')


def test_15_a_change_while_the_entry_drains_is_kept(setup):
    intake = setup.intake(**BUFFERED)
    run = intake.trigger("hello", {}).id
    (popped,) = intake.carry_out(c.Pop("dev", 10, 30.0))
    intake.carry_out(c.Absorb(((popped.entry.run, popped.entry.operations),)))
    intake.add_tags(run, "late")
    newer = intake.carry_out(c.Ack("dev", run, popped.fence, 0))
    assert [one["tags"] for one in newer.operations] == [["late"]]
    intake.carry_out(c.Absorb(((newer.run, newer.operations),)))

    assert intake.carry_out(c.Ack("dev", run, popped.fence, 1)) is True
    assert intake.get(run).tags == ("late",)


def test_16_a_foreign_claim_that_is_given_up_lets_one_trigger_go_on(setup):
    intake = setup.intake()
    digest = key_digest("dev", "hello", "k")
    fingerprint = intake.trigger_of("hello", {}, {"key": "k"}).run.fingerprint
    foreign = setup.intake()
    held = foreign.carry_out(c.Claim("dev", digest, 0, fingerprint, 1.0, 100.0))
    assert isinstance(held, c.Claimed)

    def work(number):
        if number == 5:
            time.sleep(0.3)  # the triggers wait by now, or come later: both are right
            return foreign.carry_out(c.Release(held.hold, RuntimeError("given up")))
        return intake.trigger("hello", {}, key="k")

    answers = together(6, work)[:5]
    assert len(ids(answers)) == 1
    assert first(answers) == 1


def test_18_a_trigger_whose_patience_ends_goes_on(setup):
    intake = setup.intake(patience=0.2)
    digest = key_digest("dev", "hello", "k")
    fingerprint = intake.trigger_of("hello", {}, {"key": "k"}).run.fingerprint
    held = setup.intake().carry_out(c.Claim("dev", digest, 0, fingerprint, 1.0, 100.0))
    answer = intake.trigger("hello", {}, key="k")

    assert answer.cached  # the holder of the claim says it is new
    assert intake.get(answer.id).id == answer.id
    assert intake.counts["timed_out"] == 1
    refusing = setup.intake(patience=0.2, on_timeout="refuse")
    with pytest.raises(Problem, match="claim resolution timed out") as problem:
        refusing.trigger("hello", {}, key="k")
    assert problem.value.status == 503
    assert isinstance(held, c.Claimed)


def test_19_a_second_burst_after_the_drain_is_cached(setup):
    intake = setup.intake(gate_limit=2, gate_window=0.1)
    with setup.draining():
        answers = together(20, lambda _: intake.trigger("hello", {}, key="k"))
        while intake.get(answers[0].id).buffered:
            time.sleep(0.01)
        again = together(20, lambda _: intake.trigger("hello", {}, key="k"))

    assert ids(answers) == ids(again)
    assert len(ids(answers)) == 1
    assert (first(answers), first(again)) == (1, 0)


@pytest.mark.parametrize("over", ["failed", "expired"])
def test_x1_a_key_that_is_over_makes_one_new_run(setup, over):
    intake = setup.intake(gate_limit=3, gate_window=0.05)
    old = intake.trigger("hello", {}, key="k", key_ttl=1 if over == "expired" else None)
    if over == "failed":
        intake.fail(old.id, "out of luck")
    else:
        while intake.get(old.id).key_live(time.time()):
            time.sleep(0.05)
        time.sleep(0.1)
    answers = together(20, lambda _: intake.trigger("hello", {}, key="k"))

    assert len(ids(answers)) == 1
    assert old.id not in ids(answers)
    assert first(answers) == 1


def test_x1_a_task_may_keep_the_key_of_a_failed_run_or_free_that_of_a_finished_one(setup):
    tasks = {"keeps": Task(on_failure="keep"), "until": Task(until="terminal")}
    intake = setup.intake(tasks=tasks)
    kept = intake.trigger("keeps", {}, key="k")
    intake.fail(kept.id, "no")
    assert intake.trigger("keeps", {}, key="k") == (kept.id, True, intake.trigger("keeps", {}, key="k").run)

    done = intake.trigger("until", {}, key="k")
    assert intake.trigger("until", {}, key="k").id == done.id
    intake.complete(done.id, 1)
    again = intake.trigger("until", {}, key="k")
    assert (again.id != done.id, again.cached) == (True, False)


def test_x9_a_reset_while_the_entry_drains(setup):
    intake = setup.intake(**BUFFERED)
    old = intake.trigger("hello", {}, key="k")
    (popped,) = intake.carry_out(c.Pop("dev", 10, 30.0))
    intake.reset_key("hello", "k")
    new = intake.trigger("hello", {}, key="k")
    intake.carry_out(c.Absorb(((popped.entry.run, popped.entry.operations),)))
    newer = intake.carry_out(c.Ack("dev", old.id, popped.fence, 0))
    intake.carry_out(c.Absorb(((newer.run, newer.operations),)))
    assert intake.carry_out(c.Ack("dev", old.id, popped.fence, len(newer.operations))) is True

    assert new.id != old.id
    assert intake.get(old.id).key_freed
    assert not intake.get(old.id).buffered


def test_x10_changes_in_every_phase_of_the_drain(setup):
    handed = []
    intake = setup.intake(sink=lambda connection, run: handed.append(run.id), **BUFFERED)
    run = intake.trigger("hello", {}).id
    intake.add_tags(run, "before")
    (popped,) = intake.carry_out(c.Pop("dev", 10, 0.001))
    intake.add_tags(run, "popped")
    intake.carry_out(c.Absorb(((popped.entry.run, popped.entry.operations),)))
    intake.update_metadata(run, operations=[{"type": "set", "key": "a", "value": [None, 10**30]}])
    intake.cancel(run)
    Drain(intake, ["dev"]).until_empty()  # the lease has ended: another drainer takes it over

    row = intake.get(run)
    assert (row.buffered, row.tags, row.state) == (False, ("before", "popped"), RunState.CANCELED)
    assert row.metadata == {"a": [None, 10**30]}
    assert handed == [run]
    assert intake.carry_out(c.Ack("dev", run, popped.fence, 99)) is False


def test_x11_a_retried_request_without_a_key_makes_one_run(setup):
    for settings in (BUFFERED, {"gate": "off"}, {"gate_limit": 1, "gate_window": 0.001, "gate_hold": 0.2}):
        intake = setup.intake(**settings)
        answers = [intake.trigger("hello", {"s": str(settings)}, request_id="uuid-1") for _ in range(3)]
        other = intake.trigger("hello", {"s": str(settings)}, request_id="uuid-2")

        assert len(ids(answers)) == 1
        assert other.id not in ids(answers)
        assert first(answers) == 3  # each of them is the answer to one request
        Drain(intake, ["dev"]).until_empty()
        assert intake.trigger("hello", {"s": str(settings)}, request_id="uuid-1").id in ids(answers)
        assert not intake.get(answers[0].id).buffered


def test_a_retry_of_the_winner_hears_again_that_it_was_first(setup):
    intake = setup.intake()
    answers = [intake.trigger("hello", {}, key="k", request_id=name) for name in ("a", "a", "b")]

    assert [one.cached for one in answers] == [False, False, True]


def test_x12_odd_keys_do_not_alias(setup):
    intake = setup.intake()
    keys = ["a:b", "a", "b", "a\0b", "a\0", "\u00e9", "e\u0301", "x" * 2048, "{dev}", "a b", "%", "'", '"', "k\n"]
    answers = [intake.trigger("hello", {}, key=key) for key in keys]
    again = [intake.trigger("hello", {}, key=key) for key in keys]

    assert len(ids(answers)) == len(keys)
    assert [one.id for one in again] == [one.id for one in answers]
    assert [intake.get(one.id).key for one in again] == keys
    for bad in ("x" * 2049, 7, "\ud800"):
        with pytest.raises(Problem) as problem:
            intake.trigger("hello", {}, key=bad)
        assert problem.value.status == 400


def test_x13_another_environment_sees_nothing(setup):
    intake = setup.intake(**BUFFERED)
    run = intake.trigger("hello", {}, key="k", environment="a").id
    calls = [
        lambda: intake.get(run, environment="b"),
        lambda: intake.add_tags(run, "t", environment="b"),
        lambda: intake.update_metadata(run, {}, environment="b"),
        lambda: intake.cancel(run, environment="b"),
        lambda: intake.reschedule(run, "1h", environment="b"),
        lambda: intake.complete(run, environment="b"),
        lambda: intake.reset_key("hello", "k", environment="b"),
    ]
    for call in calls:
        with pytest.raises(Problem) as problem:
            call()
        assert problem.value.status == 404
    Drain(intake, ["a"]).until_empty()
    for call in calls:
        with pytest.raises(Problem) as problem:
            call()
        assert problem.value.status == 404
    assert intake.list(environment="b") == []
    assert intake.trigger("hello", {}, key="k", environment="b").id != run


def test_x14_a_light_environment_does_not_wait_for_a_heavy_one(setup):
    intake = setup.intake(drain_quantum=20, **BUFFERED)
    for number in range(200):
        intake.trigger("hello", {"n": number}, environment="heavy")
    light = [intake.trigger("hello", {"n": n}, environment="light").id for n in range(10)]
    drain = Drain(intake, ["heavy", "light"])
    drain.once()

    assert not any(intake.get(run, environment="light").buffered for run in light)
    assert intake.carry_out(c.Depth("heavy")).depth == 180
    drain.until_empty()
    assert intake.carry_out(c.Depth("heavy")).depth == 0


def test_x15_a_batch_with_duplicate_keys(setup):
    intake = setup.intake(**BUFFERED)
    items = [{"task": "hello", "payload": {"n": n % 5}, "key": f"k{n % 5}"} for n in range(20)]
    answers = intake.trigger_many(items)

    assert len(ids(answers)) == 5
    assert first(answers) == 5


def test_a_batch_item_that_meets_a_dead_run_makes_a_new_one(setup):
    intake = setup.intake()
    (old,) = intake.trigger_many([{"task": "hello", "key": "k"}])
    intake.fail(old.id, "no")
    new, problem = intake.trigger_many([{"task": "hello", "key": "k"}, {"task": "hello", "key": "x" * 3000}])

    assert (new.id != old.id, new.cached) == (True, False)
    assert isinstance(problem, Problem)


def test_x18_a_payload_stays_byte_identical(setup):
    intake = setup.intake(**BUFFERED)
    text = '{"a":[],  "big":123456789012345678901234567890,"n":null,"o":{},"f":1.10, "s":"\\u0000é\\ud83d"' + (
        ',"m":"' + "x" * 1_000_000 + '"}'
    )
    run = intake.trigger("hello", text, payload_type="application/json", fingerprinted="same").id
    intake.add_tags(run, "t")
    intake.update_metadata(run, {"list": [], "o": {}, "big": 10**30})
    assert intake.get(run).payload == text
    Drain(intake, ["dev"]).until_empty()

    row = intake.get(run)
    assert (row.payload, row.buffered) == (text, False)
    assert row.metadata == {"list": [], "o": {}, "big": 10**30}


def test_x20_every_command_may_be_sent_twice(setup):
    intake = setup.intake(sink=lambda connection, run: handed.append(run.id), **BUFFERED)
    handed: list[str] = []
    run = intake.trigger("hello", {}, key="k", metadata={"n": 0})
    asked = intake.get(run.id)
    assert isinstance(intake.carry_out(c.Offer(asked)), c.Existing)
    step = {"id": "one", "op": "metadata", "operations": [{"type": "increment", "key": "n", "value": 1}], "at": 1.0}
    for _ in range(2):
        intake.update_metadata(run.id, operations=step["operations"], operation_id="one")
    entry = intake.carry_out(c.Entry("dev", run.id))
    for told in (["new"], ["there"]):
        assert intake.carry_out(c.Absorb(((entry.run, entry.operations),))) == told
    (popped,) = intake.carry_out(c.Pop("dev", 1, 30.0))
    ack = c.Ack("dev", run.id, popped.fence, len(entry.operations))
    assert [intake.carry_out(ack) for _ in range(2)] == [True, False]
    assert isinstance(intake.carry_out(c.Insert(asked)), c.Existing)
    for _ in range(2):
        intake.carry_out(c.Change("dev", run.id, {**step, "id": "two"}))
        intake.carry_out(c.MarkUnknown("dev", str(asked.digest), "t"))
        assert intake.carry_out(c.Raise("dev", str(asked.digest), 0, 1)) == (1, 1)
        intake.carry_out(c.WriteCopy("dev", str(asked.digest), "t", c.Pinned(1, 1)))

    assert intake.get(run.id).metadata == {"n": 2}
    assert handed == [run.id]


def test_x21_an_entry_that_cannot_be_read_is_a_dead_letter(setup):
    intake = setup.intake(**BUFFERED)
    good = intake.trigger("hello", {}).id
    bad = intake.trigger("hello", {}).id
    later = b'{"v": 2, "id": "from the future"}'
    if setup.redis is None:
        intake._database.run(lambda: iter_sql("UPDATE samekey_intake_buffer SET blob = ? WHERE id = ?", (later, bad)))
    else:
        name = intake._buffer._of("dev")
        from samekey.drivers.redis.wire import packed

        intake._buffer.client.command(packed((b"HSET", name.entry(bad), b"blob", later)))
    done = Drain(intake, ["dev"]).until_empty()

    assert (done.written, done.buried) == (1, 1)
    assert not intake.get(good).buffered
    ((run, reason, blob),) = intake.carry_out(c.DeadLetters("dev"))
    assert (run, blob) == (bad, later)
    assert "version" in reason
    assert intake.carry_out(c.Revive("dev", bad)) is True
    assert intake.carry_out(c.DeadLetters("dev")) == []
    assert Drain(intake, ["dev"]).until_empty().buried == 1


def iter_sql(text, values):
    from samekey.intake.rows import Sql

    yield Sql(text, values)


def test_x23_a_winner_that_fails_lets_a_waiter_take_over(setup):
    failures = [RuntimeError("the sink is broken")]

    def sink(connection, run):
        if failures:
            raise failures.pop()

    intake = setup.intake(sink=sink, gate="off")
    answers = together(20, lambda _: intake.trigger("hello", {}, key="k"))
    broken = [one for one in answers if isinstance(one, Exception)]
    rest = [one for one in answers if not isinstance(one, Exception)]

    assert [str(one) for one in broken] == ["the sink is broken"]
    assert len(ids(rest)) == 1
    assert first(rest) == 1


def test_another_payload_under_a_live_key_is_refused(setup):
    for settings in (BUFFERED, {}):
        intake = setup.intake(tasks={"hello": Task(ignore=("at",))}, **settings)
        key = f"k{len(settings)}"
        made = intake.trigger("hello", {"a": 1, "at": 1}, key=key)
        assert intake.trigger("hello", {"a": 1, "at": 2}, key=key).id == made.id
        with pytest.raises(Problem) as problem:
            intake.trigger("hello", {"a": 2, "at": 1}, key=key)
        assert problem.value.status == 422


def test_a_list_over_both_stores_has_no_gaps_and_no_doubles(setup):
    intake = setup.intake(**BUFFERED)
    made = [intake.trigger("hello", {"n": n}, tags=["odd" if n % 2 else "even"]).id for n in range(40)]
    drain = Drain(intake, ["dev"])
    found, before = [], None
    while True:
        page = intake.list(size=7, before=before)
        found += [run.id for run in page]
        if len(page) < 7:
            break
        before = page[-1]
        intake.run(drainer_of(drain, 5))  # the oldest five move between two pages

    assert found == made[::-1]
    odd = [run.id for run in intake.list(size=100, tag="odd")]
    assert odd == [run for n, run in enumerate(made) if n % 2][::-1]


def drainer_of(drain, count):
    from samekey.intake import drainer

    return drainer.drain("dev", count, 30.0, drain._rules)


def test_accepted_order_is_kept(setup):
    handed = []
    intake = setup.intake(sink=lambda connection, run: handed.append(run.id), gate_limit=3, gate_hold=0.01)
    made = [intake.trigger("hello", {"n": n}).id for n in range(50)]
    Drain(intake, ["dev"]).until_empty()

    buffered = [run for run in made if run in handed]
    assert sorted(handed, key=made.index) == handed
    assert buffered == made


def test_the_depth_cap_refuses_and_writes_nothing(setup):
    intake = setup.intake(depth_max=3, **BUFFERED)
    for number in range(3):
        intake.trigger("hello", {"n": number})
    with pytest.raises(Problem) as problem:
        intake.trigger("hello", {"n": 3}, key="k")
    assert (problem.value.status, problem.value.retry_after > 0) == (429, True)
    Drain(intake, ["dev"]).until_empty()

    assert len(intake.list()) == 3
    assert not intake.trigger("hello", {"n": 3}, key="k").cached


def test_a_second_outcome_changes_nothing(setup):
    intake = setup.intake()
    run = intake.trigger("hello", {}).id
    assert intake.start(run).state is RunState.STARTED
    intake.complete(run, {"a": 1})
    again = intake.fail(run, "too late")

    assert (again.state, again.output, again.error) == (RunState.COMPLETED, '{"a": 1}', None)


def test_an_id_that_a_buffer_lost_is_told_from_an_unknown_one(setup):
    from samekey.intake.ids import new_id

    intake = setup.intake()
    lost = new_id(intake.context().secrets[1], "dev", "never written")
    for run, status in ((lost, 410), ("run_" + "a" * 32, 404), ("x", 404)):
        with pytest.raises(Problem) as problem:
            intake.get(run)
        assert problem.value.status == status


def test_a_run_that_was_not_started_in_time_is_expired(setup):
    intake = setup.intake()
    run = intake.trigger("hello", {}, key="k", ttl=1)
    drain = Drain(intake, ["dev"])
    while intake.get(run.id).state is RunState.QUEUED:
        drain._tended.clear()
        drain.tend()
        time.sleep(0.05)

    assert intake.get(run.id).state is RunState.EXPIRED
    assert intake.trigger("hello", {}, key="k").id != run.id


def test_the_async_intake_answers_as_the_other(setup):
    async def burst():
        async with setup.async_intake(gate_limit=5, gate_window=0.05) as intake:
            same = await asyncio.gather(*[intake.trigger("hello", {}, key="k") for _ in range(60)])
            assert len(ids(same)) == 1
            assert first(same) == 1
            run = same[0].id
            await intake.add_tags(run, ["a"])
            await intake.update_metadata(run, operations=[{"type": "increment", "key": "n", "value": 2}])
            keyless = await asyncio.gather(*[intake.trigger("hello", {"n": n}) for n in range(60)])
            assert len(ids(keyless)) == 60
            read = await intake.get(run)
            assert (read.tags, read.metadata) == (("a",), {"n": 2})
            assert len(await intake.list(size=100)) == 61
            await intake.reset_key("hello", "k")
            again = await intake.trigger("hello", {}, key="k")
            assert (again.id != run, again.cached) == (True, False)
            waiting = asyncio.create_task(intake.trigger_and_wait("waits", {}, key="k", deadline=60))
            while not (found := await intake.list(task="waits")):
                await asyncio.sleep(0.01)
            await intake.start(found[0].id)
            await intake.fail(found[0].id, "no")
            waited = await waiting
            assert (waited.id, waited.state, waited.error) == (found[0].id, RunState.FAILED, "no")
            assert (await intake.cancel(run)).state is RunState.CANCELED
            later = await intake.trigger("hello", {}, delay="1h")
            assert (await intake.reschedule(later.id, "2h")).delayed_until > time.time() + 3600
            many = await intake.trigger_many([{"task": "t", "key": "x"}, {"task": "t", "key": "x"}])
            assert len(ids(many)) == 1
            assert (await intake.complete(many[0].id, 1)).state is RunState.COMPLETED

    asyncio.run(burst())


def test_a_buffered_run_takes_so_many_changes_and_a_second_fold_of_them_changes_nothing(setup):
    """The log of a buffered run is bounded: 429, and nothing is written. A change that is there is answered again."""
    intake = setup.intake(gate="divert", operations_max=5)
    run = intake.trigger("hello", {}, metadata={"n": 0})
    add = [{"type": "increment", "key": "n", "value": 1}]
    for number in range(5):
        intake.update_metadata(run.id, operations=add, operation_id=f"op {number}")

    for change in (lambda: intake.update_metadata(run.id, operations=add), lambda: intake.cancel(run.id)):
        with pytest.raises(Problem, match="5 changes of this run wait for the drainer") as refused:
            change()
        assert (refused.value.status, refused.value.code, refused.value.retry_after) == (429, "too_many_changes", 1.0)
    assert intake.update_metadata(run.id, operations=add, operation_id="op 0").metadata == {"n": 5}
    assert len(intake.carry_out(c.Entry("dev", run.id)).operations) == 5
    Drain(intake, ["dev"]).until_empty()
    assert intake.update_metadata(run.id, operations=add).metadata == {"n": 6}


def test_as_many_changes_as_there_may_be_are_folded_once_by_two_drainers():
    """A drainer that was killed before its acknowledgement: the next one folds the same log into the row again."""
    most = Settings().operations_max
    add = [{"type": "increment", "key": "n", "value": 1}]
    log = [{"id": f"op {n}", "at": 1.0, "op": "metadata", "metadata": None, "operations": add} for n in range(most)]
    once = fold(Run("run_1", "dev", "hello", None, metadata={"n": 0}), log)

    assert once.metadata == {"n": most}
    assert fold(once, log) == once
    with pytest.raises(Misconfigured, match="operations_max must be at most"):
        Settings(operations_max=most + 1)
