"""A policy's turn: its programs start once for all scenarios, learn under each load, and always end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
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
    is_calm: Iterator[bool] = field(default_factory=lambda: itertools.repeat(True))
    weights: dict[str, int] = field(default_factory=lambda: {"host1": 100, "host2": 100})

    @property
    def lab(self) -> Any:
        balancer = SimpleNamespace(
            balance="roundrobin",
            lines={},
            reload=lambda: self.events.append("reload"),
            snapshot=lambda: SimpleNamespace(weight=dict(self.weights)),
            set_weight=lambda server, weight: self.weights.update({server: weight}),
        )

        def set_balance(balance: str, _lines: Any) -> None:
            balancer.balance = balance
            self.events.append(balance)

        balancer.set_balance = set_balance
        return SimpleNamespace(
            hosts=[SimpleNamespace(name=name) for name in self.weights],
            settings=SimpleNamespace(quota_cores=0.4),
            set_quota=lambda _host, _cores: None,
            load=self.load,
            check=lambda: None,
            balancer=balancer,
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

        def is_calm(self) -> bool:
            return next(made.is_calm)

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


def session_of(stage: Stage) -> run.Session:
    return run.Session(stage.lab, "learner", ONE)


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


def test_a_policy_that_does_not_forget_an_episode_starts_anew(stage: Stage) -> None:
    with run.Session(stage.lab, "learner", ONE) as session:
        play(session, "one", HALF)
        stage.is_calm = itertools.chain([False, False], itertools.repeat(True))
        play(session, "two", HALF)
        del stage.events[:8]
        stage.is_calm = iter(lambda: "end" in stage.events, None)
        play(session, "all", HALF)
    waited = ["load 450", "no load", "run two", "quiet"]
    again = ["load 450", "end", "begin", "learn 450", "no load", "run all", "quiet"]
    assert stage.events == [*waited, *again, "end"]


def test_a_policy_that_is_never_calm_is_a_failed_run(stage: Stage) -> None:
    stage.is_calm = itertools.repeat(False)
    with pytest.raises(LabError, match=r"not calm after 0\.2 s under load: a test"), session_of(stage) as session:
        play(session, "one", HALF)
    assert stage.events[-3:] == ["no load", "quiet", "end"], "load and neighbours have ended"


@pytest.mark.parametrize(
    ("weight", "states", "is_calm"),
    [
        (100, ["calm", "calm"], True),
        (10, ["calm", "calm"], False),
        (100, ["slow", "calm"], False),
        (100, ["calm"], False),
        (100, None, True),
    ],
)
def test_calm_are_the_usual_weights_and_verdicts_of_calm(
    stage: Stage, weight: int, states: Sequence[str] | None, is_calm: bool
) -> None:
    stage.weights["host2"] = weight
    runner = PolicyRunner(stage.lab, ONE)
    if states is not None:
        latest = [SimpleNamespace(node=f"host{number}", state=state) for number, state in enumerate(states, start=1)]
        heard = [SimpleNamespace(node="host1", state="slow"), *latest]
        runner.judged = SimpleNamespace(heard=heard)  # type: ignore[assignment]
    assert runner.is_calm() == is_calm


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
