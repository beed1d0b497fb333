"""A recorded story from a virtual PMU: a guest is moved beside a neighbour, and its Verdict names the PMU's CPI.

The Samples are the real monitor's, of emulated machines (tests/support/cpi_recording.py).
"""

from __future__ import annotations

from statistics import median

from slackwater.detector.classify.tree import SHIPPED, load
from slackwater.detector.judge import Judge
from slackwater.detector.recordings.recording import read
from slackwater.detector.train.replay import play
from tests.support.cpi_recording import FILE, NOISY


def test_twice_the_cycles_per_instruction_become_a_verdict_that_names_them() -> None:
    recording = read(FILE)
    (label,) = recording.labels
    assert label.node == NOISY
    cpi = [
        (sample.time_unix_s > label.start_unix_s, sample.counters.cpi)
        for sample in recording.samples
        if sample.node == NOISY and sample.counters and sample.counters.source == "pmu" and sample.counters.cpi
    ]
    calm, beside = (median(value for during, value in cpi if during is wanted) for wanted in (False, True))
    assert beside == 2 * calm
    verdicts = play(recording, Judge("web", stale_after_s=3.0, calm_dwell_s=2.0, model=load(SHIPPED)))
    loud = [verdict for verdict in verdicts if verdict.state == "interference"]
    assert {verdict.node for verdict in loud} == {NOISY}
    assert loud[0].time_unix_s > label.start_unix_s
    assert any("cycles per instruction (PMU)" in line for line in loud[0].path)
