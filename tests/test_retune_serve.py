"""The second stage end to end: `slackwater serve`, a real HAProxy, a real wsengine; the detector alone is played."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_haproxy import RealHAProxy, backend, haproxy, needs_haproxy
from test_serve import Site, until, weights
from test_wsengine import BY_HAND, Scene
from test_wsengine import pytestmark as needs_wsengine

from slackwater.bus import Bus, BusError
from slackwater.messages import Verdict

pytestmark = [needs_haproxy, *needs_wsengine]
NODES = {"host1": "web1", "host2": "host2", "host3": "host3"}
SETTINGS = """\
servers = {{ host1 = "web1" }}
[retune]
mode = "{mode}"
order_key = "{key}"
long_after_s = 2
leave_after_s = 1
lease_s = 6
drain_s = 1
reload_min_interval_s = 0
"""


class Played:
    """A detector: five times a second it says that web1 has a neighbour, while `loud`."""

    def __init__(self, url: str) -> None:
        self.loud = True
        self._url = url
        self._end = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    async def _run(self) -> None:
        begin = time.time()
        while not self._end.is_set():
            try:
                bus = await Bus.connect(self._url, "played", wait_s=1.0)
            except BusError:
                continue
            while bus.connected and not self._end.is_set():
                for node in NODES.values():
                    loud = self.loud and node == "web1"
                    state, severity = ("interference", 0.7) if loud else ("calm", 0.0)
                    path = ["run delay 14.2x its calm baseline"]
                    verdict = Verdict(1, node, "web", time.time(), state, begin, severity, path, "played")  # type: ignore[arg-type]
                    await bus.publish(verdict)
                await asyncio.sleep(0.2)
            await bus.close()

    def close(self) -> None:
        self._end.set()
        self._thread.join()


class Whole(Site):
    """Everything, on the bus that the wsengine's scene has."""

    def __init__(self, folder: Path, balancer: RealHAProxy) -> None:
        self.scene = Scene(folder)
        super().__init__(folder, balancer)
        self.played = Played(self.scene.nats.url)

    def begin(self, mode: str) -> None:
        self.write(bus=f'url = "{self.scene.nats.url}"')
        with self.config.open("a") as file:
            file.write(SETTINGS.format(mode=mode, key=self.scene.private))
        self.serve()
        self.wait_for_cycles()

    def clean(self) -> None:
        super().clean()
        self.played.close()
        self.scene.close()


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    with haproxy(backend([1, 2, 3])) as balancer:
        whole = Whole(tmp_path, balancer)
        yield whole
        whole.clean()


def test_a_long_episode_is_drained_retuned_told_and_given_back(whole: Whole) -> None:
    whole.begin("act")
    assert "retune" in whole.children()
    until(lambda: whole.scene.text() == "threads 16;\n", "the knob is turned")
    assert weights(whole.balancer)["host1"] < 100, "the neighbour is still there"

    def row() -> Any:
        return {one["node"]: one for one in (whole.status() or {"rows": []})["rows"]}.get("web1", {})

    until(lambda: row().get("turned") == ["streaming.num_threads 4 → 16"], "`status` tells it")
    by_retune = until(lambda: whole.changes_by("retune"), "the Order in the journal")
    by_engine = until(lambda: whole.changes_by("wsengine"), "what came of it in the journal")
    assert by_retune[-1].what == "order streaming.num_threads"
    assert by_engine[-1].follows == by_retune[-1].id
    assert "run delay 14.2x its calm baseline" in by_retune[-1].why
    whole.played.loud = False
    until(lambda: whole.scene.text() == BY_HAND, "the knob is as before")
    until(lambda: set(weights(whole.balancer).values()) == {100}, "the weights are as before")
    back = until(lambda: [c for c in whole.changes_by("wsengine") if c.why.startswith("put back")], "it is recorded")
    assert back[0].why == "put back: given back by retune: the episode is over"
    told = whole.cli("why", "web1").stdout
    assert "web1 streaming.num_threads 4 -> 16: interference: run delay" in told
    assert "given back by retune" in told


def test_in_observe_it_is_recorded_and_nothing_is_touched(whole: Whole) -> None:
    whole.begin("observe")
    (would,) = until(lambda: whole.changes_by("retune"), "what it would do")
    assert (would.what, would.before, would.after, would.applied) == ("streaming.num_threads", 4, 16, False)
    assert whole.scene.text() == BY_HAND
    assert not whole.scene.reloads.exists()


def test_a_pause_gives_everything_back(whole: Whole) -> None:
    whole.begin("act")
    until(lambda: whole.scene.text() == "threads 16;\n", "the knob is turned")
    assert whole.cli("pause", "--pool", "web", "--why", "deploy").returncode == 0
    until(lambda: whole.scene.text() == BY_HAND, "the knob is as before")
    until(lambda: set(weights(whole.balancer).values()) == {100}, "the weights are as before")
