"""What each mechanism of the decision brings: seams, runs that share what they have in common, data, figures, page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slackwater.detector.recordings.recording import read
from slackwater.detector.train.learned import replay
from slackwater.lbengine.decision import calm, loads, position
from slackwater_lab.ablate import data, page, play, summary
from slackwater_lab.ablate.detector_mechanisms import DETECTOR
from slackwater_lab.ablate.mechanisms import BALANCES, EVERYTHING, MECHANISMS, named
from slackwater_lab.ablate.play import Figures
from slackwater_lab.ablate.seams import Argument, Seam, SeamError, as_it_came, lines_of, off
from slackwater_lab.commands import lab
from slackwater_lab.compare.statistics import geometric_mean
from slackwater_lab.sim import drawn
from slackwater_lab.sim.requests import Simulation
from tests.support.judges import shipped
from tests.support.paths import ROOT

EITHER = {**MECHANISMS, **DETECTOR}


@pytest.mark.parametrize("name", EITHER)
def test_what_is_switched_off_is_there_and_takes_what_stands_in_for_it(name: str) -> None:
    assert len(EITHER) == len(MECHANISMS) + len(DETECTOR)
    mechanism = EITHER[name]
    assert mechanism.name == name
    assert mechanism.seams
    assert mechanism.balances <= BALANCES.keys()
    for seam in mechanism.seams:
        seam.check()
    assert lines_of(mechanism.goes) >= len(mechanism.goes)


def test_a_name_that_was_changed_is_an_error() -> None:
    for seam, wrong in (
        (Seam("slackwater.lbengine.decision.loads:REMOVED", 1), "loads:REMOVED: there is no such name"),
        (Seam("slackwater.lbengine.decision.removed:CALM", 1), "removed:CALM: there is no such name"),
        (Seam("slackwater.lbengine.decision.loads:CAUTION", position.moved), "expected a function"),
        (Seam("slackwater.lbengine.decision.position:moved", 1.0), "expected a value"),
        (
            Seam("slackwater.lbengine.decision.position:moved", lambda position: position),
            "takes position, weight, now_s",
        ),
    ):
        with pytest.raises(SeamError, match=wrong):
            seam.check()
    with pytest.raises(SeamError, match="expected target among them"):
        as_it_came("slackwater.lbengine.decision.position:moved", "target")


def test_a_mechanism_is_off_for_a_while() -> None:
    seams = [
        Seam("slackwater.lbengine.decision.loads:CAUTION", 7.0),
        Seam("slackwater.lbengine.decision.calm:Calm.wait_s", property(lambda _: 9.0)),
        as_it_came("slackwater.lbengine.decision.position:moved", "position"),
    ]
    before, moved = loads.CAUTION, position.moved
    with off(seams):
        assert loads.CAUTION == 7.0
        assert calm.Calm().wait_s == 9.0
        here = position.Position(3, blind_s=0.0)
        assert isinstance(position.moved, Argument)
        assert position.moved(here, 50, now_s=100.0) is here
    assert before == loads.CAUTION
    assert calm.Calm().wait_s is None
    assert position.moved is moved


def alone(seed: int, number: int, balance: str, name: str) -> Figures:
    """The figures of a run of its own, with the mechanism off from its start to its end."""
    setup = replace(drawn.scenario(seed, number), balance=BALANCES[balance])
    with off(() if name == EVERYTHING else MECHANISMS[name].seams):
        return play.figures(Simulation(setup, "slackwater", shipped()))


def test_a_run_that_is_copied_at_its_first_difference_is_as_one_of_its_own(tmp_path: Path) -> None:
    names = (
        "caution",
        "no-rise",
        "tried",
        "law",
        "law-ice",
        "drain",
        "alike",
        "bare",
    )
    place = tmp_path / "ablation.jsonl"
    asked = [
        "ablate",
        "--seed",
        "77",
        "--scenarios",
        "1",
        "--balance",
        "leastconn",
        "--jobs",
        "1",
        "--data",
        str(place),
    ]
    off_only = [word for name in names for word in ("--off", name)]
    done = CliRunner().invoke(lab, [*asked, *off_only, "--json", "-"])
    assert done.exit_code == 0, done.output
    (line,) = data.read(place)
    assert set(line.off) | set(line.same) == set(names)
    assert line.off
    assert line.same
    for name in (EVERYTHING, *names):
        assert line.without(name) == alone(77, 0, "leastconn", name), name
    rows = {row["name"]: row for row in json.loads(done.stdout)["balances"]["leastconn"]}
    assert rows.keys() == {EVERYTHING, *names}
    assert rows["alike"]["scenarios"] == 1
    assert done.stderr == "" or "of 1 scenarios" in done.stderr

    again = CliRunner().invoke(lab, [*asked, "--off", "law", "--page", str(tmp_path / "page.md")])
    assert again.exit_code == 0, again.output
    assert len(data.read(place)) == 1, "nothing is played again"
    assert "| law | no law: a slow server keeps" in (tmp_path / "page.md").read_text()


def line_of(number: int, times: float, **given: Any) -> data.Line:
    usual = Figures(10.0, 20.0, 30.0, 4)
    without = Figures(10.0 * times, 20.0 * times, 30.0 * times, 5)
    whole: dict[str, Any] = {
        "code": "now",
        "commit": "abc",
        "machine": "a machine",
        "seed": 7,
        "number": number,
        "balance": "leastconn",
        "cpu_s": 2.0,
        "alone": Figures(20.0, 40.0, 60.0),
        "everything": usual,
        "off": {"settle": without},
        "same": ["caution"],
    }
    return data.Line(**whole | given)


def test_what_is_left_is_what_was_not_played_with_this_code() -> None:
    keys = [data.Key(7, number, "random") for number in range(3)]
    lines = [line_of(0, 1.0, balance="random"), line_of(1, 1.0, balance="random", code="before")]
    assert data.left(lines, "now", keys, ("settle", "caution", "tried", "in-flight")) == [
        (keys[0], ("tried",)),
        (keys[1], ("settle", "tried", "caution")),
        (keys[2], ("settle", "tried", "caution")),
    ]
    assert data.left(lines, "now", keys[:1], ("settle",)) == []
    everything = data.left((), "now", keys[:1], ())
    assert everything == [(keys[0], tuple(mechanism.name for mechanism in named((), "random")))]
    assert data.of_one_state(lines) == lines[1:]


def test_a_digest_of_the_code_changes_with_it(tmp_path: Path) -> None:
    for place in data.CODE:
        path = tmp_path / place
        path = path if path.suffix else path / "some.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a = 1\n")
        assert (ROOT / place).exists()
    before = data.digest_of(data.CODE, tmp_path)
    (tmp_path / "lbengine/decision/some.py").write_text("a = 2\n")
    assert before != data.digest_of(data.CODE, tmp_path)
    assert len(data.code_digest()) == len(before)


@pytest.mark.parametrize(
    ("ratios", "word"),
    [
        ([1.03, 1.05, 1.04, 1.06], summary.BRINGS),
        ([1.0, 1.01, 1.0, 0.99], summary.LITTLE),
        ([1.6, 0.7, 1.2, 0.8], summary.UNSURE),
        ([0.97, 0.98, 0.95, 0.96], summary.HARMS),
    ],
)
def test_a_mechanism_that_brings_surely_less_than_two_percent_is_told(ratios: list[float], word: str) -> None:
    few = summary.rows([line_of(number, times) for number, times in enumerate(ratios)], "leastconn")
    assert {row.brings for row in few} == {"", summary.UNSURE}, "too few to tell"
    ratios = ratios * 25
    lines = [line_of(number, times) for number, times in enumerate(ratios)]
    rows = {row.name: row for row in summary.rows(lines, "leastconn")}
    assert rows.keys() == {EVERYTHING, "settle", "caution"}
    assert rows["settle"].brings == word
    assert rows["settle"].differs == len(ratios)
    assert rows["settle"].worst_mean == pytest.approx(max(ratios) / 2)
    assert (rows["caution"].mean.value, rows["caution"].brings) == (1.0, summary.LITTLE)
    assert rows[EVERYTHING].alone_mean.value == pytest.approx(0.5)
    text = page.page(lines, "data.jsonl", "page.md")
    assert f"| {word} | {rows['settle'].lines} |" in text
    assert "slackwater lab ablate --data data.jsonl --page page.md --replay" in text


def test_a_page_without_data_says_how_to_get_some() -> None:
    assert "**Nothing is played yet.**" in page.page([], "data.jsonl", "page.md")


def test_a_half_and_a_double_are_as_if_nothing_had_changed() -> None:
    mean = geometric_mean([0.5, 2.0, 0.5, 2.0])
    assert mean is not None
    assert mean.value == pytest.approx(1.0)
    assert mean.low is not None
    assert mean.high is not None
    assert 0.5 <= mean.low < 1.0 < mean.high <= 2.0
    assert geometric_mean([]) is None


def test_what_cannot_be_asked_for_is_refused() -> None:
    for arguments, wrong in (
        (["--off", "nothing"], "--off nothing: expected one of given-back"),
        (["--page", "page.md"], "--data is missing"),
        (["--data", "data.jsonl", "--replay"], "--page is missing"),
    ):
        done = CliRunner().invoke(lab, ["ablate", *arguments])
        assert done.exit_code == 2
        assert wrong in done.output
    listed = CliRunner().invoke(lab, ["ablate", "--list"])
    assert "(under leastconn)" in listed.output


def test_recordings_are_judged_with_a_mechanism_off(tmp_path: Path) -> None:
    place, written = tmp_path / "detector.jsonl", tmp_path / "detector.md"
    file = ROOT / "tests/recordings/events-all-noisy.parquet"
    asked = ["ablate-detector", str(file), "--off", "sum", "--jobs", "1", "--data", str(place), "--page", str(written)]
    done = CliRunner().invoke(lab, [*asked, "--json", "-"])
    assert done.exit_code == 0, done.output
    everything, without = json.loads(done.stdout)["rows"]
    usual = replay(read(file), shipped())
    assert everything["felt"] == sum(noise.felt for noise in usual.noises) == without["felt"] > 0
    assert everything["missed"] == sum(noise.felt and noise.delay_s is None for noise in usual.noises)
    assert without["missed"] <= everything["missed"]
    assert without["delay_median_s"] < everything["delay_median_s"]
    assert "| sum | an episode begins with the first Sample" in written.read_text()
    before = place.read_bytes()
    assert CliRunner().invoke(lab, asked).exit_code == 0
    assert place.read_bytes() == before, "nothing is judged again"
    refused = CliRunner().invoke(lab, ["ablate-detector", str(file), "--off", "nothing"])
    assert "--off nothing: expected one of pool-correlation" in refused.output
