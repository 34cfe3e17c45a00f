"""The detector of rates on simulated traffic: hardly a false alarm, and a tenfold rate is caught in a minute.

The traffic: buckets of ten seconds, a day that goes up and down by 40 %, surges of three times, and a share of events
that drifts (lognormal, sigma 0.3, ten minutes).
"""

from __future__ import annotations

import copy
import math
import os
import random

import pytest

from samekey.detect.anomaly import ALARM, DUPLICATES, REPLAYS, Anomaly, log10_tail

FULL = os.environ.get("SAMEKEY_BUDGET") == "full"
DAY = 8640  # buckets
WEEK = 7 * DAY


def poisson(chance: random.Random, mean: float) -> int:
    if mean > 50:
        return max(0, round(chance.gauss(mean, math.sqrt(mean))))
    limit, product, count = math.exp(-mean), chance.random(), 0
    while product > limit:
        product *= chance.random()
        count += 1
    return count


class Traffic:
    def __init__(self, seed: int, per_second: float, share: float, sigma: float = 0.3) -> None:
        self.chance = random.Random(seed)
        self.per_second, self.share, self.sigma = per_second, share, sigma
        self.place, self.drift, self.surge = 0, 0.0, 0

    def bucket(self, times: float = 1.0) -> tuple[int, int]:
        chance, keeps = self.chance, math.exp(-10 / 600)
        self.drift = self.drift * keeps + self.sigma * math.sqrt(1 - keeps * keeps) * chance.gauss(0, 1)
        self.surge = self.surge - 1 if self.surge else (30 if chance.random() < 4 / DAY else 0)
        by_day = 1 + 0.4 * math.sin(2 * math.pi * self.place / DAY)
        n = poisson(chance, self.per_second * 10 * by_day * (3 if self.surge else 1))
        self.place += 1
        return min(n, poisson(chance, n * self.share * math.exp(self.drift) * times)), n


def simulated(seed, settings, per_second, share, *, weeks, trials):
    """False alarms after the first day, and how many of the tenfold spikes were caught within 60 s."""
    traffic, anomaly = Traffic(seed, per_second, share), Anomaly(settings)
    alarms = caught = 0
    quiet = 60  # buckets since the last high score: ten minutes between two alarms
    at = set(random.Random(seed).sample(range(WEEK // 2, weeks * WEEK), trials))
    for place in range(weeks * WEEK):
        if place in at:
            spiked, copied = copy.deepcopy(traffic), copy.deepcopy(anomaly)
            caught += any(copied.observe(*spiked.bucket(10)) > ALARM for _ in range(6))
        high = anomaly.observe(*traffic.bucket()) > ALARM
        alarms += high and quiet >= 60 and place > DAY
        quiet = 0 if high else quiet + 1
    return alarms, caught


@pytest.mark.slow
@pytest.mark.proof
def test_replays_at_50_requests_a_second():
    weeks, trials = (12, 400) if FULL else (1, 40)
    alarms, caught = simulated(1, REPLAYS, 50, 0.005, weeks=weeks, trials=trials)
    print(f"{alarms} false alarms in {weeks} weeks; {caught} of {trials} tenfold rates caught within 60 s")

    assert alarms / weeks < 1
    assert caught / trials >= 0.95


@pytest.mark.slow
def test_duplicates_at_50_requests_a_second():
    """A hundredth of the rows doubled: a deploy that broke a key."""
    traffic, anomaly = Traffic(2, 50, 1e-5), Anomaly(DUPLICATES)
    alarms = sum(anomaly.observe(*traffic.bucket()) > ALARM for _ in range(WEEK if FULL else 2 * DAY))
    caught = 0
    for seed in range(40):
        spiked, copied = copy.deepcopy(traffic), copy.deepcopy(anomaly)
        spiked.chance = random.Random(seed)
        caught += any(copied.observe(*spiked.bucket(1000)) > ALARM for _ in range(6))

    assert alarms == 0
    assert caught >= 38


def test_the_tail_is_that_of_the_negative_binomial():
    """Against sums of the probabilities themselves."""
    for mean, phi in ((0.5, 0.1), (3.0, 0.25), (40.0, 0.1), (40.0, 1.0)):
        size = 1 / phi
        probability = [(size / (size + mean)) ** size]
        for place in range(4000):
            probability.append(probability[-1] * (place + size) / (place + 1) * mean / (mean + size))
        for k in (1, 3, 10, 60, 120):
            if k > mean:
                exact = math.fsum(probability[k:])
                assert log10_tail(k, mean, phi) == pytest.approx(math.log10(exact), rel=1e-6, abs=1e-9)
    assert log10_tail(3, 3.0, 0.1) == 0.0
    assert log10_tail(1, 0.0, 0.1) < -100


def test_a_spike_does_not_become_usual_while_it_lasts():
    anomaly = Anomaly(REPLAYS)
    for _ in range(360):
        anomaly.observe(3, 500)
    usual = anomaly.share
    for _ in range(29):  # less than the five minutes that the baseline leaves out
        anomaly.observe(30, 500)

    assert anomaly.share == pytest.approx(usual, rel=0.02)
    assert anomaly.score > ALARM


def test_two_events_are_no_alarm_however_rare_they_are():
    anomaly = Anomaly(DUPLICATES)
    for _ in range(100):
        anomaly.observe(0, 10)

    assert anomaly.observe(2, 10) == 0.0
    assert anomaly.observe(1, 10) > ALARM


def test_the_band_holds_the_usual_share():
    anomaly = Anomaly(REPLAYS)
    for _ in range(2000):
        anomaly.observe(5, 500)
    low, high = anomaly.band(500)

    assert low < 0.01 < high
