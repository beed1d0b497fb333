"""A run of chaos: the schedule is carried out, looks are judged, and what broke is kept."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from slackwater_lab.cluster import machine
from slackwater_lab.cluster.commit import commit
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.paths import LabError
from tests.chaos.faults import Fault, TableExcuses, Undo, table
from tests.chaos.invariants import Invariant, invariants
from tests.chaos.look import Look
from tests.chaos.schedule import Injection, calm_windows, schedule
from tests.chaos.site import JOURNAL_MAX_MB, JOURNAL_SLACK_MB, RESTORER, Site
from tests.chaos.story import Broken
from tests.chaos.watch import FailedRequests, Watch

LOOK_S = 0.1
AFTERMATH_S = 10.0
"""A fault may explain what is seen for this long after its end."""
QUIET_S = 60.0
"""An invariant that broke is not reported again within this time."""
WARM_UP_S = 15.0
RATE_SHARE = 0.4
"""Share of the application's usual rate: hosts beside a neighbour must be able to answer."""


class Carrier:
    """Carries out a schedule. A fault that cannot be injected is noted, and the run goes on."""

    def __init__(self, site: Site, faults: Mapping[str, Fault], plan: Sequence[Injection]) -> None:
        self._site = site
        self._faults = faults
        self._plan = list(plan)
        self._undo: list[tuple[float, int, Injection, Undo]] = []
        self._number = itertools.count()
        self.done: list[Injection] = []
        self.failed: list[str] = []

    def step(self, now_s: float) -> list[Injection]:
        """Begins and ends what is due; gives what began."""
        while self._undo and self._undo[0][0] <= now_s:
            _, _, injection, undo = heapq.heappop(self._undo)
            self._try(injection, undo)
        began = []
        while self._plan and self._plan[0].at_s <= now_s:
            injection = self._plan.pop(0)
            self.done.append(injection)
            undo = self._try(injection, partial(self._faults[injection.kind].inject, self._site, injection))
            began.append(injection)
            if undo is not None:
                heapq.heappush(self._undo, (injection.end_s, next(self._number), injection, undo))
        return began

    def _try(self, injection: Injection, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception as error:  # whatever it is, the next faults must have their turn
            self.failed.append(f"{injection}: {error!r}")
            return None

    def active(self, now_s: float) -> list[Injection]:
        """The faults at work, or just over."""
        return [injection for injection in self.done if now_s <= injection.end_s + AFTERMATH_S]

    def end(self) -> None:
        """Undoes all that is still at work."""
        while self._undo:
            _, _, injection, undo = heapq.heappop(self._undo)
            self._try(injection, undo)


class Judge:
    """Asks every invariant about each look; keeps what broke, each at most once a minute."""

    def __init__(self, rules: Sequence[Invariant]) -> None:
        self._rules = rules
        self._said_s: dict[str, float] = {}
        self.broken: list[Broken] = []

    def judge(self, look: Look) -> list[Broken]:
        """What is newly broken."""
        broken = []
        for rule in self._rules:
            violation = rule.judge(look)
            if violation is None or look.at_s - self._said_s.get(rule.name, -QUIET_S) < QUIET_S:
                continue
            self._said_s[rule.name] = look.at_s
            broken.append(Broken(look.at_s, rule.name, violation))
        self.broken += broken
        return broken


def run(lab: Lab, seconds: float, seed: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Chaos for some `seconds` in a fresh lab; gives all that happened, as for JSON."""
    hosts = [host.name for host in lab.hosts]
    faults = table(hosts)
    plan = schedule(seed, seconds, {name: fault.kind for name, fault in faults.items()})
    judge = Judge(
        invariants(
            TableExcuses(faults),
            (JOURNAL_MAX_MB + JOURNAL_SLACK_MB) * 1_000_000,
            calm_windows(seconds),
            frozenset(hosts),
            frozenset({"lbengine", "serve", RESTORER}),
        )
    )
    facts = machine.describe(lab)
    rate_rps = lab.app.rate_rps * RATE_SHARE
    with Site(lab, seed) as site:
        _warm_up(site, rate_rps, frozenset(hosts))
        begin_s = time.monotonic()
        carrier = Carrier(site, faults, plan)
        progress(f"chaos: seed {seed}, {seconds / 60:g} minutes, {len(plan)} faults")
        with Watch(site, begin_s) as watch:
            with FailedRequests(site, rate_rps, begin_s) as load:
                try:
                    _go_on(watch, load, carrier, judge, begin_s, seconds, progress)
                finally:
                    carrier.end()
            _look(watch, load, carrier, judge, progress)  # at the requests of the last seconds too
    return {
        "machine": facts,
        "commit": commit(),
        "seed": seed,
        "minutes": seconds / 60.0,
        "requests": load.requests,
        "faults": [asdict(injection) for injection in carrier.done],
        "not_injected": carrier.failed,
        "broken": [asdict(breach) for breach in judge.broken],
    }


def _warm_up(site: Site, rate_rps: float, nodes: frozenset[str]) -> None:
    """Until every node is judged, and then as long as a controller needs to learn what calm is."""
    begin_s = time.monotonic()
    with FailedRequests(site, rate_rps, begin_s), Watch(site, begin_s) as watch:
        site.wait_until_ready(lambda: watch.judged() >= nodes)
        time.sleep(WARM_UP_S)


def _go_on(
    watch: Watch,
    load: FailedRequests,
    carrier: Carrier,
    judge: Judge,
    begin_s: float,
    seconds: float,
    progress: Callable[[str], None],
) -> None:
    with _stepping(carrier, begin_s, seconds, progress):
        while time.monotonic() - begin_s < seconds:
            _look(watch, load, carrier, judge, progress)
            if load.trouble:
                raise LabError(f"the load cannot go on: {load.trouble}")
            time.sleep(LOOK_S)


@contextlib.contextmanager
def _stepping(carrier: Carrier, begin_s: float, seconds: float, progress: Callable[[str], None]) -> Iterator[None]:
    """Faults come on time even where the one before takes long, and looks go on meanwhile."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(LOOK_S) and time.monotonic() - begin_s < seconds:
            for injection in carrier.step(time.monotonic() - begin_s):
                progress(f"  {injection.at_s:7.1f} s  {injection} for {injection.seconds:g} s")

    thread = threading.Thread(target=run, name="faults", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _look(watch: Watch, load: FailedRequests, carrier: Carrier, judge: Judge, progress: Callable[[str], None]) -> None:
    look = watch.look(load.take())
    for breach in judge.judge(replace(look, active=carrier.active(look.at_s))):
        progress(f"  {breach.at_s:7.1f} s  BROKEN {breach.invariant}: {breach.what}")
