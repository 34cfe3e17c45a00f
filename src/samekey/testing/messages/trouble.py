"""Scenarios: workers are killed, paused and stopped, and the store is down."""

from __future__ import annotations

import signal

from samekey.core.states import State
from samekey.testing.messages.scene import SHORT_LEASE, Scenarios


class Trouble(Scenarios):
    """What happens to workers and to the store."""

    # -- crashes

    def test_kill_before_effect(self) -> None:
        """The worker is killed before the effect: the next delivery runs it."""
        lab = self.open()
        lab.plan(k1=["die_first", "ok"])
        lab.publish()
        assert lab.start(lease=SHORT_LEASE).wait() == -signal.SIGKILL
        lab.start(lease=SHORT_LEASE)

        lab.until_empty()
        assert (lab.runs(), lab.begun(), lab.state()) == (1, 2, "completed")

    def test_kill_before_settle(self) -> None:
        """The worker is killed after the effect: under Keyed it runs again, with the same provider key."""
        lab = self.open()
        lab.plan(k1=["die_after", "ok"])
        lab.publish()
        assert lab.start(lease=SHORT_LEASE).wait() == -signal.SIGKILL
        lab.start(lease=SHORT_LEASE)

        lab.until_empty()
        assert (lab.runs(), len(lab.provider_keys()), lab.state()) == (2, 1, "completed")

    def test_kill_before_ack(self) -> None:
        """The worker is killed after the record is settled: the next delivery is a replay."""
        lab = self.open()
        lab.plan(k1=["die_before_ack"])
        lab.publish()
        assert lab.start().wait() == -signal.SIGKILL
        lab.start()

        lab.until_empty()
        assert (lab.runs(), lab.begun(), lab.state()) == (1, 1, "completed")

    def test_kill_inside_lease_is_done(self) -> None:
        """A delivery that comes while the lease of a dead worker lives is not dropped: the work gets done."""
        lab = self.open()
        lab.plan(k1=["die_first", "ok"])
        lab.publish()
        assert lab.start(lease=4.0).wait() == -signal.SIGKILL
        lab.start(lease=4.0)

        lab.until_empty()
        assert (lab.runs(), lab.state(), lab.parked()) == (1, "completed", [])

    def test_own_redelivery_continues(self) -> None:
        """The redelivered message takes over its own record: one record, two attempts."""
        lab = self.open()
        lab.plan(k1=["die_after", "ok"])
        lab.publish()
        assert lab.start(lease=SHORT_LEASE).wait() == -signal.SIGKILL
        lab.start(lease=SHORT_LEASE)

        lab.until_empty()
        record = lab.record()
        assert record is not None
        assert (record.state, record.attempts) == (State.COMPLETED, 2)

    # -- the store is down

    def test_store_down_stops_and_resumes(self) -> None:
        """While the store is down nothing runs and nothing is forgotten; then the message is handled."""
        lab = self.open()
        lab.open_gate("store-down")
        lab.publish()
        lab.start(gated_store=True)
        lab.until(lambda: len(lab.ledger.lines("down")) >= 2, "a store that is down")
        assert (lab.begun(), lab.broker.depth()) == (0, 1)
        lab.close_gate("store-down")

        lab.until_empty()
        assert (lab.runs(), lab.state()) == (1, "completed")

    def test_store_down_at_settle_not_acked(self) -> None:
        """An effect whose outcome cannot be written is not acknowledged; later it runs under its provider key."""
        lab = self.open()
        lab.plan(k1=["hang:one", "ok"])
        lab.publish()
        lab.start(gated_store=True, lease=SHORT_LEASE)
        lab.until_begun()
        lab.open_gate("store-down")
        lab.open_gate("one")
        lab.until(lambda: any(one.startswith("silent 14") for one in lab.actions()), "a settle that is given up")
        assert lab.broker.depth() == 1
        lab.close_gate("store-down")

        lab.until_empty()
        assert (len(lab.provider_keys()), lab.state(), lab.parked()) == (1, "completed", [])

    # -- leases

    def test_lost_lease_says_nothing(self) -> None:
        """A paused consumer that wakes while another has its message sends nothing: the message stays."""
        lab = self.open()
        lab.plan(k1=["pause", "hang:two", "ok"])
        lab.publish()
        paused = lab.start(lease=SHORT_LEASE)
        lab.until(lab.runs, "the first run")
        lab.start(lease=SHORT_LEASE)
        lab.broker.take_away(paused.pid)
        lab.until_begun(times=2)
        paused.wake()
        lab.until(lambda: any(one.startswith("silent") for one in lab.actions()), "the old holder that says nothing")
        assert lab.broker.depth() == 1
        lab.open_gate("two")

        lab.until_empty()
        assert (len(lab.provider_keys()), lab.state()) == (1, "completed")

    def test_paused_consumer_wakes(self) -> None:
        """One that wakes after another has settled the record finds the answer, and nothing runs again."""
        lab = self.open()
        lab.plan(k1=["pause", "ok"])
        lab.publish()
        paused = lab.start(lease=SHORT_LEASE)
        lab.until(lab.runs, "the first run")
        lab.start(lease=SHORT_LEASE)
        lab.broker.take_away(paused.pid)
        lab.until(lambda: lab.state() == "completed", "the second holder")
        paused.wake()

        lab.until(lambda: lab.ledger.lines("end", "k1")[1:], "the end of the first effect")
        lab.until_empty()
        assert (lab.runs(), len(lab.provider_keys())) == (2, 1)

    def test_long_effect_keeps_timer(self) -> None:
        """An effect longer than the lease and than the broker's timer is not given to another."""
        lab = self.open()
        lab.plan(k1=[f"sleep:{max(lab.broker.timer_seconds, SHORT_LEASE) * 1.7}"])
        lab.publish()
        for _ in range(2):
            lab.start(lease=SHORT_LEASE)

        lab.until_empty()
        assert (lab.runs(), lab.begun(), lab.state()) == (1, 1, "completed")

    # -- shutdown

    def test_shutdown_gives_back(self) -> None:
        """A worker that stops finishes what runs, and gives back what it has not begun."""
        lab = self.open()
        lab.plan(k1=["hang:one"])
        lab.publish()
        worker = lab.start()
        lab.until_begun()
        for key in ("k2", "k3"):
            lab.publish(key)
        worker.stop()
        lab.open_gate("one")
        assert worker.wait() == 0
        assert (lab.state(), lab.runs("k2") + lab.runs("k3")) == ("completed", 0)
        lab.start()

        lab.until_empty()
        assert [lab.runs(key) for key in ("k1", "k2", "k3")] == [1, 1, 1]

    def test_shutdown_past_grace(self) -> None:
        """An effect that does not end in time is cut; the next delivery finishes it under its provider key."""
        lab = self.open()
        lab.plan(k1=["hang:never", "ok"])
        lab.publish()
        worker = lab.start(grace=0.3, lease=SHORT_LEASE)
        lab.until(lab.runs, "the first run")
        worker.stop()
        worker.process.join(30)
        lab.start(lease=SHORT_LEASE)
        lab.broker.gone(worker.pid)

        lab.until(lambda: lab.state() == "completed", "the second run")
        lab.until_empty()
        assert (lab.runs(), len(lab.provider_keys()), lab.parked()) == (2, 1, [])
