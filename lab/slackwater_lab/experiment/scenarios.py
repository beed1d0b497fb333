"""What happens in a comparison, as one table: who is loud, when and how, and how much is asked for meanwhile.

Times are in seconds from the begin of a run's disturbed phase; before it there is calm, after it calm again.
"""

from __future__ import annotations

from dataclasses import dataclass

from slackwater_lab.cluster.balancer import BASE_WEIGHT

KIND = "llcprobe"
"""The paper's LLCProbe, unless a scenario says otherwise."""
SECONDS = 10.0
"""Length of an episode, unless a scenario says otherwise."""
UNKNOWN_LOST = 0.5
FLOODS = ("disk", "pagecache", "flood", "stress-hdd")
"""Kinds that flood a device: what they take of a host cannot be stated."""


@dataclass(frozen=True)
class Neighbour:
    """A neighbour beside a host (numbered from 0)."""

    host: int
    begin_s: float
    end_s: float
    kind: str = KIND
    intensity: float = 1.0
    lost: float | None = 0.5
    """Share of the host's capacity that it takes: a half, as one neighbour as large as the server does; more, as
    several neighbours do. The lab finds the weight for it, and verifies it (slackwater_lab.experiment.neighbour_share).
    None: as much as it happens to take, where a device is flooded."""
    server_weight: int = BASE_WEIGHT
    """The balancer's weight for the server meanwhile, where a recording moves it."""

    @property
    def thought_lost(self) -> float:
        """The share that an oracle assumes."""
        return (UNKNOWN_LOST if self.lost is None else self.lost) * self.intensity


@dataclass(frozen=True)
class Surge:
    """More requests for a while: a share of the pool's capacity on top."""

    share: float
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Scenario:
    """One line of the table, for a pool of three hosts."""

    description: str
    neighbours: tuple[Neighbour, ...]
    seconds: float = SECONDS
    load: float = 0.5
    """Share of the pool's capacity in calm."""
    surges: tuple[Surge, ...] = ()
    clients: int | None = None
    """Number of clients of a closed loop, no faster than `load`; None: open loop."""
    quotas: tuple[float, ...] = ()
    """Cores of each host; empty: all alike."""
    app: str = "events"
    checks: str = ""
    """What each server's line in HAProxy's configuration has besides; empty: no health checks."""

    @property
    def shape(self) -> tuple[tuple[float, ...], str]:
        """What differs between the sites of scenarios: scenarios of one shape are played one after the other."""
        return self.quotas, self.checks

    @property
    def hosts(self) -> frozenset[int]:
        """The hosts that have a neighbour at some time."""
        return frozenset(neighbour.host for neighbour in self.neighbours)


def _all_of(*hosts: int, seconds: float = SECONDS, lost: float = 0.5) -> tuple[Neighbour, ...]:
    return tuple(Neighbour(host, 0.0, seconds, lost=lost) for host in hosts)


BURSTS = tuple(Neighbour(0, begin_s, begin_s + 2.0) for begin_s in (0.0, 7.0))
RAMP = tuple(
    Neighbour(0, 5.0 * step, 5.0 * step + 5.0, intensity=share) for step, share in enumerate((0.2, 0.4, 0.6, 0.8, 1.0))
)
STRESS = tuple(
    Neighbour(host, 6.0 * number, 6.0 * number + 5.0, kind, lost=None if kind in FLOODS else 0.5)
    for number, (host, kind) in enumerate(
        ((0, "stress-cache"), (1, "stress-stream"), (0, "stress-vm"), (1, "stress-hdd"), (0, "stress-cpu"))
    )
)
RESTARTS = tuple(Neighbour(host, 15.0 * host, 15.0 * host + 13.0, "restart", lost=None) for host in range(3))
CHECKS = "check inter 500ms fall 2 rise 2"
BROKEN = (Neighbour(0, 0.0, 60.0, "errors", lost=None),)
LIMITED = (Neighbour(0, 0.0, 60.0, "limit", intensity=0.4, lost=None),)
"""A quota of 0.4 of the usual one, which a guest is not told."""
MIXED = (Neighbour(0, 0.0, 8.0, "llcprobe"), Neighbour(1, 8.0, 16.0, "dcopy"), Neighbour(0, 16.0, 24.0, "cpu"))
DEVICES = tuple(
    Neighbour(host, 8.0 * number, 8.0 * number + 7.0, kind, lost=None)
    for number, (host, kind) in enumerate(((0, "disk"), (1, "pagecache"), (0, "flood")))
)

UNEVEN = (0.3, 0.4, 0.5)
"""Cores of unequal hosts."""

SCENARIOS: dict[str, Scenario] = {
    "one": Scenario("one of three noisy", _all_of(0)),
    "one-closed": Scenario("one of three noisy, closed loop of 24 clients", _all_of(0), clients=24),
    "one-70": Scenario("one of three noisy, 70% of its host lost", _all_of(0, lost=0.7)),
    "one-severe": Scenario("one of three noisy, 85% of its host lost", _all_of(0, lost=0.85)),
    "one-severe-closed": Scenario(
        "one of three noisy, 85% of its host lost, closed loop of 24 clients", _all_of(0, lost=0.85), clients=24
    ),
    "two": Scenario("two of three noisy", _all_of(0, 1)),
    "all": Scenario("all noisy", _all_of(0, 1, 2)),
    "bursts": Scenario("2 s on, 5 s off beside one", BURSTS, seconds=9.0),
    "slow-ramp": Scenario("noise that grows beside one", RAMP, seconds=25.0),
    "flash-crowd": Scenario("a crowd comes while one is noisy", _all_of(0), load=0.3, surges=(Surge(0.3, 3.0, 8.0),)),
    "mixed": Scenario("three kinds, one after the other, beside two hosts", MIXED, seconds=24.0),
    "devices": Scenario("disk, page cache and network flooded, 7 s each, beside two hosts", DEVICES, seconds=23.0),
    "stress": Scenario("stress-ng's cache, stream, vm, hdd and cpu, 5 s each, beside two hosts", STRESS, seconds=29.0),
    "uneven-hosts": Scenario("hosts of 0.3, 0.4 and 0.5 core, the middle one noisy", _all_of(1), quotas=UNEVEN),
    **{
        name: Scenario(f"hosts of 0.3, 0.4 and 0.5 core, all calm, at {load:.0%} load", (), 20.0, load, quotas=UNEVEN)
        for name, load in (("uneven-calm", 0.8), ("uneven-calm-60", 0.6), ("uneven-calm-40", 0.4))
    },
    "load-20": Scenario("one of three noisy at 20% load", _all_of(0), load=0.2),
    "load-80": Scenario("one of three noisy at 80% load", _all_of(0), load=0.8),
    "errors": Scenario("one of three answers 500 at once, for a minute", BROKEN, seconds=60.0),
    **{
        name: Scenario(f"each is restarted in turn, {cold}", RESTARTS, 43.0, 0.6, app=app, checks=CHECKS)
        for name, app, cold in (
            ("rolling-restart", "events", "with a cold opcache"),
            ("rolling-restart-dokuwiki", "dokuwiki", "with a cold opcache and no page in DokuWiki's cache"),
        )
    },
    "own-limit": Scenario("one of three gets 0.4 of its quota, for a minute", LIMITED, seconds=60.0),
    "long": Scenario("an episode of a minute", _all_of(0, seconds=60.0), seconds=60.0),
    "dokuwiki": Scenario("one of three noisy, DokuWiki", _all_of(0), app="dokuwiki"),
    "two-dokuwiki": Scenario("two of three noisy, DokuWiki", _all_of(0, 1), app="dokuwiki"),
}
"""Name -> scenario."""

ELSEWHERE: dict[str, str] = {
    "streaming": "its balancer is IPVS, in a guest of its own: `pytest -s"
    " tests/lab/test_compare_streaming.py` measures frame delays with static weights and with lbengine's, from played"
    " Verdicts"
}
"""Scenarios that a comparison does not run, with the reason and what does."""
