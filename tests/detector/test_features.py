"""Features: what makes nodes comparable, and that absent values stay absent with their reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.core.messages import Canary, Counters, Pressure, Sample
from slackwater.detector.baseline_checkpoint import load, save
from slackwater.detector.explain import describe_signal
from slackwater.detector.features.baseline import AT_ONCE, KEEP, LAST_HEARD, MIN_SAMPLES, QUANTILES, Baselines, bins_of
from slackwater.detector.features.columns import Table, row_of, table_of
from slackwater.detector.features.features import FEATURES, Features, Frame, _median_of_others
from slackwater.detector.features.history import SampleWindows
from slackwater.detector.features.signals import INDEX, SIGNALS, reason
from tests.support.detector_frames import frame as hand_made
from tests.support.synthetic_cluster import Cluster


def table(samples: list[Sample]) -> Table:
    return table_of([row_of(sample) for sample in samples], samples[0].pool)


def one_signal(baselines: Baselines, key: str, values: list[float], load_bin: int = 3) -> None:
    rows = np.full((len(values), len(SIGNALS)), np.nan)
    rows[:, INDEX[key]] = values
    for row in rows:
        baselines.learn(np.array([0]), np.array([load_bin]), row[None, :])


def frame_after(cluster: Cluster, seconds: float) -> tuple[Frame, Sample]:
    features, history = Features(), SampleWindows()
    slots = {name: slot for slot, name in enumerate(cluster.names)}
    features.resize(len(slots))
    history.resize(len(slots))
    fresh = np.ones(len(slots), dtype=bool)
    for _, samples in cluster.run(seconds):
        sample = samples[0]
        row = np.array([slots[sample.node]])
        rows = history.add(row, table(samples), np.array([sample.seq == 0]))
        frame = features.compute(rows, fresh, ~fresh)
        features.baselines.learn(row, frame.bins, frame.values)
    return frame, sample


def test_a_calm_node_is_near_one_times_its_baseline_and_its_peers() -> None:
    frame, _ = frame_after(Cluster(), 6)
    for key in ("probe_cycles", "rt_mean", "canary_ratio", "cpu_per_request"):
        assert frame.own[0, INDEX[key]] == pytest.approx(1.0, abs=0.5)
        assert frame.peers[0, INDEX[key]] == pytest.approx(1.0, abs=0.5)
    assert frame.demand[0] == pytest.approx(0.29, abs=0.15)


def test_there_is_no_baseline_before_enough_calm_ticks_and_there_is_one_after() -> None:
    few, _ = frame_after(Cluster(names=("host1",)), 0.2 * (MIN_SAMPLES // 2))
    assert np.isnan(few.own[:, INDEX["probe_cycles"]]).all()
    enough, _ = frame_after(Cluster(names=("host1",)), 5)
    assert not np.isnan(enough.own[:, INDEX["probe_cycles"]]).any()


def test_a_node_without_a_baseline_borrows_its_peers() -> None:
    features, history, cluster = Features(), SampleWindows(), Cluster()
    features.resize(3)
    history.resize(3)
    for _, samples in cluster.run(6):
        slot = cluster.names.index(samples[0].node)
        rows = history.add(np.array([slot]), table(samples), np.array([samples[0].seq == 0]))
        frame = features.compute(rows, np.ones(3, dtype=bool), np.zeros(3, dtype=bool))
        if slot != 0:
            features.baselines.learn(np.array([slot]), frame.bins, frame.values)
        else:
            last = frame
    assert last.borrowed[0]
    assert last.own[0, INDEX["probe_cycles"]] == pytest.approx(1.0, abs=0.3)
    assert "its peers' calm baseline" in describe_signal(INDEX["probe_cycles"], last, np.array([0]))[0]


def test_missing_values_are_nan_never_zero_and_argue_neither_way() -> None:
    frame, _ = frame_after(Cluster(traffic=False, canary=False, sched=False), 4)
    for key in ("cpu_per_request", "canary_ratio", "run_delay_per_cpu"):
        assert np.isnan(frame.values[0, INDEX[key]])
        assert frame.excess[0, INDEX[key]] == 1.0
    assert frame.matrix[0].tolist() == [0.0] * len(FEATURES)


def test_the_features_are_the_two_most_remarkable_groups_of_signals_and_what_users_feel_of_the_first() -> None:
    """At its scale a signal counts 1, at the square of it 2."""

    def features(**signals: float) -> list[float]:
        known = {"rt_p95": 1.0, "run_delay_per_cpu": 1.0, **signals}
        features_row: list[float] = hand_made([80.0], [0.3], **known).matrix[0].round(6).tolist()
        return features_row

    run_delay, steal, cost, rt_p95 = (
        SIGNALS[INDEX[key]].scale for key in ("run_delay_per_cpu", "steal", "cpu_per_request", "rt_p95")
    )
    assert features() == [0.0, 0.0, 0.0]
    assert features(run_delay_per_cpu=run_delay**2, cpu_per_request=cost) == [2.0, 1.0, 0.0]
    assert features(run_delay_per_cpu=run_delay**2, steal=steal, rt_p95=rt_p95) == [2.0, 0.0, 1.0], "of one group"
    assert features(run_delay_per_cpu=run_delay, rt_p95=rt_p95**3) == [1.0, 0.0, 1.0], "as far as it is felt"
    assert features(rt_p95=rt_p95**3) == [0.0, 0.0, 0.0], "that users wait is no cause"
    unknown = hand_made([np.nan], [0.3], run_delay_per_cpu=run_delay**2)
    assert unknown.matrix[0].round(6).tolist() == [2.0, 0.0, 2.0], "the cause is believed"


def test_what_is_evidence_or_a_response_time_has_its_words_for_people() -> None:
    without = [
        signal.key
        for signal in SIGNALS
        if (np.isfinite(signal.scale) or signal.grows == "response") != bool(signal.plain)
    ]
    assert without == ["rt_p50"], "it is no evidence, and never the first response time that is known"
    for signal in SIGNALS:
        assert "{" not in signal.plain.format(times="18 times", usual="as usual", value="38 ms")


def test_response_times_by_route_come_before_those_over_all_requests() -> None:
    mixed = hand_made([80.0], [0.3], run_delay_per_cpu=100.0, rt_p95=30.0, rt_routes=1.0)
    assert mixed.matrix[0, FEATURES.index("felt cause")] == 0.0


def test_a_sample_with_nothing_in_it_gives_only_absent_features() -> None:
    history, features = SampleWindows(), Features()
    history.resize(1)
    features.resize(1)
    bare = Sample(v=1, node="n", pool="p", time_unix_s=1.0, boot_id="b", seq=0, period_s=0.0)
    frame = features.compute(
        history.add(np.array([0]), table([bare]), np.array([True])), np.array([True]), np.array([False])
    )
    assert (frame.matrix == 0.0).all()


def test_a_restarted_monitor_starts_its_windows_anew() -> None:
    history = SampleWindows()
    history.resize(1)
    cluster = Cluster(names=("host1",))
    for _, samples in cluster.run(2):
        samples[0].counters = Counters(source="canary", wall_cpu_ratio=9.0)
        rows = history.add(np.array([0]), table(samples), np.array([False]))
    assert rows.values[0, INDEX["canary_ratio_max"]] == 9.0
    sample = cluster.sample("host1", 3.0)
    sample.counters = Counters(source="canary", wall_cpu_ratio=1.5)
    rows = history.add(np.array([0]), table([sample]), np.array([True]))
    assert rows.values[0, INDEX["canary_ratio_max"]] == 1.5


def test_the_probe_is_read_beside_hardware_counters() -> None:
    """Hardware counters take the place of the probe in `counters`; its ratio of wall to CPU time is still needed."""
    history = SampleWindows()
    history.resize(1)
    sample = Cluster(names=("host1",)).sample("host1", 3.0)
    sample.counters = Counters(source="pmu", cpi=1.4)
    sample.canary = Canary(wall_cpu_ratio=7.0)
    rows = history.add(np.array([0]), table([sample]), np.array([True]))
    assert rows.values[0, INDEX["canary_ratio"]] == 7.0
    assert rows.values[0, INDEX["canary_ratio_max"]] == 7.0
    assert rows.values[0, INDEX["cpi"]] == 1.4
    sample.canary = None
    sample.absent["canary"] = "the canary is switched off in the configuration"
    rows = history.add(np.array([0]), table([sample]), np.array([True]))
    assert np.isnan(rows.values[0, INDEX["canary_ratio"]])
    assert reason(SIGNALS[INDEX["canary_ratio"]], sample.absent) == "the canary is switched off in the configuration"


def test_how_late_the_canary_began_is_a_signal_with_its_longest_of_a_second_and_its_reason_when_absent() -> None:
    history = SampleWindows()
    history.resize(1)
    cluster = Cluster(names=("host1",))
    lates: list[tuple[float, float]] = []
    for late_ms in (0.1, 24.0, 0.2, None):
        sample = cluster.sample("host1", 3.0)
        sample.canary = Canary(late_ms=late_ms)
        sample.absent["canary.late_ms"] = "the probe ran with the Sample, not at a moment of its own"
        values = history.add(np.array([0]), table([sample]), np.array([not lates])).values[0]
        lates.append((values[INDEX["late"]], values[INDEX["late_max"]]))
    assert lates[:3] == [(0.1, 0.1), (24.0, 24.0), (0.2, 24.0)]
    assert np.isnan(lates[3][0])
    assert lates[3][1] == 24.0
    assert reason(SIGNALS[INDEX["late"]], sample.absent) == "the probe ran with the Sample, not at a moment of its own"


def test_pressure_of_the_servers_own_cgroup_comes_before_the_machines() -> None:
    history = SampleWindows()
    history.resize(1)
    sample = Cluster(names=("host1",)).sample("host1", 3.0)
    pressures = []
    for pressure in (Pressure(cpu_some=0.9), Pressure(cpu_some=0.9, cgroup_cpu_some=0.0), Pressure()):
        sample.pressure = pressure
        pressures.append(history.add(np.array([0]), table([sample]), np.array([True])).values[0, INDEX["cpu_pressure"]])
    assert pressures[:2] == [0.9, 0.0]
    assert np.isnan(pressures[2])


def test_the_baseline_is_the_median_and_ignores_a_few_wild_values() -> None:
    baselines = Baselines()
    baselines.resize(1)
    one_signal(baselines, "cpi", [100.0, 102.0, 98.0, 101.0, 99.0] * 4 + [9000.0, 9000.0])
    median, spread, high = baselines.reference(np.array([0]), np.array([3]))
    assert median[0, INDEX["cpi"]] == pytest.approx(100.0, abs=1.0)
    assert spread[0, INDEX["cpi"]] < 5.0
    assert high[0, INDEX["cpi"]] == 9000.0, "one tick of ten is usual"
    assert np.isnan(median[0, INDEX["steal"]])


def test_baselines_are_kept_apart_by_load_and_the_nearest_load_speaks_for_one_not_seen() -> None:
    baselines = Baselines()
    baselines.resize(1)
    one_signal(baselines, "run_delay_per_cpu", [1.0] * 20, load_bin=2)
    one_signal(baselines, "run_delay_per_cpu", [4.0] * 20, load_bin=6)
    column = INDEX["run_delay_per_cpu"]
    reference = {number: baselines.reference(np.array([0]), np.array([number]))[0][0, column] for number in range(8)}
    assert reference[2] == 1.0
    assert reference[6] == 4.0
    assert reference[0] == reference[1] == 1.0, "a quieter load than any seen is not expected to wait less"
    assert 1.0 < reference[3] < reference[6], "a busier one is expected to wait more"
    assert reference[7] > 4.0


def test_an_overload_says_nothing_about_waits_at_another_load() -> None:
    baselines = Baselines()
    baselines.resize(1)
    one_signal(baselines, "rt_p95", [1500.0] * 20, load_bin=7)
    one_signal(baselines, "cpi", [2.0] * 20, load_bin=7)
    for load_bin in range(7):
        median, _, _ = baselines.reference(np.array([0]), np.array([load_bin]))
        assert np.isnan(median[0, INDEX["rt_p95"]])
        assert median[0, INDEX["cpi"]] == 2.0, "the load does not raise it"
    assert baselines.reference(np.array([0]), np.array([7]))[0][0, INDEX["rt_p95"]] == 1500.0
    one_signal(baselines, "rt_p95", [10.0] * 20, load_bin=1)
    assert baselines.reference(np.array([0]), np.array([6]))[0][0, INDEX["rt_p95"]] < 100.0, "not the nearer overload"


def test_the_balancers_checks_are_no_measure_of_what_requests_cost() -> None:
    """A check took 0.3 ms of CPU time, a request 4 ms: the server was in an episode for as long as it had requests."""
    baselines = Baselines()
    baselines.resize(1)
    for key in ("cpu_per_request", "rt_mean", "cpi"):
        one_signal(baselines, key, [0.3] * 20, load_bin=0)
    for load_bin in range(1, 8):
        median, _, _ = baselines.reference(np.array([0]), np.array([load_bin]))
        assert np.isnan(median[0, [INDEX["cpu_per_request"], INDEX["rt_mean"]]]).all()
        assert median[0, INDEX["cpi"]] == pytest.approx(0.3)
    one_signal(baselines, "cpu_per_request", [4.0] * 20, load_bin=3)
    assert baselines.reference(np.array([0]), np.array([1]))[0][0, INDEX["cpu_per_request"]] == 4.0


def test_a_full_baseline_learns_slowly_so_that_a_creeping_neighbour_is_not_learnt_as_calm() -> None:
    baselines = Baselines()
    baselines.resize(1)
    one_signal(baselines, "cpi", [100.0] * (KEEP * 20))
    one_signal(baselines, "cpi", [200.0] * KEEP)
    median, _, _ = baselines.reference(np.array([0]), np.array([3]))
    assert median[0, INDEX["cpi"]] == 100.0


def test_baselines_survive_on_disk(tmp_path: Path) -> None:
    baselines = Baselines()
    baselines.resize(1)
    one_signal(baselines, "cpi", [float(value) for value in range(90, 111)])
    path = tmp_path / "state" / "detector-baselines.json"
    (cells,) = baselines.export(np.array([0]))
    kept = {LAST_HEARD: 1e6, **cells}
    save(path, json.dumps({"v": 3, "pools": {"web": {"host1": kept, "old": {LAST_HEARD: 1.0}}}}).encode())
    again = Baselines()
    again.resize(1)
    read = load(path, now_unix_s=1e6 + 10.0)["web"]
    assert read == {"host1": kept}, "a node that left long ago is not believed any more"
    again.restore(0, cells)
    for before, after in zip(
        baselines.reference(np.array([0]), np.array([3])), again.reference(np.array([0]), np.array([3])), strict=True
    ):
        assert after[0, INDEX["cpi"]] == pytest.approx(before[0, INDEX["cpi"]], rel=0.25)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "no draft is left behind"
    assert load(path, now_unix_s=1e6 + 30 * 86400) == {"web": {}}, "baselines of last month are not believed"
    assert load(tmp_path / "none.json", now_unix_s=0.0) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"v": 2}',
        '{"v": 3, "pools": {"web": 3}}',
        '{"v": 3, "pools": {"web": {"n": {}}}}',
        "[" * 100_000,
    ],
)
def test_a_damaged_baseline_file_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "baselines.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"baselines\.json: not the detector's baselines"):
        load(path, now_unix_s=2.0)


@pytest.mark.parametrize(
    "cells", [{"99": {}}, {"x": {}}, {"3": {"cpi": [1, 2]}}, {"3": {"cpi": ["a"] * QUANTILES}}, {"3": 7}]
)
def test_a_damaged_baseline_of_a_node_is_refused_and_leaves_none(cells: dict[str, Any]) -> None:
    baselines = Baselines()
    baselines.resize(1)
    with pytest.raises(ValueError, match="not a baseline"):
        baselines.restore(0, cells)
    assert np.isnan(baselines.reference(np.array([0]), np.array([3]))[0]).all()


def test_cells_that_are_due_together_are_summed_up_in_turn_and_none_is_forgotten() -> None:
    nodes = 3 * AT_ONCE
    baselines = Baselines()
    baselines.resize(nodes)
    rows = np.full((nodes, len(SIGNALS)), np.nan)
    rows[:, INDEX["cpi"]] = np.arange(nodes) + 1.0
    everyone, bins = np.arange(nodes), np.full(nodes, 3)
    nobody = np.zeros(0, dtype=np.int64)
    for _ in range(MIN_SAMPLES):
        baselines.learn(everyone, bins, rows)
    known = [int((~np.isnan(baselines.reference(everyone, bins).median[:, INDEX["cpi"]])).sum())]
    for _ in range(2):
        baselines.learn(nobody, nobody, rows[:0])
        known.append(int((~np.isnan(baselines.reference(everyone, bins).median[:, INDEX["cpi"]])).sum()))
    assert known == [AT_ONCE, 2 * AT_ONCE, nodes]
    np.testing.assert_array_equal(baselines.reference(everyone, bins).median[:, INDEX["cpi"]], np.arange(nodes) + 1.0)


def test_loads_fall_in_their_bins_and_an_unknown_load_in_the_lowest() -> None:
    assert bins_of(np.array([np.nan, 0.0, 0.2, 0.5, 2.0])).tolist() == [0, 0, 2, 4, 7]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.floats(0, 100), st.just(float("nan"))), min_size=1, max_size=9),
    st.data(),
)
def test_the_median_of_the_others_is_what_it_says(values: list[float], data: st.DataObject) -> None:
    fit = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    medians = _median_of_others(np.array(values)[:, None], fit, np.arange(len(values)))[:, 0]
    for number in range(len(values)):
        others = sorted(
            value for other, value in enumerate(values) if other != number and fit[other] and value == value
        )
        if others:
            assert medians[number] == others[(len(others) - 1) // 2]
        else:
            assert np.isnan(medians[number])
