"""Which balance algorithm works best with Slackwater: the figures, their page, and what `slackwater check` makes of
them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from slackwater.lbengine.backends.haproxy import measured
from slackwater.lbengine.backends.haproxy.algorithms import ALGORITHMS
from slackwater.lbengine.backends.haproxy.measured import Measurement
from slackwater_lab.commands import lab
from slackwater_lab.compare import balance
from slackwater_lab.compare.drawn import Played
from slackwater_lab.experiment.recording import ExperimentError
from slackwater_lab.sim import drawn
from tests.support.paths import ROOT

PAGE = ROOT / "docs/results/balance.md"
MEANS = {"static": 90.0, "leastconn": 20.0, "random2": 40.0}
WITH = {"slackwater": 30.0, "slackwater-lc": 20.0, "slackwater-random2": 20.0}


def played(count: int) -> list[Played]:
    """Scenarios of which each is slower than the one before. With Slackwater `random` is as quick as `leastconn` on
    average, now more and now less."""

    def felt(mean_ms: float, number: int) -> dict[str, float]:
        return {"mean_ms": mean_ms * (number + 1), "p95_ms": 3 * mean_ms, "p99_ms": 5 * mean_ms}

    def times_of(number: int) -> dict[str, dict[str, float]]:
        wavers = {"slackwater-random2": 25.0 if number % 2 else 17.0}
        return {name: felt(mean_ms, number) for name, mean_ms in (MEANS | WITH | wavers).items()}

    return [Played(seed=1, number=number, commit="abc", setup={}, players=times_of(number)) for number in range(count)]


def measurement(count: int = 30) -> Measurement:
    return balance.measured(played(count), "the command")


def test_the_best_has_the_least_means_and_the_others_are_held_against_it() -> None:
    assert measurement().best == "leastconn"
    ratios = measurement().balances["roundrobin"]
    assert (ratios.to_best.mean.median, ratios.to_alone.mean.median) == pytest.approx((1.5, 1 / 3))
    assert ratios.worse_than_alone == 0
    assert measurement().balances["leastconn"].to_best.p99.median == 1.0
    assert measurement().balances["random"].to_best_worst == pytest.approx(1.25)
    with pytest.raises(ExperimentError, match="no scenario is played yet"):
        measurement(0)


def test_advice_is_only_given_where_another_one_is_surely_better() -> None:
    text, remedy = measured.advice("roundrobin", "web", measurement()) or ("", "")
    assert "`balance roundrobin` was slower with Slackwater than `balance leastconn` in 30 simulated scenarios" in text
    assert "1.50 times the mean response time (95% sure: 1.50 to 1.50)" in text
    assert remedy.startswith("`balance leastconn` in backend `web`")
    for name in ("leastconn", "random", "uri", "newrr"):
        assert measured.advice(name, "web", measurement()) is None
    assert measured.advice("roundrobin", "web", measurement(2)) is None, "two scenarios decide nothing"


def test_advice_says_that_random_is_haproxys_default() -> None:
    worse = msgspec.structs.replace(measurement(), balances={"random": measurement().balances["roundrobin"]})
    text, _ = measured.advice("random", "web", worse) or ("", "")
    assert "`balance random` (HAProxy's default from 3.3 on) was slower" in text


def test_the_figures_that_are_shipped_are_those_of_the_page() -> None:
    assert PAGE.read_text() == balance.page(measured.read())
    assert {"roundrobin", "leastconn", "random"} == measured.read().balances.keys() <= ALGORITHMS.keys()


def test_the_command_plays_and_writes_what_check_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn, "SECONDS", 2.0)  # of the scenario, which is played six times
    monkeypatch.setattr(drawn, "WARM_UP_S", 1.0)
    page, data = tmp_path / "page.md", tmp_path / "measured.json"
    places = ["--out", str(tmp_path / "out"), "--page", str(page), "--data", str(data)]
    done = CliRunner().invoke(lab, ["balance", "--scenarios", "1", "--seed", "4", *places])
    assert done.exit_code == 0, done.output
    made = measured.read(data)
    assert (made.scenarios, made.command) == (1, "slackwater lab balance --scenarios 1 --seed 4 --out FOLDER")
    assert page.read_text() == balance.page(made)
    assert made.balances[made.best].to_best.mean.median == 1.0
