"""A policy's turn: its programs start once for all scenarios, learn under each load, and always end."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slackwater_lab.cluster.load import Demand
from slackwater_lab.cluster.paths import LabError
from slackwater_lab.experiment import policies, policy_runners, run
from slackwater_lab.experiment.policies import Policy
from slackwater_lab.experiment.policy_runners import MONITORS_LEARN_S, PolicyRunner, SlackwaterRunner
from slackwater_lab.experiment.recording import Run
from slackwater_lab.experiment.scenarios import SCENARIOS
from slackwater_lab.experiment.steady import WARM_UP_S

ONE, FULL = SCENARIOS["one"], SCENARIOS["load-80"]
HALF, MORE = Demand(rate_rps=450.0), Demand(rate_rps=720.0)


@dataclass
class Stage:
    """A lab that is none: what happened in it, in order, and the weights that its balancer shows."""

    events: list[str] = field(default_factory=list)
    weights: dict[str, int] = field(default_factory=lambda: {"host1": 100, "host2": 100})

    @property
    def lab(self) -> Any:
        return SimpleNamespace(
            hosts=[SimpleNamespace(name=name) for name in self.weights],
            settings=SimpleNamespace(quota_cores=0.4),
            set_quota=lambda _host, _cores: None,
            load=self.load,
            check=lambda: None,
            balancer=SimpleNamespace(
                balance="roundrobin",
                lines={},
                set_balance=lambda balance, _lines: self.events.append(balance),
                reload=lambda: self.events.append("reload"),
                snapshot=lambda: SimpleNamespace(weight=dict(self.weights)),
                set_weight=lambda server, weight: self.weights.update({server: weight}),
            ),
        )

    def load(self, demand: Demand, _seconds: float, _url: str | None) -> Any:
        self.events.append(f"load {demand.rate_rps:g}")
        return SimpleNamespace(check=lambda: None, stop=lambda: self.events.append("no load"))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage()

    class Learner(PolicyRunner):
        learns = True

        def begin(self) -> None:
            made.events.append("begin")

        def learn_s(self, demand: Demand) -> float:
            made.events.append(f"learn {demand.rate_rps:g}")
            return 0.0

        def end(self) -> None:
            made.events.append("end")

    neighbours = SimpleNamespace(fill=lambda: None, stop=lambda: made.events.append("quiet"))
    monkeypatch.setitem(policies.POLICIES, "learner", Policy("leastconn", "a test", Learner))
    monkeypatch.setattr(run, "Neighbours", lambda *_, **__: neighbours)
    monkeypatch.setattr(run, "aims_of", lambda *_: {})
    monkeypatch.setattr(run, "_measured", lambda _lab, asked, *_: made.events.append(f"run {asked.scenario}"))
    monkeypatch.setattr(run, "LATER_S", 0.2)
    return made


def play(session: run.Session, scenario: str, demand: Demand) -> None:
    session.play(Run(1, 1, scenario, "learner"), SCENARIOS[scenario], demand)


def test_a_policy_begins_once_and_learns_under_each_load(stage: Stage) -> None:
    with run.Session(stage.lab, "learner", ONE) as session:
        for scenario, demand in (("one", HALF), ("two", HALF), ("load-80", MORE), ("all", HALF)):
            play(session, scenario, demand)
    assert stage.events == [
        *("leastconn", "reload"),
        *("load 450", "begin", "learn 450", "no load", "run one", "quiet"),
        *("run two", "quiet"),
        *("load 720", "learn 720", "no load", "run load-80", "quiet"),
        *("run all", "quiet"),
        "end",
    ]


def test_a_run_waits_for_the_weights_that_the_one_before_has_moved(stage: Stage) -> None:
    with run.Session(stage.lab, "learner", ONE) as session:
        play(session, "one", HALF)
        stage.weights["host1"] = 10
        with pytest.raises(LabError, match=r"the weights are not the usual ones 0\.2 s after a run"):
            play(session, "two", HALF)
    assert stage.events[-3:] == ["no load", "quiet", "end"], "load and neighbours have ended"
    assert stage.weights == {"host1": 100, "host2": 100}


def test_a_policy_that_fails_to_begin_is_ended_too(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "load", lambda *_: (_ for _ in ()).throw(LabError("no generator")))
    with pytest.raises(LabError, match="no generator"), run.Session(stage.lab, "learner", ONE) as session:
        play(session, "one", HALF)
    assert stage.events[-2:] == ["quiet", "end"]


@pytest.mark.parametrize(("monitors", "again_s"), [(True, MONITORS_LEARN_S), (False, 0.0)])
def test_slackwater_learns_a_load_once_and_its_monitors_in_each_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: Stage, monitors: bool, again_s: float
) -> None:
    monkeypatch.setattr(policy_runners, "LAB_DIR", tmp_path)

    def learn_s(demand: Demand) -> float:
        return SlackwaterRunner(stage.lab, FULL, monitors=monitors).learn_s(demand)

    assert [learn_s(HALF), learn_s(MORE), learn_s(HALF)] == [WARM_UP_S, WARM_UP_S, again_s]
    other = SlackwaterRunner(stage.lab, FULL, "ice", monitors=monitors)
    assert other.learn_s(HALF) == WARM_UP_S, "another law is another policy"
