"""A server of a pool of three that a limit of its own slows down, or a neighbour that leaves it as much.

It is played in steps of a millisecond, and told as a monitor tells it. Requests come at random; a balancer that goes by
requests in flight sends it at most `MOST_HELD` at a time. Of the CPU it gets what its limit allows: a quota in each
period, a bucket's credits, a slower clock. A neighbour takes slices of random length, as in the lab's guests, where the
CPU that is got in 0.2 s has a standard deviation of 7 to 11%. Under a fair scheduler a neighbour (`fair neighbour`) has
slices that the scheduler makes, and a server that had little runs at once: it is as steady as a limit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from slackwater.core.messages import VERSION, Canary, Cpu, Frequency, Gaps, Sample, Sched, Traffic

POOL = "limited"
STEP_S = 0.001
PERIOD_S = 0.2
MOST_HELD = 4
MOMENTS_PER_S = 20.0
MHZ = 3000.0
SLICE_S, SLICE_SHAPE = 0.004, 4.0
"""Mean of the slices that server and neighbour have in turn, together twice as long; shape of their distribution."""
FAIR_SLICE_S, WAKE_UP_S = 0.003, 0.003
"""A fair scheduler's slice, and how far a program that wakes up is put before others (CFS)."""
Kind = Literal["cgroup", "steal", "hidden"]
"""How a server is seen: a cgroup whose quota is known; a machine that is told of stolen time; one that is not."""
Slowed = Literal["no", "quota", "credits", "clock", "neighbour", "fair neighbour", "cache", "own load"]


@dataclass
class Server:
    """One server. `share`: of a CPU, that a limit or a neighbour leaves it."""

    kind: Kind
    dice: random.Random
    load: float = 0.35
    """Share of its CPU that its requests want."""
    slowed: Slowed = "no"
    share: float = 1.0
    cost_s: float = 0.002
    cost_cv: float = 0.15
    quota_period_s: float = 0.1
    bucket_s: float = 0.5
    processors: int = 1
    usual_quota: float = 0.8
    """Of a cgroup: its quota in CPUs."""

    def __post_init__(self) -> None:
        self.held: list[list[float]] = []
        """(work left, time since it came) of each request."""
        self.at_s = 0.0
        self.next_s = 0.0
        self.left_s = 0.0
        """CPU time that is left in this period."""
        self.slice_s, self.has_slice = 0.0, True
        self.own_time_s = self.neighbours_time_s = 0.0
        """What each has run under a fair scheduler, over its weight."""

    def _arrive(self) -> None:
        rate = self.load * self.processors / self.cost_s
        while self.next_s <= self.at_s:
            self.next_s += self.dice.expovariate(rate) if rate > 0.0 else 1e9
            if len(self.held) < MOST_HELD * self.processors:
                shape = 1.0 / self.cost_cv**2
                self.held.append([self.dice.gammavariate(shape, self.cost_s / shape), 0.0])

    @property
    def quota(self) -> float:
        """CPUs of a visible quota."""
        return self.share if self.slowed in ("quota", "credits") else self.usual_quota

    def _runs(self, new_period: bool) -> tuple[float, bool]:
        """The speed now, and whether the machine runs at all."""
        if self.kind == "cgroup" and self.slowed != "credits":
            if new_period:
                self.left_s = self.quota * self.quota_period_s
            return (1.0, True) if self.left_s > 0.0 else (0.0, False)
        if self.slowed == "quota":
            if new_period:
                self.left_s = self.share * self.quota_period_s
            return (1.0, True) if self.left_s > 0.0 else (0.0, False)
        if self.slowed == "credits":
            self.left_s = min(self.left_s + self.share * STEP_S, self.bucket_s)
            return (1.0, True) if self.left_s > 0.0 else (0.0, False)
        if self.slowed == "clock":
            return self.share, True
        if self.slowed == "cache":
            return self.share, True
        return 1.0, True

    def _neighbours_turn(self) -> bool:
        """Whether a neighbour has the CPU now: both have slices in turn, also while the server has nothing to do."""
        if self.slowed == "fair neighbour":
            return self._fair_turn()
        if self.slowed != "neighbour":
            return False
        self.slice_s -= STEP_S
        if self.slice_s <= 0.0:
            self.has_slice = not self.has_slice
            share = self.share / self.usual_quota if self.kind == "cgroup" else self.share
            mean = 2.0 * SLICE_S * (share if self.has_slice else 1.0 - share)
            self.slice_s += self.dice.gammavariate(SLICE_SHAPE, mean / SLICE_SHAPE)
        return not self.has_slice

    def _fair_turn(self) -> bool:
        """Whether a neighbour that always wants the CPU has it now, under a scheduler that is fair by weights."""
        weight = self.share / (1.0 - self.share)
        if not self.held:
            self.neighbours_time_s += STEP_S * weight
            self.own_time_s = max(self.own_time_s, self.neighbours_time_s - WAKE_UP_S)
            self.has_slice, self.slice_s = False, 0.0
            return True
        self.slice_s += STEP_S
        wakes_up = not self.has_slice and self.own_time_s + STEP_S < self.neighbours_time_s - STEP_S
        if self.slice_s >= FAIR_SLICE_S or wakes_up:
            has_slice = self.own_time_s <= self.neighbours_time_s
            if has_slice != self.has_slice:
                self.slice_s = 0.0
            self.has_slice = has_slice
        if self.has_slice:
            self.own_time_s += STEP_S
        else:
            self.neighbours_time_s += STEP_S * weight
        return not self.has_slice

    def sample(self, name: str, seq: int) -> Sample:
        """The Sample of the next `PERIOD_S`."""
        used = lost = waited = 0.0
        periods = throttled = moments = missed = 0
        ended: list[float] = []
        for _ in range(round(PERIOD_S / STEP_S)):
            self.at_s += STEP_S
            self._arrive()
            step = round(self.at_s / STEP_S)
            new_period = step % round(self.quota_period_s / STEP_S) == 0
            if new_period:
                periods += 1
                throttled += self.left_s <= 0.0
            speed, runs = self._runs(new_period)
            taken = runs and self._neighbours_turn()
            if taken and self.kind == "cgroup":
                self.left_s -= STEP_S  # a neighbour in the same quota
            for request in self.held:
                request[1] += STEP_S
            if self.dice.random() < MOMENTS_PER_S * STEP_S:
                moments += 1
                missed += not runs or taken
            for _ in range(self.processors):
                if not self.held:
                    break
                if not runs or taken:
                    lost += STEP_S
                    continue
                used += STEP_S
                self.left_s -= STEP_S
                self.held[0][0] -= speed * STEP_S
                if self.held[0][0] <= 0.0:
                    ended.append(self.held.pop(0)[1])
            waited += STEP_S * max(len(self.held) - self.processors * (runs and not taken), 0)
        return self._told(name, seq, used, lost, waited, throttled / max(periods, 1), moments, missed, ended)

    def _told(
        self,
        name: str,
        seq: int,
        used: float,
        lost: float,
        waited: float,
        throttled: float,
        moments: int,
        missed: int,
        ended: list[float],
    ) -> Sample:
        cgroup = self.kind == "cgroup"
        cores = self.quota if cgroup else float(self.processors)
        steal = lost / PERIOD_S / cores if self.kind == "steal" else 0.0
        booked = used if cgroup else used + lost
        missed_share = missed / moments if moments else None
        times = sorted(1e3 * seconds for seconds in ended)
        return Sample(
            v=VERSION,
            node=name,
            pool=POOL,
            time_unix_s=1e9 + self.at_s,
            boot_id="played",
            seq=seq,
            period_s=PERIOD_S,
            next_within_s=3.0,
            cpu=Cpu(
                scope="cgroup" if cgroup else "system",
                utilisation=booked / PERIOD_S / cores,
                cores=cores,
                steal=None if cgroup else min(steal, 1.0),
                throttled=throttled if cgroup else None,
            ),
            sched=Sched(
                cpu_s_per_s=booked / PERIOD_S,
                run_delay_s_per_s=waited / PERIOD_S,
                run_delay_per_cpu_s=waited / booked if booked > 0.01 * PERIOD_S else None,
            ),
            gaps=Gaps(
                moments=moments,
                lost_share=0.0 if cgroup and missed_share is not None else missed_share,
                queued_share=missed_share if cgroup else 0.0 if missed_share is not None else None,
            ),
            canary=Canary(
                wall_cpu_ratio=1.0 + self.dice.expovariate(50.0) + (2.0 * missed / moments if moments else 0.0),
                late_ms=self.dice.expovariate(10.0) + (10.0 * missed / moments if moments else 0.0),
                llc_cycles_per_load=20.0 / (self.share if self.slowed in ("clock", "cache") else 1.0),
                alu_cycles_per_op=0.17 / (self.share if self.slowed == "clock" else 1.0),
            ),
            traffic=Traffic(
                rps=len(times) / PERIOD_S,
                rt_mean_ms=sum(times) / len(times) if times else None,
                rt_p50_ms=times[len(times) // 2] if times else None,
                rt_p95_ms=times[int(0.95 * len(times))] if times else None,
                in_flight=len(self.held),
            ),
            frequency=Frequency(mean_mhz=MHZ * (self.share if self.slowed == "clock" else 1.0)),
        )


def pool(kind: Kind, seed: int, **settings: float) -> list[Server]:
    """Three calm servers alike."""
    return [Server(kind, random.Random(f"{seed} {number}"), **settings) for number in range(3)]  # type: ignore[arg-type]


def samples(servers: list[Server], seconds: float, begin: int = 0) -> Iterator[list[Sample]]:
    """The Samples of all for so long, one list for each `PERIOD_S`; `begin`: number of the first."""
    for seq in range(begin, begin + round(seconds / PERIOD_S)):
        yield [server.sample(f"s{number}", seq) for number, server in enumerate(servers)]
