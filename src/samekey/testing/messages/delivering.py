"""Scenarios: each message runs once, and what its errors lead to."""

from __future__ import annotations

import json
from dataclasses import replace

from samekey import CONTENT
from samekey.core.commands import Settle
from samekey.core.ports import Query
from samekey.core.states import Role, State
from samekey.testing.messages.lab import Lab
from samekey.testing.messages.scene import QUICK, Scenarios
from samekey.testing.messages.sqlite import sql


class Delivering(Scenarios):
    """One effect for each key, whatever is delivered."""

    # -- once

    def test_first_run(self) -> None:
        """The effect runs, its record is completed, and the broker forgets the message."""
        lab = self.open()
        lab.publish()
        lab.start()

        lab.until_empty()
        assert (lab.runs(), lab.state()) == (1, "completed")

    def test_duplicate_acked_without_running(self) -> None:
        """The second message with the key is acknowledged, and its effect does not run."""
        lab = self.open()
        lab.start()
        lab.publish()
        lab.until(lambda: lab.state() == "completed", "the first run")
        lab.publish()

        lab.until(lambda: len(lab.actions()) >= 2, "the second delivery")
        lab.until_empty()
        assert lab.runs() == 1

    def test_new_delivery_id_same_key(self) -> None:
        """A sender that repeats a message gives it another id; the key is the same, so it runs once."""
        lab = self.open()
        for number in range(3):
            lab.publish(headers={"message-id": f"id-{number}"})
        lab.start()

        lab.until_empty()
        assert lab.runs() == 1

    def test_metadata_ignored(self) -> None:
        """With CONTENT as the key, fields of the delivery may differ."""
        lab = self.open()
        for number in range(3):
            body = {"order": 7, "timestamp": number, "correlation_id": f"c{number}", "retry_count": number}
            lab.broker.publish(json.dumps(body).encode(), {})
        lab.start(key=CONTENT, ignore=("timestamp", "correlation_id", "retry_count"))

        lab.until_empty()
        assert lab.runs("content") == 1

    def test_duplicate_while_running_comes_later(self) -> None:
        """A message whose key is running elsewhere is not acknowledged: it comes later, and is a replay then."""
        lab = self.open()
        lab.plan(k1=["hang:one"])
        lab.publish()
        lab.start()
        lab.until_begun()
        lab.publish()
        lab.start()
        lab.until(lambda: any(one.startswith("later 3") for one in lab.actions()), "a delivery that comes later")
        lab.until(lambda: lab.broker.depth() == 2, "both messages at the broker")
        lab.open_gate("one")

        lab.until_empty()
        assert (lab.runs(), lab.state()) == (1, "completed")

    def test_later_costs_no_life(self) -> None:
        """A message that waits for another holder comes more often than it has tries, and is not set aside."""
        lab = self.open()
        rules = replace(QUICK, tries=2)
        lab.plan(k1=["hang:one"])
        lab.publish()
        lab.start(rules=rules)
        lab.until_begun()
        lab.publish()
        lab.start(rules=rules)
        lab.until(lambda: lab.actions().count("later 3") >= 4, "four deliveries that come later")
        lab.open_gate("one")

        lab.until_empty()
        assert (lab.runs(), lab.parked()) == (1, [])

    # -- errors

    def test_not_done_backs_off(self) -> None:
        """NotDone brings the message back, each time a counted try, until it is done."""
        lab = self.open()
        lab.plan(k1=["not_done", "not_done", "ok"])
        lab.publish()
        lab.start(rules=QUICK)

        lab.until_empty()
        assert (lab.runs(), lab.begun(), lab.state()) == (1, 3, "completed")
        assert [one for one in lab.actions() if "counted" in one] == ["later 5 counted"] * 2

    def test_not_done_ends(self) -> None:
        """After the last try the message is set aside, with the reason."""
        lab = self.open()
        lab.plan(k1=["not_done"])
        lab.publish()
        lab.start(rules=replace(QUICK, tries=3))

        lab.until_empty()
        assert (lab.begun(), lab.state()) == (3, "released")
        assert [one.reason for one in lab.parked()] == ["not done after 3 tries: NotDone"]

    def test_ordinary_errors_leave_no_doubt(self) -> None:
        """Under Repeatable a failing handler is run again, and no record is ever in doubt."""
        lab = self.open()
        lab.plan(**{"*": ["error", "ok"]})
        for number in range(10):
            lab.publish(f"k{number}")
        lab.start(boundary="repeatable", rules=QUICK)

        lab.until_empty()
        assert {lab.state(f"k{number}") for number in range(10)} == {"completed"}
        assert lab.parked() == []

    def test_keyed_runs_again(self) -> None:
        """Under Keyed an unknown outcome comes back and runs under the same provider key."""
        lab = self.open()
        lab.plan(k1=["error_after", "ok"])
        lab.publish()
        lab.start(rules=QUICK)

        lab.until_empty()
        assert (lab.runs(), len(lab.provider_keys()), lab.state()) == (2, 1, "completed")

    def test_asks_first(self) -> None:
        """Under Asks the next delivery asks the provider, and does not run what has happened."""
        lab = self.open()
        lab.plan(k1=["error_after", "ok"])
        lab.publish()
        lab.start(boundary="asks", rules=QUICK)

        lab.until_empty()
        assert (lab.runs(), lab.begun(), lab.state()) == (1, 1, "completed")
        assert lab.ledger.lines("ask")

    def test_opaque_parks(self) -> None:
        """Under Opaque only a person can decide: the message is parked, with the reason."""
        lab = self.open()
        lab.plan(k1=["error"])
        lab.publish()
        lab.start(boundary="opaque")

        lab.until_empty()
        (parked,) = lab.parked()
        assert (lab.state(), lab.begun()) == ("in_doubt", 1)
        assert (parked.key, parked.kind, parked.reason) == ("k1", "in doubt", "in doubt: RuntimeError")
        assert json.loads(parked.body)["key"] == "k1"

    def test_refused(self) -> None:
        """A refusal is final: the message is acknowledged, and so is its duplicate."""
        lab = self.open()
        lab.plan(k1=["refused"])
        lab.publish()
        lab.publish()
        lab.start()

        lab.until_empty()
        assert (lab.begun(), lab.state(), lab.parked()) == (1, "closed", [])

    def test_key_reused_names_fields(self) -> None:
        """The same key with another payload is set aside, and the record is not touched."""
        lab = self.open()
        lab.publish(amount=1)
        lab.start()
        lab.until(lambda: lab.state() == "completed", "the first run")
        before = lab.record()
        lab.publish(amount=2)

        lab.until(lab.parked, "a message that is set aside")
        lab.until_empty()
        after = lab.record()
        assert [one.reason for one in lab.parked()] == ["key reused: fields amount"]
        assert before is not None and after is not None
        assert (before.version, lab.runs()) == (after.version, 1)

    def test_poison_has_no_record(self) -> None:
        """A body without a key, or that cannot be read, is set aside; the messages after it are handled."""
        lab = self.open()
        lab.broker.publish(b'{"no": "key"}', {})
        lab.broker.publish(b'{"key": ', {})
        lab.publish()
        lab.start()

        lab.until_empty()
        assert lab.runs() == 1
        assert [one.kind for one in lab.parked()] == ["poison", "poison"]
        assert len(lab.guard.store.list(Query())) == 1

    def test_too_big(self) -> None:
        """A body over the limit is set aside before the claim."""
        lab = self.open()
        lab.publish(more="x" * 2000)
        lab.start(message_max_bytes=1000)

        lab.until_empty()
        assert (lab.begun(), lab.record()) == (0, None)
        assert [one.kind for one in lab.parked()] == ["too big"]

    # -- parking

    def test_redeliver_after_resolve(self) -> None:
        """A parked message whose doubt was resolved as not done runs when it is published again."""
        lab = self.open()
        lab.plan(k1=["error", "ok"])
        lab.publish()
        lab.start(boundary="opaque")
        lab.until(lab.parked, "the parked message")
        self.resolve(lab, "k1")
        (parked,) = lab.parked()
        lab.broker.publish(parked.body, parked.header_pairs)

        lab.until(lambda: lab.state() == "completed", "the second run")
        lab.until_empty()
        assert lab.runs() == 1

    def test_redrive_not_swallowed(self) -> None:
        """A message that is published again while its record is in doubt is parked again, not acknowledged."""
        lab = self.open()
        lab.plan(k1=["error", "ok"])
        lab.publish()
        lab.start(boundary="opaque")
        lab.until(lab.parked, "the parked message")
        (parked,) = lab.parked()
        lab.guard.store.redelivered(parked.id, by="ann")
        assert lab.parked(waiting=True) == []
        lab.broker.publish(parked.body, parked.header_pairs)

        lab.until(lambda: lab.parked(waiting=True), "the message that is parked again")
        lab.until_empty()
        assert (lab.begun(), lab.state()) == (1, "in_doubt")

    def test_one_doubt_spares_neighbours(self) -> None:
        """One message in doubt neither fails nor acknowledges the others."""
        lab = self.open()
        lab.plan(k2=["error"])
        for number in range(5):
            lab.publish(f"k{number}")
        lab.start(boundary="opaque")

        lab.until_empty()
        assert [lab.state(f"k{number}") for number in (0, 1, 3, 4)] == ["completed"] * 4
        assert [one.key for one in lab.parked()] == ["k2"]

    # -- the inbox

    def test_atomic_inbox(self) -> None:
        """Record and business rows commit together: an error rolls both back, and one row is there in the end."""
        lab = self.open()
        lab.plan(k1=["error_after", "error_after", "ok"])
        path = lab.store.removeprefix("sqlite:///")
        sql(path, "CREATE TABLE business (key TEXT)")
        for _ in range(3):
            lab.publish()
        lab.start(boundary="atomic", rules=QUICK)
        lab.start(boundary="atomic", rules=QUICK)

        lab.until_empty()
        assert sql(path, "SELECT count(*) FROM business") == [(1,)]
        assert (lab.state(), lab.parked()) == ("completed", [])

    def resolve(self, lab: Lab, key: str) -> None:
        """What `samekey resolve --not-done` writes."""
        record = lab.record(key)
        assert record is not None
        settle = Settle(record, Role.OPERATOR, State.RELEASED, "ann", None, None, "looked it up", 3600.0)
        lab.guard.store.carry_out(settle)
