"""Comparisons: blocks, what is recorded, what comes of it, and going on after an interruption."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from slackwater_lab.cluster.hosts import hosts
from slackwater_lab.cluster.lab import PreparedNoise
from slackwater_lab.compare import results
from slackwater_lab.compare.measured import Measured
from slackwater_lab.experiment import latency, recording
from slackwater_lab.experiment.cpu_share import CpuShare
from slackwater_lab.experiment.neighbours import Neighbours
from slackwater_lab.experiment.recording import Run
from slackwater_lab.experiment.scenarios import ELSEWHERE, SCENARIOS, Neighbour, Scenario
from tests.support.comparison_files import recorded, rows

POLICIES = ("static", "leastconn", "slackwater")


def test_the_tables_have_what_was_asked_for_or_say_why_not() -> None:
    assert set(ELSEWHERE) == {"streaming"}
    for name, scenario in SCENARIOS.items():
        assert scenario.neighbours or scenario.quotas, name
        assert all(0 <= neighbour.begin_s < neighbour.end_s <= scenario.seconds for neighbour in scenario.neighbours), (
            name
        )
        assert all(0 <= neighbour.host < 3 for neighbour in scenario.neighbours), name
    assert len(SCENARIOS["all"].hosts) == 3


def test_severity_is_all_that_differs() -> None:
    for name, lost in {"one": 0.5, "one-70": 0.7, "one-severe": 0.85}.items():
        scenario = SCENARIOS[name]
        same = [replace(neighbour, lost=0.5) for neighbour in scenario.neighbours]
        assert replace(scenario, description="", neighbours=tuple(same)) == replace(SCENARIOS["one"], description="")
        assert {neighbour.lost for neighbour in scenario.neighbours} == {lost}


def test_a_run_is_recorded_whole(tmp_path: Path) -> None:
    run = recorded(Run(7, 2, "one", "static"), answers_s=0.5, detected_s=0.4)
    recording.write(tmp_path, run)
    table = pq.read_table(recording.path_of(tmp_path, 7))
    assert np.array_equal(table["seconds"], run.seconds)
    about = json.loads(table.schema.metadata[recording.KEY])
    assert about["run"] == {"number": 7, "round": 2, "scenario": "one", "policy": "static"}
    assert (about["lost"], about["facts"]) == (run.lost, run.facts)
    for name, written in (("weights", run.weights), ("verdicts", run.verdicts)):
        rows = pq.read_table(recording.path_of(tmp_path, 7, name)).to_pylist()
        assert [tuple(row.values()) for row in rows] == written


def test_the_figures_of_a_run_are_those_of_its_requests() -> None:
    figures = results.of_run(recorded(Run(1, 1, "one", "static"), None))
    level = figures["loud"]["p50_ms"]
    assert level == pytest.approx(60.0, rel=0.03)
    assert figures["loud"]["second_means_median_ms"] == pytest.approx(level)
    assert figures["loud"]["requests"] == 1502
    assert figures["loud"]["errors_share"] == pytest.approx(3 / 1502), "one refused, two without any response"
    assert figures["calm"]["p95_ms"] == pytest.approx(3.0)
    assert figures["calm"]["errors_share"] == pytest.approx(1 / 600)
    assert figures["loud"]["rps"] == pytest.approx(1499 / 15)


def test_the_median_over_seconds_is_of_means_and_not_of_requests() -> None:
    run = recorded(Run(1, 1, "one", "static"))
    run.seconds = np.where(np.arange(len(run.due_s)) % 10 == 0, 1.0, 0.001)
    figures = results.of_run(run)["loud"]
    assert figures["p50_ms"] == pytest.approx(1.0)
    assert figures["second_means_median_ms"] == pytest.approx(100.9, rel=0.02)


def measured_rounds() -> list[Measured]:
    """Five rounds; a weight falls under `slackwater` alone."""
    silent = {"answers_s": None, "detected_s": None}
    return [
        run if run.variant == "slackwater" else msgspec.structs.replace(run, loud=run.loud | silent)
        for run in rows("one", {"static": 4.0, "leastconn": 2.0, "slackwater": 1.0})
    ]


def test_cells_compare_round_by_round_with_intervals() -> None:
    cells = {cell["policy"]: cell for cell in results.cells(measured_rounds())}
    assert list(cells) == ["static", "leastconn", "slackwater"]
    ours = cells["slackwater"]
    assert ours["rounds"] == 5
    assert ours["p99_ms"]["low"] < ours["p99_ms"]["value"] < ours["p99_ms"]["high"]
    assert ours["ratio"]["static"]["p99_ms"]["value"] == pytest.approx(0.25, abs=0.01)
    assert ours["ratio"]["leastconn"]["second_means_median_ms"]["value"] == pytest.approx(0.5, abs=0.02)
    assert (ours["answers_s"]["value"], ours["answered"]) == (0.4, 5)
    assert (cells["static"]["answers_s"], cells["static"]["answered"]) == (None, 0)


def test_only_rounds_that_both_have_are_compared() -> None:
    mine = [run for run in measured_rounds() if run.variant == "static" or run.round > 2]
    cells = {cell["policy"]: cell for cell in results.cells(mine)}
    assert cells["slackwater"]["ratio"]["static"]["p99_ms"]["count"] == 3


def test_an_answer_is_the_first_weight_that_fell_after_the_noise_began() -> None:
    looks = [
        (at_s, name, weight, 0)
        for at_s, weight in ((1.0, 50), (2.0, 100), (3.0, 100), (3.4, 2))
        for name, weight in (("host1", weight), ("host2", 100))
    ]
    assert latency.answer_s(looks, {"host1"}, 1.5, 2.5) == pytest.approx(0.9)
    assert latency.answer_s(looks, {"host2"}, 1.5, 2.5) is None


def test_the_way_back_ends_when_all_weights_are_at_the_baseline_to_stay() -> None:
    def looks(*weights: tuple[float, int]) -> list[tuple[float, str, int, int]]:
        return [
            (at_s, name, low if name == "host1" else 100, 0) for at_s, low in weights for name in ("host1", "host2")
        ]

    fell = ((1.0, 0), (5.0, 50), (6.0, 100))
    assert latency.back_s(looks(*fell, (7.0, 20), (7.5, 100), (8.0, 100)), 4.0) == pytest.approx(3.5)
    assert latency.back_s(looks(*fell, (7.0, 20)), 4.0) is None, "it never was to stay"
    assert latency.back_s(looks((1.0, 0), (3.0, 100), (5.0, 100)), 4.0) is None, "it was there before"


def test_a_move_is_wrong_where_a_weight_falls_without_a_neighbour() -> None:
    neighbours = [{"host": "host1", "on_s": 3.0, "off_s": 6.0}, {"host": "host1", "on_s": 9.0, "off_s": 10.0}]

    def wrong(server: str, *weights: tuple[float, int]) -> int:
        return latency.wrong_moves([(at_s, server, weight, 0) for at_s, weight in weights], neighbours, 1.0)

    assert wrong("host1", (0.0, 100), (3.5, 10), (5.0, 2), (7.0, 100), (9.4, 10)) == 0
    assert wrong("host1", (0.0, 100), (6.3, 10)) == 0, "it was on its way when the neighbour ended"
    assert wrong("host1", (0.0, 100), (3.5, 10), (7.0, 100), (8.0, 10), (8.5, 5), (8.6, 100)) == 1, "again, alone"
    assert wrong("host2", (0.0, 100), (3.5, 10)) == 1, "beside another host"
    assert wrong("host2", (0.0, 100), (0.5, 10), (0.9, 100), (2.0, 100)) == 0, "before the calm that counts"


def test_weights_that_are_not_the_baseline_at_the_end_are_away() -> None:
    looks = [(1.0, "host1", 10, 0), (1.0, "host2", 100, 0), (2.0, "host1", 100, 0), (2.0, "host2", 100, 0)]
    assert not latency.is_away(looks)
    assert latency.is_away([*looks, (3.0, "host2", 99, 0)])


def test_neighbours_come_and_go_by_the_scenario_and_the_policy_is_reported() -> None:
    events: list[str] = []

    def prepare_noise(together: list[str], kind: str, intensity: float, _seconds: float, weight: int) -> PreparedNoise:
        assert weight == 100
        events.append(f"{kind} prepares")

        def begin() -> list[Any]:
            events.append(f"{kind} {intensity:g} in {', '.join(together)}")
            return [
                SimpleNamespace(
                    check=lambda: None,
                    stop=lambda: events.append(f"{kind} ends"),
                    on_mono_s=0.0,
                    off_mono_s=0.0,
                    host=host,
                    kind=kind,
                )
                for host in together
            ]

        return PreparedNoise(begin, lambda: events.append(f"{kind} is given up"))

    scenario = Scenario("two kinds", (Neighbour(0, 0.0, 0.2, "cpu"), Neighbour(1, 0.1, 0.3, "dcopy", 0.5)), seconds=0.3)
    pretended: Any = SimpleNamespace(hosts=["host1", "host2"], prepare_noise=prepare_noise)
    used = iter(range(1000))
    at_s = 0.0
    share = CpuShare(lambda _: float(next(used)), hosts(2), lambda: at_s)

    def changed(lost: dict[int, float]) -> None:
        share.turn(bool(lost))
        events.append(f"noisy: {lost}")

    stage = Neighbours(pretended, scenario.neighbours, lambda: at_s)
    assert events == ["cpu prepares", "dcopy prepares"], "before their time counts"
    stage.start(0.0, changed)
    for tick in range(31):
        assert not stage.over
        at_s = tick / 100
        stage.tend()
    assert stage.over
    assert events == [
        *(
            "cpu prepares",
            "dcopy prepares",
            "cpu 1 in host1",
            "noisy: {0: 0.5}",
            "dcopy 0.5 in host2",
            "noisy: {0: 0.5, 1: 0.25}",
        ),
        *("cpu ends", "noisy: {1: 0.25}", "dcopy ends", "noisy: {}"),
    ]
    assert [noise.kind for noise in stage.past] == ["cpu", "dcopy"]
    # Four reads at each of four turns, from the first neighbour to the end of the last: three times four between.
    assert {use["vm_s"] for use in share.used.values()} == {12.0}
    assert [use["loud_s"] for use in share.used.values()] == pytest.approx([0.3, 0.3])
    events.clear()
    stage = Neighbours(pretended, scenario.neighbours, lambda: 0.5)
    stage.start(1.0, lambda _: None)
    stage.tend()
    assert not stage.over
    stage.stop()
    assert sorted(events) == ["cpu is given up", "cpu prepares", "dcopy is given up", "dcopy prepares"]
