"""Comparisons: the plan, what is recorded, what comes of it, and going on after an interruption."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from lab.cluster.hosts import hosts
from lab.cluster.lab import LabSettings, PreparedNoise
from lab.cluster.load import Demand
from lab.cluster.paths import LabError
from lab.commands import lab
from lab.compare import compare, results
from lab.compare import comparison as plan
from lab.experiment import latency, recording
from lab.experiment import run as runner
from lab.experiment.cpu_share import CpuShare
from lab.experiment.policy_runners import look_of
from lab.experiment.recording import ExperimentError, Run
from lab.experiment.scenarios import ELSEWHERE, SCENARIOS, Neighbour, Scenario
from slackwater.messages import VERSION, Cpu, Sample, Traffic
from tests.support.comparison_files import LEVEL_MS, comparison, recorded


def test_a_plan_has_every_run_once_in_an_order_that_its_seed_decides() -> None:
    made = plan.planned(("one", "two"), ("static", "slackwater"), rounds=4, seed=5)
    keys = {(run.round, run.scenario, run.policy) for run in made.runs}
    assert len(keys) == len(made.runs) == 16
    assert [run.number for run in made.runs] == list(range(1, 17))
    assert [run.round for run in made.runs] == sorted(run.round for run in made.runs), "round by round"
    assert made == plan.planned(("one", "two"), ("static", "slackwater"), rounds=4, seed=5)
    orders = {tuple(run.policy + run.scenario for run in made.runs if run.round == number) for number in range(1, 5)}
    assert len(orders) > 1, "no policy always comes first"
    assert made.runs != plan.planned(("one", "two"), ("static", "slackwater"), rounds=4, seed=6).runs


def test_within_a_round_an_application_is_started_once() -> None:
    made = plan.planned(("one", "dokuwiki", "two"), ("static", "slackwater"), rounds=3, seed=1)
    for number in (1, 2, 3):
        apps = [SCENARIOS[run.scenario].app for run in made.runs if run.round == number]
        assert sum(a != b for a, b in itertools.pairwise(apps)) == 1


@pytest.mark.parametrize(
    ("scenarios", "policies", "progress"),
    [
        (("nowhere",), ("static",), "no scenario `nowhere`; there are: one, "),
        (("one",), ("magic",), "no policy `magic`; there are: static, "),
        (("one", "one"), ("static",), "expected each scenario once"),
        (("one",), (), "expected each policy once, and one at least, got: none"),
    ],
)
def test_names_that_are_not_in_the_tables_are_refused(scenarios: Any, policies: Any, progress: str) -> None:
    with pytest.raises(ExperimentError, match=progress):
        plan.planned(scenarios, policies, rounds=1, seed=1)


def test_the_tables_have_what_was_asked_for_or_say_why_not() -> None:
    assert set(ELSEWHERE) == {"streaming"}
    for name, scenario in SCENARIOS.items():
        assert scenario.neighbours, name
        assert all(0 <= one.begin_s < one.end_s <= scenario.seconds for one in scenario.neighbours), name
        assert all(0 <= one.host < 3 for one in scenario.neighbours), name
    assert len(SCENARIOS["all"].hosts) == 3


def test_severity_is_all_that_differs() -> None:
    for name, lost in {"one": 0.5, "one-70": 0.7, "one-severe": 0.85}.items():
        scenario = SCENARIOS[name]
        same = [replace(one, lost=0.5) for one in scenario.neighbours]
        assert replace(scenario, what="", neighbours=tuple(same)) == replace(SCENARIOS["one"], what="")
        assert {one.lost for one in scenario.neighbours} == {lost}


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = Run(7, 2, "one", "static")
    before = recorded(run, answers_s=0.5, detected_s=0.4)
    recording.write(tmp_path, before)
    after = recording.read(tmp_path, run)
    assert (after.marks, after.lost, after.weights, after.verdicts, after.facts) == (
        before.marks,
        before.lost,
        before.weights,
        before.verdicts,
        before.facts,
    )
    assert np.array_equal(after.seconds, before.seconds)
    with pytest.raises(ExperimentError, match=r"it is of Run.*the plan says"):
        recording.read(tmp_path, Run(7, 3, "one", "static"))


def test_a_damaged_recording_is_named(tmp_path: Path) -> None:
    made = comparison(tmp_path, runs=2)
    path = recording.path_of(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ExperimentError, match=r"0001\.parquet: not a run of a comparison"):
        recording.read(tmp_path, made.runs[0])
    (tmp_path / "plan.json").write_text('{"v": 1}')
    with pytest.raises(ExperimentError, match=r"plan\.json: not the plan of a comparison"):
        plan.load(tmp_path)
    with pytest.raises(ExperimentError, match="is missing: expected the folder of a comparison"):
        plan.load(tmp_path / "nothing")


def test_the_figures_of_a_run_are_those_of_its_requests() -> None:
    found = results.of_run(recorded(Run(1, 1, "one", "static"), None))
    level = found["loud"]["p50_ms"]
    assert level == pytest.approx(60.0, rel=0.03)
    assert found["loud"]["second_means_median_ms"] == pytest.approx(level)
    assert found["loud"]["requests"] == 1502
    assert found["loud"]["errors_share"] == pytest.approx(3 / 1502), "one refused, two without any response"
    assert found["calm"]["p95_ms"] == pytest.approx(3.0)
    assert found["calm"]["errors_share"] == pytest.approx(1 / 600)
    assert found["after"]["requests"] == 600
    assert found["loud"]["rps"] == pytest.approx(1499 / 15)


def test_the_median_over_seconds_is_of_means_and_not_of_requests() -> None:
    run = recorded(Run(1, 1, "one", "static"))
    run.seconds = np.where(np.arange(len(run.due_s)) % 10 == 0, 1.0, 0.001)
    found = results.of_run(run)["loud"]
    assert found["p50_ms"] == pytest.approx(1.0)
    assert found["second_means_median_ms"] == pytest.approx(100.9, rel=0.02)


def test_a_summary_compares_round_by_round_with_intervals(tmp_path: Path) -> None:
    comparison(tmp_path)
    found = results.summary(tmp_path)
    assert found["complete"]
    assert results.cut_short(found) == ""
    cells = {cell["policy"]: cell for cell in found["cells"]}
    assert set(cells) == set(LEVEL_MS)
    ours = cells["slackwater"]
    assert ours["rounds"] == 5
    assert ours["p99_ms"]["value"] == pytest.approx(10.0, rel=0.02)
    assert ours["p99_ms"]["low"] <= ours["p99_ms"]["value"] <= ours["p99_ms"]["high"]
    assert ours["change"]["static"]["p99_ms"]["value"] == pytest.approx(10.0 / 60.0 - 1.0, abs=0.01)
    assert ours["change"]["leastconn"]["second_means_median_ms"]["value"] == pytest.approx(-0.5, abs=0.02)
    assert ours["answers_s"]["value"] == 0.5
    assert cells["static"]["answers_s"] is None


def test_a_comparison_cut_short_is_marked_so_everywhere(tmp_path: Path) -> None:
    comparison(tmp_path, runs=13)
    found = results.summary(tmp_path)
    assert (found["complete"], found["runs_done"], found["runs_planned"]) == (False, 13, 20)
    assert results.cut_short(found) == "CUT SHORT: 13 of 20 runs; what follows is of these only"
    shown = CliRunner().invoke(lab, ["compare", "--out", str(tmp_path), "--replay"], catch_exceptions=False)
    assert shown.output.startswith("CUT SHORT: 13 of 20 runs")
    as_json = CliRunner().invoke(lab, ["compare", "--out", str(tmp_path), "--replay", "--json", "-"])
    assert '"complete": false' in as_json.stdout


def test_only_rounds_that_both_have_are_compared(tmp_path: Path) -> None:
    made = comparison(tmp_path, runs=0)
    for run in made.runs:
        if run.policy == "static" or (run.policy == "slackwater" and run.round > 2):
            recording.write(tmp_path, recorded(run))
    found = {cell["policy"]: cell for cell in results.summary(tmp_path)["cells"]}
    assert found["slackwater"]["change"]["static"]["p99_ms"]["count"] == 3


@pytest.fixture
def pretended_lab(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the runs that were run, each at once, in a lab that is none."""
    ran: list[int] = []

    @contextmanager
    def none(*_: Any) -> Iterator[None]:
        yield

    def run(_lab: Any, one: Run, _scenario: Scenario, demand: Demand, capacity_rps: float) -> Any:
        assert capacity_rps == 900.0
        assert demand == Demand(rate_rps=450.0)
        ran.append(one.number)
        if len(ran) == 3:
            raise LabError("the power went out")
        return SimpleNamespace(save=lambda folder: recording.write(folder, recorded(one)))

    monkeypatch.setattr(compare, "Lab", none)
    monkeypatch.setattr(compare, "one_run", run)
    monkeypatch.setattr(compare, "capacity_rps", lambda _: 900.0)
    monkeypatch.setattr("lab.cluster.machine.describe", lambda _: {"cpu": "pretended"})
    return ran


def test_an_interrupted_comparison_goes_on_where_it_was(tmp_path: Path, pretended_lab: list[int]) -> None:
    asked = plan.planned(("one",), ("static", "slackwater"), rounds=3, seed=1)
    progress: list[str] = []
    with pytest.raises(LabError, match="the power went out"):
        compare.run(tmp_path, compare.begin(tmp_path, asked), progress.append)
    assert not results.summary(tmp_path)["complete"]
    assert "2 of 6; about 0 min left" in progress
    compare.run(tmp_path, compare.begin(tmp_path, asked), progress.append)
    assert pretended_lab == [1, 2, 3, 3, 4, 5, 6], "the one that failed once more, and nothing twice"
    assert "going on: 2 of 6 runs are recorded" in progress
    found = results.summary(tmp_path)
    assert found["complete"]
    assert found["capacity_rps"] == {"events": 900.0}
    assert found["machine"] == {"cpu": "pretended"}


def test_no_run_is_begun_when_the_time_is_up(tmp_path: Path, pretended_lab: list[int]) -> None:
    asked = plan.planned(("one",), ("static", "slackwater"), rounds=3, seed=1)
    progress: list[str] = []
    compare.run(tmp_path, compare.begin(tmp_path, asked), progress.append, time.monotonic() - 1.0)
    assert pretended_lab == []
    assert progress[-1] == "time is up: 6 of 6 runs are left; the same command goes on"


def test_a_folder_with_another_comparison_is_left_alone(tmp_path: Path) -> None:
    comparison(tmp_path, runs=1)
    with pytest.raises(ExperimentError, match="it holds another comparison"):
        compare.begin(tmp_path, plan.planned(("two",), ("static",), rounds=5, seed=3))


def test_other_hosts_are_another_comparison(tmp_path: Path) -> None:
    asked = plan.planned(("one",), ("static",), rounds=1, seed=1)
    compare.begin(tmp_path, asked)
    assert compare.begin(tmp_path, asked) == asked
    fluid = plan.planned(("one",), ("static",), rounds=1, seed=1, lab=LabSettings(kind="vm", period_s=0.005))
    assert fluid.settings("dokuwiki") == LabSettings(app="dokuwiki", retunable=True, kind="vm", period_s=0.005)
    with pytest.raises(ExperimentError, match="it holds another comparison"):
        compare.begin(tmp_path, fluid)


def test_an_answer_is_the_first_weight_that_fell_after_the_noise_began() -> None:
    looks = [
        (at, name, weight, 0)
        for at, weight in ((1.0, 50), (2.0, 100), (3.0, 100), (3.4, 2))
        for name, weight in (("host1", weight), ("host2", 100))
    ]
    assert latency.answer_s(looks, {"host1"}, 1.5, 2.5) == pytest.approx(0.9)
    assert latency.answer_s(looks, {"host2"}, 1.5, 2.5) is None


def test_a_look_is_what_one_interval_s_samples_say() -> None:
    def sample(node: str, seq: int, rps: float, rt_ms: float | None, used: float) -> Sample:
        return Sample(
            v=VERSION,
            node=node,
            pool="web",
            time_unix_s=1.0,
            boot_id="b",
            seq=seq,
            period_s=0.2,
            cpu=Cpu(scope="cgroup", utilisation=used),
            traffic=Traffic(rps=rps, rt_mean_ms=rt_ms),
        )

    samples = [sample("a", 0, 100.0, 3.0, 0.4), sample("a", 1, 300.0, 7.0, 0.6), sample("a", 2, 0.0, None, 0.5)]
    look = look_of(5.0, samples, {"a": 100, "b": 30})
    one, other = look.servers
    assert (one.requests, one.weight) == (80, 100)
    assert one.rt_mean_ms == pytest.approx(6.0), "weighted by requests"
    assert one.cpu_idle == pytest.approx(0.5)
    assert (other.requests, other.rt_mean_ms, other.cpu_idle, other.weight) == (0, None, None, 30)


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

    stage = runner.Neighbours(pretended, scenario.neighbours, lambda: at_s)
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
    assert {one["vm_s"] for one in share.used.values()} == {12.0}
    assert [one["loud_s"] for one in share.used.values()] == pytest.approx([0.3, 0.3])
    events.clear()
    stage = runner.Neighbours(pretended, scenario.neighbours, lambda: 0.5)
    stage.start(1.0, lambda _: None)
    stage.tend()
    assert not stage.over
    stage.stop()
    assert sorted(events) == ["cpu is given up", "cpu prepares", "dcopy is given up", "dcopy prepares"]
