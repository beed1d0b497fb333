"""Plays calm, a noisy neighbour, and calm again on the test site, and says what was done about it.

    python -m tests.site.episodes --balance leastconn --rps 20 --app burn --noise cpu --seconds 30 --rounds 5 --mode act

Each round is an episode, on the first server. A fall goes from the baseline weight down, however long and whatever the
weight does below it; a rise ends at the baseline. So a trial (0 to 10 and back) is neither. In observe mode they are
those that would have been.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from slackwater_lab.cluster.noise import NOISES
from slackwater_lab.cluster.paths import LabError
from tests.site import load
from tests.site.apps import APPS
from tests.site.controller import Slackwater
from tests.site.site import Shape, Site

BEFORE_S, AFTER_S = 12.0, 20.0
LOOK_EVERY_S = 0.1
BASELINE = 100
MODES = ("off", "observe", "act")
Track = list[tuple[float, int]]
"""When (monotonic) a server's weight became what."""


@dataclass(frozen=True)
class Times:
    """Response times of a part of a round, in ms."""

    requests: int
    mean: float | None
    p95: float | None
    p99: float | None
    errors: int
    per_server: dict[str, int]


@dataclass(frozen=True)
class Episode:
    """One round. Seconds count from the noise's beginning, or from its end where the name says `back`."""

    noise: str
    noisy: str
    falls: dict[str, int]
    """Server -> its falls in the whole round."""
    rises: dict[str, int]
    first_fall_s: float | None
    back_s: float | None
    """From the end of the noise until the weight was at its baseline for good; None: not in this round, or it
    was there."""
    back_during_noise: int
    """How often the noisy server was at its baseline again while the noise was on."""
    held_calm_s: dict[str, float]
    """The longest time without a break for which a calm server was below its baseline. The noisy server is calm before
    the noise and after it."""
    weights: dict[str, list[tuple[float, int]]]
    calm: Times
    noisy_times: Times
    after: Times


class Watch:
    """Each server's weight from `with` on, as HAProxy shows it or as it would be in observe mode."""

    def __init__(self, site: Site, slackwater: Slackwater | None, *, would: bool) -> None:
        self._site, self._slackwater, self._would = site, slackwater, would
        self.tracks: dict[str, Track] = {web.name: [(time.monotonic(), BASELINE)] for web in site.webs}
        self._begin_unix_s = time.time()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        if not self._would:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if not self._would:
            self._thread.join()
        elif self._slackwater is not None:
            lag_s = time.time() - time.monotonic()
            for change in self._slackwater.changes(self._begin_unix_s):
                if change.what == "weight" and change.target in self.tracks:
                    self._add(change.target, change.time_unix_s - lag_s, int(str(change.after)))

    def _add(self, server: str, at_s: float, weight: int) -> None:
        if self.tracks[server][-1][1] != weight:
            self.tracks[server].append((at_s, weight))

    def _run(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            with suppress(LabError):
                seen = self._site.snapshot()
                for server, weight in seen.weight.items():
                    self._add(server, seen.mono_s, weight)


def below(track: Track, end_s: float) -> list[tuple[float, float]]:
    """The times in which the weight was below its baseline without a break: from when until when."""
    spans: list[tuple[float, float]] = []
    for (begin_s, weight), (until_s, _) in pairwise([*track, (end_s, 0)]):
        if weight < BASELINE:
            if spans and spans[-1][1] == begin_s:
                spans[-1] = (spans[-1][0], until_s)
            else:
                spans.append((begin_s, until_s))
    return spans


def longest_s(spans: Sequence[tuple[float, float]], begin_s: float, end_s: float) -> float:
    """The longest part of a span within these times."""
    return max((min(until_s, end_s) - max(from_s, begin_s) for from_s, until_s in spans), default=0.0)


def times_of(requests: load.Requests) -> Times:
    """Answers alone count, but for `errors`."""
    ms = requests.seconds[requests.status > 0] * 1e3
    names, counts = np.unique(requests.server, return_counts=True)
    mean, p95, p99 = (float(figure) for figure in (ms.mean(), *np.percentile(ms, [95, 99]))) if len(ms) else (None,) * 3
    served = {str(name): int(count) for name, count in zip(names, counts, strict=True)}
    return Times(len(requests.status), _round(mean), _round(p95), _round(p99), requests.errors, served)


def described(
    kind: str, noisy: str, tracks: Mapping[str, Track], requests: load.Requests, on_s: float, off_s: float, end_s: float
) -> Episode:
    """What a round came to."""
    spans = {server: below(track, end_s) for server, track in tracks.items()}
    first_fall_s = next((from_s - on_s for from_s, _ in spans[noisy] if from_s >= on_s), None)
    away = [until_s for from_s, until_s in spans[noisy] if until_s > off_s]
    back_s = None if not away or away[-1] >= end_s else away[-1] - off_s
    held = {server: longest_s(of_it, 0.0, end_s) for server, of_it in spans.items() if server != noisy}
    held[noisy] = max(longest_s(spans[noisy], 0.0, on_s), longest_s(spans[noisy], off_s, end_s), 0.0)
    begin_s = min(track[0][0] for track in tracks.values())
    return Episode(
        noise=kind,
        noisy=noisy,
        falls={server: len(of_it) for server, of_it in spans.items()},
        rises={server: sum(until_s < end_s for _, until_s in of_it) for server, of_it in spans.items()},
        first_fall_s=_round(first_fall_s),
        back_s=_round(back_s),
        back_during_noise=sum(on_s < until_s < off_s for _, until_s in spans[noisy]),
        held_calm_s={server: round(max(0.0, seconds), 2) for server, seconds in sorted(held.items())},
        weights={
            server: [(round(at_s - on_s, 2), weight) for at_s, weight in track] for server, track in tracks.items()
        },
        calm=times_of(requests.between(begin_s, on_s)),
        noisy_times=times_of(requests.between(on_s, off_s)),
        after=times_of(requests.between(off_s, end_s)),
    )


def _round(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 2)


def play(
    site: Site, slackwater: Slackwater | None, mode: str, kind: str, seconds: float, rps: float, after_s: float
) -> Episode:
    """One round: `rps` requests/s, of the whole site. The noise is filled before, and on when its word is given."""
    web = site.webs[0]
    waiting = site.prepare_noise(web, kind, seconds)
    with Watch(site, slackwater, would=mode == "observe") as watch:
        running = site.load(rps, BEFORE_S + seconds + after_s)
        try:
            _sleep_until(running.begin_mono_s + BEFORE_S)
        except BaseException:
            waiting.give_up()
            raise
        (noise,) = site.begin_noise([waiting])
        _sleep_until(noise.on_mono_s + seconds)
        noise.stop()
        off_s = noise.off_mono_s or time.monotonic()
        requests = running.finish()
    return described(kind, web.name, watch.tracks, requests, noise.on_mono_s, off_s, time.monotonic())


def _sleep_until(mono_s: float) -> None:
    time.sleep(max(0.0, mono_s - time.monotonic()))


def summary(episodes: Sequence[Episode]) -> dict[str, Any]:
    """What all rounds came to."""
    falls = [sum(episode.falls.values()) for episode in episodes]
    first = [episode.first_fall_s for episode in episodes if episode.first_fall_s is not None]
    back = [episode.back_s for episode in episodes if episode.back_s is not None]
    means = [episode.noisy_times.mean for episode in episodes if episode.noisy_times.mean is not None]
    calm = [episode.calm.mean for episode in episodes if episode.calm.mean is not None]
    return {
        "episodes": len(episodes),
        "falls": falls,
        "with_at_most_one_fall": sum(count <= 1 for count in falls),
        "first_fall_s_median": statistics.median(first) if first else None,
        "back_s_median": statistics.median(back) if back else None,
        "back_s_worst": max(back) if back else None,
        "held_calm_s_worst": max(max(episode.held_calm_s.values()) for episode in episodes),
        "calm_mean_ms_median": statistics.median(calm) if calm else None,
        "noisy_mean_ms_median": statistics.median(means) if means else None,
        "errors": sum(
            part.errors for episode in episodes for part in (episode.calm, episode.noisy_times, episode.after)
        ),
    }


def as_text(episode: Episode) -> str:
    """A line for a person."""
    path = "→".join(str(weight) for _, weight in episode.weights[episode.noisy])
    held = ", ".join(f"{server} {seconds:g}" for server, seconds in episode.held_calm_s.items() if seconds)
    return (
        f"{episode.noise}: falls {episode.falls}, {episode.noisy} {path}; "
        f"first fall {episode.first_fall_s} s, back {episode.back_s} s; "
        f"calm held below s: {held or 'none'}; "
        + "; ".join(
            f"{name} mean {part.mean} p95 {part.p95} p99 {part.p99} ms, {part.errors} errors of {part.requests}"
            for name, part in (("calm", episode.calm), ("noise", episode.noisy_times), ("after", episode.after))
        )
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--balance", default="leastconn", help="leastconn, roundrobin, random")
    parser.add_argument("--app", choices=APPS, default="burn")
    parser.add_argument("--haproxy", default="haproxy", help="haproxy, haproxy-3, haproxy-3.4")
    parser.add_argument("--tls", action="store_true", help="HAProxy asks its servers over TLS")
    parser.add_argument("--rps", type=float, default=20.0, help="requests/s a server")
    parser.add_argument("--noise", default="cpu", help=f"{', '.join(NOISES)}; several with commas")
    parser.add_argument("--seconds", type=float, default=30.0, help="of noise")
    parser.add_argument("--after", type=float, default=AFTER_S, help="seconds of calm after it")
    parser.add_argument("--rounds", type=int, default=5, help="of each noise")
    parser.add_argument("--mode", choices=MODES, default="act")
    parser.add_argument("--json", action="store_true", help="an object a line: each episode, then the summary")
    return parser.parse_args()


def main() -> int:
    words = _arguments()
    kinds = words.noise.split(",")
    if unknown := [kind for kind in kinds if kind not in NOISES]:
        print(f"no noise `{unknown[0]}`; there are: {', '.join(NOISES)}", file=sys.stderr)
        return 2
    shape = Shape(words.balance, words.app, words.haproxy, words.tls)
    say = (lambda _: None) if words.json else print
    episodes: list[Episode] = []
    try:
        with ExitStack() as stack:
            site = stack.enter_context(Site(shape, say))
            slackwater = None if words.mode == "off" else stack.enter_context(Slackwater(site))
            if slackwater is not None:
                slackwater.set_up()
                slackwater.command("mode", words.mode, "--why", "episodes")
            for kind in (kind for _ in range(words.rounds) for kind in kinds):
                rps = words.rps * shape.servers
                episodes.append(play(site, slackwater, words.mode, kind, words.seconds, rps, words.after))
                print(json.dumps(asdict(episodes[-1])) if words.json else as_text(episodes[-1]), flush=True)
    except LabError as error:
        print(f"episodes: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"summary": summary(episodes), "settings": vars(words)}) if words.json else summary(episodes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
