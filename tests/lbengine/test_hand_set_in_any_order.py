"""Whatever happens in whatever order: a weight that a person set stays, and what is left at the end is theirs or the
site's own."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from slackwater.core.config import ControllerSettings, LbengineSettings
from slackwater.core.control import Request
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import State
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.balancer import Balancer, Server, Snapshot
from slackwater.lbengine.engine import Engine
from slackwater.lbengine.restore import restore
from slackwater_lab.played_verdict import verdict
from tests.support.examples import examples

HOSTS = ("host1", "host2", "host3")
CONFIGURED, BY_HAND = 100, (41, 151)
"""A person's weights are none that a law or a ramp would set."""
POOL = HAProxyPool(name="web", backend="web", socket="/none", mode="act")
ACTIONS = st.one_of(
    st.tuples(st.just("hand"), st.sampled_from(HOSTS), st.sampled_from((*BY_HAND, CONFIGURED))),
    st.tuples(st.just("state"), st.sampled_from(HOSTS), st.sampled_from(("calm", "interference", "overload"))),
    st.tuples(st.sampled_from(("pause", "resume", "observe", "act", "crash", "stop", "reload")), st.none(), st.none()),
)


class Shown(Balancer):
    """HAProxy, as far as weights go."""

    def __init__(self) -> None:
        self.weights = dict.fromkeys(HOSTS, CONFIGURED)
        self.pid = 1

    def read(self) -> Snapshot:
        servers = tuple(Server(name=name, weight=w, configured=CONFIGURED) for name, w in self.weights.items())
        return Snapshot(balance="roundrobin", weights_mean="share", servers=servers, pid=self.pid, uptime_s=self.pid)

    def set_weights(self, weights: Mapping[str, int]) -> None:
        self.weights |= weights

    def reload(self) -> None:
        """All weights are those of the file again."""
        self.pid += 1
        self.weights = dict.fromkeys(HOSTS, CONFIGURED)


class World:
    def __init__(self, folder: Path, journal: Journal) -> None:
        self.folder, self.journal, self.balancer, self.now_s = folder, journal, Shown(), 1000.0
        self.states: dict[str, State] = dict.fromkeys(HOSTS, "calm")
        self.theirs: dict[str, int] = {}
        self.start()

    def start(self) -> None:
        self.engine = Engine(POOL, LbengineSettings(), self.folder, self.journal, balancer=self.balancer)
        self.cycles()

    def cycles(self) -> None:
        for _ in range(3):
            self.now_s += 0.2
            for host, state in self.states.items():
                self.engine.inbox.put(verdict(host, state), self.now_s)
            self.engine.cycle(self.now_s)
            kept = {host: self.balancer.weights[host] for host in self.theirs}
            assert kept == self.theirs, "a person's weight is theirs"

    def do(self, event: str, host: str | None, value: object) -> None:
        if event == "hand":
            assert isinstance(host, str)
            assert isinstance(value, int)
            self.balancer.weights[host] = value
            self.theirs = {name: weight for name, weight in self.theirs.items() if name != host}
            self.theirs |= {host: value} if value != CONFIGURED else {}
        elif event == "state":
            assert isinstance(host, str)
            self.states[host] = value  # type: ignore[assignment]
        elif event == "reload":
            self.balancer.reload()
            self.theirs = {}
        elif event == "crash":
            self.start()
        elif event == "stop":
            self.engine.stop(self.now_s, "it stops")
            self.start()
        elif event in ("observe", "act"):
            self.engine.command(Request(action="mode", by="alice", mode=event), self.now_s)  # type: ignore[arg-type]
        else:
            self.engine.command(Request(action=event, by="alice"), self.now_s)  # type: ignore[arg-type]
        self.cycles()


@examples(40, 200)
@given(st.lists(ACTIONS, max_size=12), st.booleans())
def test_a_persons_weight_stays_and_a_stop_or_a_restore_leaves_theirs_or_the_configured_one(
    actions: list[tuple[str, str | None, object]], by_restore: bool
) -> None:
    with tempfile.TemporaryDirectory() as name, Journal.open(journal_path(name)) as journal:
        world = World(Path(name), journal)
        for action in actions:
            world.do(*action)
        if by_restore:
            settings = ControllerSettings(pool=[POOL], state_dir=name)
            restore(settings, POOL, "alice", "by hand", balancer=world.balancer)
        else:
            world.engine.stop(world.now_s, "it stops")
        assert world.balancer.weights == dict.fromkeys(HOSTS, CONFIGURED) | world.theirs
