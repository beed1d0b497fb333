"""How an episode is described: falls, rises, and how long a calm server is held below its baseline."""

from __future__ import annotations

from pathlib import Path

from tests.site import load
from tests.site.episodes import Track, below, described

ON_S, OFF_S, END_S = 10.0, 40.0, 60.0
SAW: Track = [(0.0, 100), (10.5, 40), (10.9, 0), (11.0, 2), (15.0, 36), (15.2, 100), (20.0, 0), (42.0, 100)]
CALM: Track = [(0.0, 100)]


def requests(folder: Path) -> load.Requests:
    file = folder / "load"
    file.write_text("12.000000 0.020000 200 web1\n11.000000 0.010000 200 web2\n50.000000 30.000000 0 -\n51.0 0.00")
    return load.read(file)


def test_time_below_the_baseline_has_breaks_only_where_it_was_reached() -> None:
    assert below(SAW, END_S) == [(10.5, 15.2), (20.0, 42.0)]
    assert below(CALM, END_S) == []
    assert below([(0.0, 100), (50.0, 0)], END_S) == [(50.0, END_S)]


def test_a_round_is_described_by_what_happened_around_its_noise(tmp_path: Path) -> None:
    kept: Track = [(0.0, 100), (12.0, 60), (55.0, 100)]
    tracks = {"web1": SAW, "web2": kept, "web3": CALM}
    episode = described("cpu", "web1", tracks, requests(tmp_path), ON_S, OFF_S, END_S)
    assert episode.falls == {"web1": 2, "web2": 1, "web3": 0}
    assert episode.rises == {"web1": 2, "web2": 1, "web3": 0}
    assert (episode.first_fall_s, episode.back_s, episode.back_during_noise) == (0.5, 2.0, 1)
    assert episode.held_calm_s == {"web1": 2.0, "web2": 43.0, "web3": 0.0}
    assert (episode.noisy_times.requests, episode.noisy_times.mean, episode.noisy_times.errors) == (2, 15.0, 0)
    assert (episode.after.requests, episode.after.mean, episode.after.errors) == (1, None, 1)


def test_a_trial_with_a_few_requests_is_no_fall_and_no_rise(tmp_path: Path) -> None:
    tried: Track = [(0.0, 100), (10.5, 0), (12.0, 10), (13.0, 0), (19.0, 10), (20.0, 0), (42.0, 10), (43.0, 100)]
    held: Track = [(0.0, 100), (10.5, 0), (12.0, 10), (13.0, 0)]
    episode = described("cpu", "web1", {"web1": tried, "web2": held}, requests(tmp_path), ON_S, OFF_S, END_S)
    assert (episode.falls, episode.rises) == ({"web1": 1, "web2": 1}, {"web1": 1, "web2": 0})
    assert (episode.first_fall_s, episode.back_s) == (0.5, 3.0)


def test_a_server_that_is_not_back_at_the_end_has_no_time_back(tmp_path: Path) -> None:
    tracks: dict[str, Track] = {"web1": [(0.0, 100), (10.5, 0)]}
    episode = described("cpu", "web1", tracks, requests(tmp_path), ON_S, OFF_S, END_S)
    assert (episode.back_s, episode.held_calm_s) == (None, {"web1": 20.0})
