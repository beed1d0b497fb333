"""The governor of one pool over played nodes, with a clock of its own: no waiting, no processes."""

from __future__ import annotations

from dataclasses import dataclass, field

from slackwater.core.config import BATCH_RUNNING, GovernorSettings
from slackwater.core.messages import (
    WSENGINE,
    Change,
    ChangeCause,
    Cycle,
    Governed,
    Knobs,
    KnobState,
    Message,
    Mode,
    Sample,
    Verdict,
)
from slackwater.core.messages.sample import Cpu, Traffic
from slackwater.governor.pool import GovernedPool
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.orders.access import NotNow
from slackwater.orders.knobs import RELEASE, Value

TARGET_MS = 100.0
LEASE_S = 30.0
CORES, QUOTA, FREQUENCY, POLICY = "cpu.cores", "cpu.quota", "cpu.frequency", "cpu.policy"
FOUR_CORES = {CORES: (4, 1, 4), QUOTA: (400, 20, 400)}
"""Knob -> the value without us, the lowest and the highest that Orders may set."""
WITHOUT_US = {POLICY: "off", BATCH_RUNNING: "on"}
"""The values without us of the knobs whose values are words."""
PERIOD_S = 0.2


@dataclass
class PlayedNode:
    """A node with a wsengine: its p95 follows from its work and what it has."""

    name: str = "web1"
    knobs: dict[str, tuple[int, int, int]] = field(default_factory=lambda: dict(FOUR_CORES))
    busy_cores: float = 0.8
    base_ms: float = 20.0
    by: str = "governor"
    stops_batch: bool = False
    """Its wsengine can let batch jobs stand still."""
    policies: list[str] = field(default_factory=list)
    """Those that may run on it."""
    set: dict[str, tuple[Value, str, float]] = field(default_factory=dict)
    """Knob -> its value, the Order, and when its lease ends."""
    refuses: bool = False
    deaf: bool = False
    """Orders do not reach it."""
    seq: int = 0
    answers: bool = True
    """Whether requests are answered; if not, nobody asks, or nobody is answered."""
    lost_s: float | None = None
    """A request that was never seen answered waits for so long."""

    def value(self, knob: str) -> Value:
        if knob in self.set:
            return self.set[knob][0]
        return WITHOUT_US[knob] if knob in WITHOUT_US else self.knobs[knob][0]

    @property
    def capacity_cores(self) -> float:
        cores = float(self.value(CORES)) if CORES in self.knobs else 4.0
        return min(cores, float(self.value(QUOTA)) / 100.0) if QUOTA in self.knobs else cores

    def sample(self) -> Sample:
        self.seq += 1
        used = min(self.busy_cores, self.capacity_cores)
        full = used / self.capacity_cores
        p95_ms = self.base_ms / max(0.02, 1.0 - full)
        return Sample(
            v=1,
            node=self.name,
            pool="web",
            time_unix_s=1e9 + self.seq,
            boot_id="boot",
            seq=self.seq,
            period_s=PERIOD_S,
            cpu=Cpu("cgroup", utilisation=full, cores=self.capacity_cores),
            traffic=self._traffic(p95_ms),
        )

    def _traffic(self, p95_ms: float) -> Traffic:
        oldest_ms = 5.0
        if self.lost_s is not None:
            self.lost_s += PERIOD_S
            oldest_ms = 1000.0 * self.lost_s
        if not self.answers:
            return Traffic(rps=0.0, oldest_unanswered_ms=oldest_ms)
        return Traffic(rps=100.0 * self.busy_cores, rt_p95_ms=p95_ms, rt_p99_ms=p95_ms, oldest_unanswered_ms=oldest_ms)

    def report(self, now_s: float) -> Knobs:
        states = []
        for knob, (own, lowest, highest) in self.knobs.items():
            value, order, until_s = self.set.get(knob, (own, "", now_s))
            by = self.by if order else ""
            state = KnobState(knob, value, own, lowest, highest, order=order, by=by, left_s=until_s - now_s)
            states.append(state)
        for knob, words in ((POLICY, self.policies), (BATCH_RUNNING, ["on", "off"] if self.stops_batch else [])):
            if words:
                without = WITHOUT_US[knob]
                value, order, _ = self.set.get(knob, (without, "", now_s))
                by = self.by if order else ""
                states.append(KnobState(knob, value, without, words=words, order=order, by=by))
        return Knobs(1, self.name, "web", 1e9 + now_s, "any", states)


class Played:
    """One pool of one node; `run` lets time pass."""

    def __init__(
        self, settings: GovernorSettings | None = None, node: PlayedNode | None = None, mode: Mode = "act"
    ) -> None:
        self.settings = settings or GovernorSettings(mode="act", lease_s=LEASE_S)
        self.node = node or PlayedNode()
        self.now_s = 1000.0
        self.orders: list[tuple[float, str, Value]] = []
        self.causes: list[ChangeCause] = []
        self.reasons: list[str] = []
        self.notes: list[tuple[str, Value | None, Value | None]] = []
        self.published: list[Governed] = []
        self.state: str | None = "calm"
        """State of the Verdicts; None: there are none."""
        self.paused = self.silent = self.blind = False
        """`silent`: no Cycles. `blind`: no Samples."""
        self.refusal = ""
        self._sent: dict[str, float] = {}
        """Id of each Order of this run, and when it was sent."""
        self.mode: Mode = "act"
        """Mode of the Cycles."""
        self.begin(mode)

    def begin(self, mode: Mode = "act") -> None:
        """A governor that knows nothing, as after a start."""
        pool = HAProxyPool(name="web", backend="web", socket="/s", mode=mode, target_p95_ms=TARGET_MS)
        self._sent = {}
        clocks = (lambda: self.now_s), (lambda: 1e9 + self.now_s)
        self.pool = GovernedPool(pool, self.settings, self, *clocks)  # type: ignore[arg-type]

    # --- what the governor needs

    async def order(self, node: str, knob: str, value: Value, why: str, cause: ChangeCause) -> str:
        if self.refusal:
            raise NotNow(self.refusal)
        assert node == self.node.name
        id_ = f"o{len(self.orders)}"
        self._sent[id_] = self.now_s
        self.orders.append((self.now_s, knob, value))
        self.causes.append(cause)
        self.reasons.append(why)
        before = self.node.value(knob)
        if self.node.deaf:
            return id_
        if value == RELEASE:
            self.node.set.pop(knob, None)
            self._say(knob, before, self.node.value(knob), "given_back", id_)
        elif self.node.refuses:
            self._say(knob, before, value, "refused", id_, applied=False)
        else:
            if knob not in WITHOUT_US:
                assert isinstance(value, int)
                assert self.node.knobs[knob][1] <= value <= self.node.knobs[knob][2], "within the node's own limits"
            self.node.set[knob] = value, id_, self.now_s + self.settings.lease_s
            if before != value:
                self._say(knob, before, value, "ordered", id_)
        return id_

    async def note(
        self, node: str, what: str, before: Value | None, after: Value | None, why: str, cause: ChangeCause
    ) -> None:
        assert (node, cause) == (self.node.name, "governor")
        assert why
        self.notes.append((what, before, after))

    async def publish(self, message: Message) -> None:
        assert isinstance(message, Governed)
        self.published.append(message)

    def sent_s(self, order: str) -> float | None:
        return self._sent.get(order)

    # --- what happens

    def _say(
        self, knob: str, before: Value, after: Value, cause: ChangeCause, follows: str = "", applied: bool = True
    ) -> None:
        id_ = f"c{self.now_s}{knob}{cause}"
        why = "a test"
        change = Change(1, id_, "web", 1e9, knob, self.node.name, before, after, why, WSENGINE, applied, cause=cause)
        change.follows = follows
        self._later = [*getattr(self, "_later", []), change]

    def take_away(self, knob: str, cause: ChangeCause) -> None:
        """The node puts a knob back by itself."""
        value = self.node.set.pop(knob)[0]
        self._say(knob, value, self.node.value(knob), cause)

    async def run(self, seconds: float, governed: bool = True) -> None:
        """`governed`: else the controller is dead, and only the node lives on."""
        until_s = self.now_s + seconds
        ticks = 0
        while self.now_s < until_s - 1e-9:
            self.now_s += PERIOD_S
            ticks += 1
            for knob in [knob for knob, (_, _, ends_s) in self.node.set.items() if ends_s <= self.now_s]:
                self.take_away(knob, "lease_ended")
            if not governed:
                self._later = []
                continue
            if not self.silent:
                self.pool.see(Cycle(1, "web", 1e9, self.mode, self.paused, "roundrobin", "optimal", "nothing", []))
            later, self._later = getattr(self, "_later", []), []
            for change in later:
                self.pool.see(change)
            if ticks % 5 == 1:
                self.pool.see(self.node.report(self.now_s))
            if self.state is not None:
                since_s = 0.0
                self.pool.see(
                    Verdict(1, self.node.name, "web", 1e9, self.state, since_s, 0.5, ["said"], "m")  # type: ignore[arg-type]
                )
            if not self.blind:
                self.pool.see(self.node.sample())
            await self.pool.step()
