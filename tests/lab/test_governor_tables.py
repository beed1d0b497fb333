"""`slackwater governor compare`, and what its tables are made of."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from slackwater.controller.cli.governor_commands import governor
from slackwater.governor.policies.static import Static
from slackwater.governor.power import CURVES, hardware, volts
from slackwater.governor.types import Action, Configuration, Observation, whole
from slackwater_lab.governor import estimators, heimdall_table, pareto
from slackwater_lab.governor.commands import TABLES
from slackwater_lab.governor.figures import COLUMNS, Figure, cells
from slackwater_lab.governor.fluid import FluidServer
from slackwater_lab.governor.profile import profile


def test_busy_watts_of_the_a72_are_those_of_its_device_tree() -> None:
    clocks = CURVES["a72"][0]
    cores = hardware("a72", 4, clocks, busy_w=1.373, base_w=0.0, idle_w=0.0)
    expected = (0.114, 0.167, 0.242, 0.318, 0.424, 0.587, 0.773, 1.038, 1.373)
    assert cores.busy_w == pytest.approx(expected, rel=0.01)


def test_the_flat_curve_saves_nothing_per_unit_of_work() -> None:
    cores = hardware("flat", 1, (500.0, 1000.0), busy_w=2.0, base_w=0.0, idle_w=1.0)
    assert cores.busy_w == pytest.approx((1.0, 2.0))
    assert cores.idle_w == pytest.approx((1.0, 1.0))
    assert volts("steep", [1.0, 0.1]) == pytest.approx([1.0, 0.956 / 1.484])


def test_a_fluid_server_works_off_what_piled_up() -> None:
    processor = hardware("a72", 2, (1000.0, 2000.0), busy_w=1.0, base_w=0.0, idle_w=0.0)
    server = FluidServer(processor, 1000.0, 0.0)
    late = server.run(1.0, 2400.0, processor.highest)
    assert late.queue_delay_ms > 200.0
    assert late.busy_share == 1.0
    assert server.run(1.0, 1000.0, processor.highest).answered == pytest.approx(1400.0)
    assert late.share_above(100.0) == 1.0
    calm = server.run(1.0, 1000.0, processor.highest)
    assert calm.p99_ms == pytest.approx(server.at_rest_ms(processor.highest, 1000.0, 0.99))
    assert calm.share_above(calm.p99_ms) == pytest.approx(0.01)
    assert calm.share_above(calm.p95_ms) == pytest.approx(0.05)
    assert server.capacity_rps(Configuration(1, 1000.0)) == 500.0


def test_the_static_maximum_never_misses_and_the_bound_is_below_it() -> None:
    table = pareto.Table("a72")
    load = pareto.loads(1)["step"]
    run = table.run(Static(table.hardware), load)
    assert run.longest_s == 0
    assert run.watts == pytest.approx(table.highest(load), rel=1e-6)
    assert table.bound(load)[0] < run.watts


class Fixed:
    """One configuration; keeps the times at which it was asked."""

    name = "fixed"
    period_s = pareto.STEP_S

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self._action = whole(configuration)
        self.times_s: list[float] = []

    def start(self) -> Action:
        return self._action

    def decide(self, seen: Observation) -> Action:
        self.times_s.append(seen.time_s)
        return self._action


def test_a_second_is_late_by_all_of_its_requests_and_not_by_one_tenth_of_it() -> None:
    table = pareto.Table("a72")
    policy = Fixed(Configuration(8, 1200.0))
    above = 1.0001 * table._most_rps(policy.configuration) / table.peak_rps
    load = np.full(20, above)
    load[:9] = pareto.LEAST_LOAD
    run = table.run(policy, load)
    assert run.longest_s == 1
    assert run.kept_percent == 50.0


def test_two_polls_are_never_less_than_two_periods_apart() -> None:
    policy = Fixed(Configuration(8, 2400.0))
    table = pareto.Table("a72")
    table.run(policy, pareto.loads(1)["step"])
    assert all(later - earlier >= 0.2 for earlier, later in zip(policy.times_s, policy.times_s[2:], strict=False))


@pytest.mark.parametrize("curve", list(CURVES))
def test_both_policies_use_less_than_the_maximum_on_every_curve(curve: str) -> None:
    table = pareto.Table(curve)
    load = pareto.loads(1)["slope"][:600]
    assert table.run(pareto._energy("pareto", table.hardware), load).watts < table.highest(load)
    assert table.run(pareto._energy("slackwater", table.hardware), load).watts < table.highest(load)


def test_the_longest_run_of_violations() -> None:
    assert pareto.longest([True, False, True, True, False]) == 2
    assert pareto.longest([]) == 0


def test_a_figure_is_reached_by_its_median() -> None:
    values = [1.0, 2.0, 9.0]
    assert Figure("case", "policy", "W", values).reached() is None
    assert Figure("case", "policy", "W", values, most=2.0).reached() is True
    assert Figure("case", "policy", "W", values, least=2.5).reached() is False
    row = dict(zip(COLUMNS, cells(Figure("case", "policy", "W", values, "2", 2.5, 3.0)), strict=True))
    assert row["reached"] == "NOT reached"
    assert row["allowed"] == "2.5 to 3.0"
    assert Figure("case", "policy", "W", [np.nan], least=1.0).reached() is False, "nothing was measured"


def test_the_command_writes_what_it_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pareto, "PAPER", {"slope": pareto.PAPER["slope"]})
    file = tmp_path / "pareto.json"
    done = CliRunner().invoke(governor, ["compare", "--table", "pareto", "--seeds", "1", "--json", str(file)])
    assert done.exit_code == 0, done.output
    result = json.loads(file.read_text())
    assert result["table"] == "pareto"
    assert {figure["policy"] for figure in result["figures"]} == {"static", "bound", "pareto", "slackwater"}
    claimed = [figure for figure in result["figures"] if figure["reached"] is not None]
    assert f"of {len(claimed)} claims reached" in done.output


@pytest.mark.parametrize("name", list(TABLES))
def test_each_run_is_told_before_it_begins(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (estimators, heimdall_table):  # what the estimators learn from takes minutes
        monkeypatch.setattr(module, "profile", lambda _: profile(1))
    lines: list[str] = []

    def stop_at_the_second(text: str) -> None:
        lines.append(text)
        if len(lines) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TABLES[name]((1, 2), "a72", stop_at_the_second)
    assert [line.removeprefix(lines[0].removesuffix("run 1 of 2")) for line in lines] == ["run 1 of 2", "run 2 of 2"]
    assert lines[0].startswith(f"{name}: ")
