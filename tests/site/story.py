"""A day on the test site: Slackwater set up as its documents say, users who never stop asking, and what people read."""

from __future__ import annotations

import contextlib
import html
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from slackwater_lab.cluster.noise import Noise
from slackwater_lab.cluster.paths import LabError
from tests.site.controller import HAPROXY, STATE_DIR, Slackwater
from tests.site.site import POOL, Load, Shape, Site, WebServer

RPS = 60.0
LONGEST_S = 3600.0
SOON_S, NOTICED_S, CALM_AGAIN_S = 45.0, 90.0, 180.0
"""Deadlines, not goals: a server is noticed within a second and a page is fresh within two, but the machine that plays
the site may be busy itself, and then all of it is slower and more than one server wavers."""
LOOK_EVERY_S = 0.3
BASELINE = 100
CALM = "All 3 servers are calm"
Answer = TypeVar("Answer")


@dataclass
class Day:
    """What a story plays on."""

    site: Site
    slackwater: Slackwater
    load: Load
    begun_mono_s: float = field(default_factory=time.monotonic)
    """When the story began that is told now."""

    @property
    def webs(self) -> list[WebServer]:
        return self.site.webs

    # --- what is said

    def pool(self) -> dict[str, Any]:
        """The pool, as `slackwater status --json` and the API give it to programs."""
        status = json.loads(self.slackwater.command("status", "--json"))
        return dict(next(pool for pool in status["pools"] if pool["pool"] == POOL))

    def row(self, server: str) -> dict[str, Any]:
        return dict(next(row for row in self.pool()["rows"] if row["server"] == server))

    def status(self) -> str:
        """`slackwater status`, with single blanks."""
        return _even(self.slackwater.command("status"))

    def check(self) -> tuple[int, list[str]]:
        """`slackwater check`: its exit status and its lines."""
        done = self.slackwater.run("slackwater", "check")
        return done.returncode, done.stdout.splitlines()

    def log(self, since_s: float | None = None) -> list[str]:
        """`slackwater log` since the story began, without the times."""
        since_s = time.monotonic() - self.begun_mono_s if since_s is None else since_s
        printed = self.slackwater.command("log", "--since", f"{since_s:.1f}s")
        return [line.split(" ", 2)[2] for line in printed.splitlines()]

    def page(self, path: str = "/") -> str:
        """What a person reads on a page of the dashboard."""
        status, text = self.slackwater.api(path)
        assert status == 200, f"{path}: {status} {text[:500]}"
        body = re.sub(r"(?s)<(script|style|svg).*?</\1>", " ", text)
        return _even(html.unescape(re.sub(r"<[^>]+>", " ", body)))

    def shows(self, words: str | re.Pattern[str]) -> None:
        """Fails unless `status`, the API, the overview and the pool's page soon say all the same in the headline."""
        pattern = re.compile(re.escape(words)) if isinstance(words, str) else words
        views: dict[str, Callable[[], str]] = {
            "status --json": lambda: self.pool()["headline"],
            "API": lambda: json.loads(self.slackwater.api(f"/api/v1/pools/{POOL}")[1]).get("headline", ""),
            "status": self.status,
            "the pool's page": lambda: self.page(f"/pools/{POOL}"),
        }
        for name, view in views.items():
            self.until(view, lambda text: bool(pattern.search(text)), f"{name}: {pattern.pattern}")

    def until(
        self, asked: Callable[[], Answer], is_right: Callable[[Answer], bool], event: str, within_s: float = SOON_S
    ) -> Answer:
        """Asks until the answer is right, and gives it. Fails with the last one."""
        until_s = time.monotonic() + within_s
        while True:
            last = asked()
            if is_right(last):
                return last
            assert time.monotonic() < until_s, f"not within {within_s:g} s: {event}; last: {last}"
            time.sleep(LOOK_EVERY_S)

    # --- what is there, without Slackwater's words

    def weights(self) -> dict[str, int]:
        """The weights that HAProxy shows."""
        return self.site.snapshot().weight

    def seen(self, seconds: float, at_most: Callable[[], bool] = lambda: False) -> list[dict[str, int]]:
        """The weights that HAProxy shows over a time, or until `at_most`."""
        weights, until_s = [], time.monotonic() + seconds
        while time.monotonic() < until_s and not at_most():
            weights.append(self.weights())
            time.sleep(LOOK_EVERY_S)
        return weights

    def is_relieved(self, web: WebServer) -> None:
        """Fails unless HAProxy soon shows a lower weight of a server than its configured one."""

        def shown() -> tuple[int, str, str]:
            return self.weights()[web.name], self.row(web.name)["why"], self.pool()["sentence"]

        self.until(shown, lambda text: text[0] < BASELINE, "a lower weight", NOTICED_S)

    # --- what happens

    def act(self) -> None:
        self.slackwater.command("mode", "act")

    @contextlib.contextmanager
    def neighbour(self, web: WebServer, kind: str = "cpu", seconds: float = 600.0) -> Iterator[Noise]:
        """A noisy one, until the `with` ends."""
        (noise,) = self.site.begin_noise([self.site.prepare_noise(web, kind, seconds)])
        try:
            yield noise
        finally:
            noise.stop()

    @contextlib.contextmanager
    def file(self, web: WebServer, path: str, text: str = "") -> Iterator[None]:
        """A file on a web server, until the `with` ends."""
        place = web.machine.place(path)
        place.write_text(text)
        place.chmod(0o644)
        try:
            yield
        finally:
            place.unlink()

    def settle(self) -> None:
        """Observe mode, nobody's weights, and all servers there, with none that fails."""
        if not self.site.haproxy.running:
            self.site.start_haproxy()
        for web in self.webs:
            self.site.set_quota(web, self.site.shape.quota_cores)
            for name, service in web.services.items():
                if not service.running:
                    self.site.start_service(web, name)
            self.site.ask(f"set server {POOL}/{web.name} weight 100%")
        for action in (("resume", "--pool", POOL), ("mode", "observe")):
            self.slackwater.command(*action)
        self.until(
            lambda: [row for row in self.pool()["rows"] if _is_amiss(row)],
            lambda rows: not rows,
            "nothing is amiss",
            within_s=CALM_AGAIN_S,
        )
        self.begun_mono_s = time.monotonic()

    def calms_down(self) -> None:
        """Fails unless all is said to be calm. A machine that is busy itself makes its servers slow for a while."""
        self.until(lambda: self.pool()["headline"], lambda text: text == CALM, CALM, within_s=CALM_AGAIN_S)
        self.shows(CALM)

    def has_baseline(self) -> None:
        """Fails unless HAProxy shows the configured weights again after a neighbour's end."""
        is_back = lambda weights: set(weights.values()) == {BASELINE}  # noqa: E731
        self.until(self.weights, is_back, "all weights are back", within_s=CALM_AGAIN_S)


def _is_amiss(row: dict[str, Any]) -> bool:
    fails = row["peers_failed_share"] is not None
    return fails or row["condition"] != "up" or row["state"] == "unknown" or row["weight"] != BASELINE


def _even(text: str) -> str:
    return " ".join(text.split())


@contextlib.contextmanager
def day(shape: Shape, rps: float = RPS) -> Iterator[Day]:
    """A site that is watched and green, in observe mode, with users."""
    with Site(shape) as site, Slackwater(site) as slackwater:
        slackwater.set_up()
        made = Day(site, slackwater, site.load(rps, LONGEST_S))
        try:
            yield made
        finally:
            made.load.stop()


__all__ = ["CALM", "HAPROXY", "STATE_DIR", "Day", "LabError", "day"]
