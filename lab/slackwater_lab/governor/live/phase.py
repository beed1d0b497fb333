"""One policy through one load: a process of its own, beside the hosts, that reads what to do and writes what it saw.

The load generator and the policy share the process, so that the policy sees each answer at once, as the papers' do from
theirs.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from slackwater.governor.types import Hardware, Observation, Policy, whole
from slackwater_lab.cluster.background import Background
from slackwater_lab.cluster.cgroups import Cgroups
from slackwater_lab.governor.live.hot import HotEvents
from slackwater_lab.governor.live.load import Answer, Client, LiveLoad, Memcached, Web
from slackwater_lab.governor.live.machine import Place, ServingHost, waited_s
from slackwater_lab.governor.live.policies import machine, policy_of
from slackwater_lab.governor.live.services import SERVICES

SWITCH_S = 0.001
"""The longest time that a thread of this process may keep the others waiting."""
QUEUE_S = 1.0
FINISH_S = 5.0
"""Requests without an answer this long after the load's end count as errors."""


class Task(msgspec.Struct, frozen=True):
    """The orders for a process."""

    service: str
    policy: str
    place: Place
    address: tuple[str, int]
    rates_rps: tuple[float, ...] | None
    """Rate of each step; None: one step as fast as answers come, which shows the capacity."""
    step_s: float
    seed: int
    waiting: tuple[int, ...]
    """Processes whose threads' waits for a core are the queue."""
    pinned: tuple[int, ...] = ()
    events_socket: str | None = None


class Seen(msgspec.Struct, frozen=True):
    """The process's results. CPU times are in cores: seconds in a second."""

    requests: int
    errors: int
    """Errors, with requests that were not answered."""
    p95_ms: float | None
    p99_ms: float | None
    within_target_percent: float | None
    """Share of the seconds with requests whose p95 is within the target; a request belongs to when it was due."""
    rps: float
    """Good answers."""
    allowed_cores: float
    used_cores: float
    batch_cores: float
    serving_cores: float
    """Mean number of cores that the policy let serve."""
    states: dict[str, float]
    """Share of the decisions that set this share of the highest clock, over cores."""


class Governing(Background):
    """Runs a policy while it is entered. Before, the host has all cores and the highest clock."""

    def __init__(
        self,
        policy: Policy,
        processor: Hardware,
        host: ServingHost,
        load: LiveLoad,
        waiting: Sequence[int],
        events: HotEvents | None = None,
    ) -> None:
        super().__init__("the policy")
        self._policy, self._of, self._host, self._load, self._waiting = policy, processor, host, load, waiting
        self._events = events
        self.states: Counter[float] = Counter()
        self.allowed_core_s = self.serving_core_s = 0.0
        self._read = 0
        self._cpu_s = host.service_cpu_s()
        self._waits: deque[tuple[float, float, int]] = deque()
        """Entries of the last `QUEUE_S`: instant, waits of all threads until then in s, answers until then."""

    def _run(self) -> None:
        action = self._policy.start()
        self._host.set(action)
        then_s = time.monotonic()
        due_s = then_s + self._policy.period_s
        ended = False
        while not ended:
            ended = self._end.wait(max(0.0, due_s - time.monotonic()))
            now_s = time.monotonic()
            passed_s = now_s - then_s
            self.allowed_core_s += passed_s * self._host.allowed_cores
            self.serving_core_s += passed_s * len(action.cores)
            wanted = self._policy.decide(self._observe(now_s, passed_s, len(action.cores)))
            if wanted != action:
                self._host.set(wanted)
            action, then_s = wanted, now_s
            self.states.update(round(clock_mhz / self._of.max_mhz, 3) for clock_mhz in action.clocks_mhz)
            # A decision that came late shifts those after it.
            due_s = max(due_s + self._policy.period_s, time.monotonic())

    def _observe(self, now_s: float, passed_s: float, cores: int) -> Observation:
        answered = self._load.answers[self._read :]
        self._read += len(answered)
        took_ms = [1e3 * answer.took_s for answer in answered if answer.good]
        p95_ms, p99_ms = p95_p99(took_ms)
        cpu_s = self._host.service_cpu_s()
        used_s, self._cpu_s = cpu_s - self._cpu_s, cpu_s
        busy = min(1.0, used_s / max(1e-9, passed_s * self._host.allowed_cores))
        return Observation(
            now_s,
            len(answered) / max(1e-9, passed_s),
            p95_ms,
            p99_ms,
            self._queue_delay_ms(now_s),
            1e3 * self._load.oldest_s(),
            (busy,) * cores,
            events=self._events.drain() if self._events else (),
        )

    def _queue_delay_ms(self, now_s: float) -> float:
        """How long threads waited for a core in the last second, for each answer."""
        self._waits.append((now_s, waited_s(self._waiting), self._read))
        while self._waits[0][0] < now_s - QUEUE_S:
            self._waits.popleft()
        _, before_s, answered = self._waits[0]
        return 1e3 * max(0.0, self._waits[-1][1] - before_s) / max(1, self._read - answered)

    def __exit__(self, raised: object = None, *_: object) -> None:
        super().__exit__()
        if raised is None:
            self.check()


def client(task: Task) -> Callable[[], Client]:
    """Makes one connection to the task's service."""
    asked = SERVICES[task.service]
    if asked.kind == "memcached":
        return lambda: Memcached(task.address)
    host, port = task.address
    return lambda: Web([f"http://{host}:{port}{path}" for path in asked.paths])


def run(task: Task, cgroups: Cgroups) -> Seen:
    """Raises OSError when the service cannot be reached or the kernel's files cannot be written."""
    asked, processor = SERVICES[task.service], machine()
    make = client(task)
    if asked.kind == "memcached":
        with contextlib.closing(Memcached(task.address)) as first:
            first.fill()
    host = ServingHost(cgroups, task.place, processor.max_mhz, task.pinned)
    host.set(whole(processor.highest))
    closed = asked.closed or task.rates_rps is None
    with contextlib.ExitStack() as stack:
        events = stack.enter_context(HotEvents(Path(task.events_socket))) if task.events_socket else None
        load = stack.enter_context(LiveLoad(make, asked.connections, closed, task.seed))
        policy = policy_of(task.policy, processor, asked.target_ms)
        service_s, batch_s, begin_s = host.service_cpu_s(), host.batch_cpu_s(), time.monotonic()
        with Governing(policy, processor, host, load, task.waiting, events) as governing:
            for rate_rps in task.rates_rps or (float("inf"),):
                load.run(rate_rps, task.step_s)
            load.finish(FINISH_S)
        passed_s = time.monotonic() - begin_s
        used_s, batch_s = host.service_cpu_s() - service_s, host.batch_cpu_s() - batch_s
        lost, answers = load.lost, list(load.answers)
        host.set(whole(processor.highest))
    return seen(answers, lost, asked.target_ms, begin_s, passed_s, governing, used_s, batch_s)


def seen(
    answers: Sequence[Answer],
    lost: int,
    target_ms: float,
    begin_s: float,
    passed_s: float,
    governing: Governing,
    used_s: float,
    batch_s: float,
) -> Seen:
    good = [answer for answer in answers if answer.good]
    p95_ms, p99_ms = p95_p99([1e3 * answer.took_s for answer in good])
    decided = max(1, governing.states.total())
    return Seen(
        requests=len(answers) + lost,
        errors=len(answers) - len(good) + lost,
        p95_ms=p95_ms,
        p99_ms=p99_ms,
        within_target_percent=within_percent(good, begin_s, target_ms),
        rps=len(good) / passed_s,
        allowed_cores=governing.allowed_core_s / passed_s,
        used_cores=used_s / passed_s,
        batch_cores=batch_s / passed_s,
        serving_cores=governing.serving_core_s / passed_s,
        states={f"{share:g}": count / decided for share, count in sorted(governing.states.items())},
    )


def within_percent(answers: Sequence[Answer], begin_s: float, target_ms: float) -> float | None:
    """Share of the seconds with answered requests whose p95 is within the target; None without any."""
    seconds: dict[int, list[float]] = defaultdict(list)
    for answer in answers:
        seconds[int(answer.due_s - begin_s)].append(1e3 * answer.took_s)
    if not seconds:
        return None
    return 100.0 * float(np.mean([np.percentile(times_ms, 95) <= target_ms for times_ms in seconds.values()]))


def p95_p99(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The percentiles; None without values."""
    if not values:
        return None, None
    p95, p99 = np.percentile(values, (95, 99))
    return float(p95), float(p99)


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_S)
    result = run(msgspec.json.decode(sys.stdin.buffer.read(), type=Task), Cgroups.of_this_machine())
    sys.stdout.buffer.write(msgspec.json.encode(result))
