"""The plan of steady noise, and the page that is made of its data. Nothing is played here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from slackwater_lab.cluster.noise import NOISES
from tests.site import steady
from tests.site.episodes import Episode, Times
from tests.site.steady import BALANCES, EACH_SHAPE, RATES, Row, page, plan, read

TIMES = Times(requests=600, mean=7.0, p95=12.0, p99=16.0, errors=0, per_server={"web1": 200})
ONE = Episode(
    noise="cpu",
    noisy="web1",
    falls={"web1": 1, "web2": 0, "web3": 0},
    rises={"web1": 1, "web2": 0, "web3": 0},
    first_fall_s=0.6,
    back_s=1.2,
    back_during_noise=0,
    held_calm_s={"web1": 1.2, "web2": 0.0, "web3": 0.0},
    weights={"web1": [(-12.0, 100), (0.6, 0), (31.2, 100)]},
    calm=TIMES,
    noisy_times=replace(TIMES, mean=9.0),
    after=TIMES,
)


def row(**more: object) -> Row:
    return Row("leastconn", "burn", "cpu", 20.0, 30.0, "abc1234", "2 cores", replace(ONE, **more))  # type: ignore[arg-type]


def test_the_plan_is_the_same_each_time_and_has_all_kinds_under_all_algorithms() -> None:
    cells = plan()
    assert cells == plan()
    assert len(set(cells)) == len(cells)
    assert {(balance, kind) for balance, _, kind, _, _ in cells} == {(b, k) for b in BALANCES for k in NOISES}
    assert {rps for _, _, _, rps, _ in cells} == set(RATES)
    shapes = [cell[:2] for cell in cells[:EACH_SHAPE]]
    assert len(set(shapes)) == 1, "the site is built anew only for another shape"


def test_the_page_counts_episodes_with_one_fall_and_one_rise() -> None:
    saw = row(falls={"web1": 3, "web2": 0, "web3": 0}, rises={"web1": 3, "web2": 0, "web3": 0})
    unfelt = row(falls={"web1": 0}, rises={"web1": 0}, first_fall_s=None, back_s=None)
    text = page([row(), saw, unfelt])
    assert "2 of 3 episodes of steady noise have at most one fall and one rise" in text
    assert "the most falls in an episode are 3" in text
    assert "between 9 and 99 of 100 (95% interval; 3 of" in text
    assert "| leastconn | 3 | 2 | 2 | 1 | 0.6 (0.6 to 0.6) | 1.2 (1.2 to 1.2) | 1.2 | 7.0 (7.0 to 7.0) |" in text


def test_a_line_that_is_no_episode_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "steady.jsonl"
    data.write_bytes(msgspec.json.encode(row()) + b"\n")
    assert read(data) == [row()]
    data.write_text('{"balance": "leastconn"}\n')
    with pytest.raises(msgspec.ValidationError):
        read(data)
    assert read(tmp_path / "nothing.jsonl") == []
    assert steady.cell_of(row()) == ("leastconn", "burn", "cpu", 20.0, 30.0)
