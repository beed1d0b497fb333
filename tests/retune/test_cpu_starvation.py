"""The second stage's own sign of a neighbour, in virtual machines and on the lab's hosts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec
import pytest

from slackwater.core.config import RetuneSettings
from slackwater.core.messages import Sample
from slackwater.core.messages.sample import Cpu, Sched, Traffic
from slackwater.detector.recordings.recording import read
from slackwater.retune.cpu_starvation import CALM_ANYWAY_S, CpuStarvation
from tests.support.paths import RECORDINGS
from tests.support.seeds import seeds
from tests.support.synthetic_guest import APACHE_PHP_FPM, QUICK_PAGES, Guests, Shape, Steal

CALM_TICKS, NOISY_TICKS = 300, 300
FADES_WITHIN_S = 12.0
"""The means of 3 s show a neighbour for a while after it has gone."""


def see(nodes: dict[str, CpuStarvation], samples: Iterable[Sample]) -> Counter[str]:
    """How many Samples of each node found it starved."""
    starved: Counter[str] = Counter()
    for sample in samples:
        nodes[sample.node].see(sample)
        starved[sample.node] += nodes[sample.node].starved
    return starved


@pytest.mark.parametrize("steal", ["hidden", "reported"])
@pytest.mark.parametrize("shape", [QUICK_PAGES, APACHE_PHP_FPM], ids=["quick-pages", "apache-php-fpm"])
@pytest.mark.parametrize("seed", seeds(3))
def test_all_guests_are_starved_beside_their_neighbours_and_none_in_calm(seed: int, shape: Shape, steal: Steal) -> None:
    guests, nodes = Guests(shape, steal, seed), defaultdict[str, CpuStarvation](CpuStarvation)
    calm = see(nodes, (sample for _, samples in guests.ticks(CALM_TICKS) for sample in samples))
    assert calm.total() == 0
    guests.noisy = True
    loud = [samples[0] for _, samples in guests.ticks(NOISY_TICKS)]
    (starved,) = see(nodes, loud).values()
    assert starved > 0.8 * NOISY_TICKS, "its mean follows within seconds, and it stays"
    guests.noisy = False
    after = [samples[0] for _, samples in guests.ticks(100)]
    see(nodes, after)
    assert not nodes[after[-1].node].starved


def measured(cost_s: float, run_delay_per_cpu: float, utilisation: float) -> Sample:
    """8 requests a second of Apache and php-fpm in a real guest (QEMU without KVM, which reports no steal)."""
    cpu_s = 8.0 * cost_s
    return Sample(
        *(1, "guest", "web", 0.0, "b", 0, 0.2),
        cpu=Cpu("system", utilisation, 0.0, 1.0),
        sched=Sched(cpu_s_per_s=cpu_s, run_delay_s_per_s=run_delay_per_cpu * cpu_s),
        traffic=Traffic(rps=8.0),
    )


def test_a_real_guests_medians_show_its_neighbour() -> None:
    calm, beside, after = measured(0.025, 0.90, 0.55), measured(0.081, 1.76, 0.76), measured(0.031, 0.98, 0.60)
    starvation = CpuStarvation()
    for sample, starved in ((calm, False), (beside, True), (after, False)):
        for _ in range(150):
            starvation.see(sample)
        assert starvation.starved is starved
    assert starvation.used == pytest.approx(0.55, rel=0.2)


def test_dearer_requests_are_a_new_normal_in_the_end() -> None:
    """A deploy may make requests three times dearer, which looks alike where no steal is reported."""
    starvation = CpuStarvation()
    for _ in range(150):
        starvation.see(measured(0.02, 0.9, 0.2))
    dearer = measured(0.08, 0.9, 0.75)
    for _ in range(50):
        starvation.see(dearer)
    for _ in range(round(2 * CALM_ANYWAY_S / dearer.period_s)):
        starvation.see(dearer)
    assert not starvation.starved


@pytest.mark.parametrize("name", ["dokuwiki-calm", "events-other-load", "events-all-noisy"])
def test_on_the_labs_hosts_neighbours_show_and_disturbances_do_not(name: str) -> None:
    recording = read(RECORDINGS / f"{name}.parquet")
    nodes = defaultdict[str, CpuStarvation](CpuStarvation)
    by_truth: dict[str, list[bool]] = {"calm": [], "interference": []}
    noisy_until_s: dict[str, float] = {}
    lasts_s, longest_s = defaultdict[str, float](float), 0.0
    for sample in recording.samples:
        starved = bool(see(nodes, [sample]).total())
        truth = recording.truth(sample.node, sample.time_unix_s)
        if truth == "interference":
            noisy_until_s[sample.node] = sample.time_unix_s
        elif sample.time_unix_s - noisy_until_s.get(sample.node, 0.0) < FADES_WITHIN_S:
            continue
        by_truth.setdefault(truth, []).append(starved)
        lasts_s[sample.node] = lasts_s[sample.node] + sample.period_s if starved and truth != "interference" else 0.0
        longest_s = max(longest_s, lasts_s[sample.node])
    assert longest_s < RetuneSettings().no_room_after_s
    if by_truth["interference"]:
        assert sum(by_truth["interference"]) > 0.5 * len(by_truth["interference"])


def test_absent_traffic_or_steal_is_no_sign() -> None:
    starvation = CpuStarvation()
    for _ in range(150):
        starvation.see(msgspec.structs.replace(measured(0.02, 0.9, 0.2), traffic=None))
    assert not starvation.starved
    assert starvation.used == pytest.approx(0.2)
