"""A server without a monitor that answers nothing while requests wait or are refused is slow; without any it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest

from slackwater.core.messages import Sample, Traffic, Verdict
from slackwater.detector.features.unanswered import LEAST_S, MISSING, SEVERAL, Unanswered
from slackwater.detector.judge import Judge
from tests.support.balancers_samples import outside, play, states
from tests.support.judges import new_judge
from tests.support.seeds import seeds
from tests.support.synthetic_cluster import Cluster

LOOK_S = 0.2


def hung(sample: Sample, waited_s: float) -> None:
    """Its requests wait, and packets show since when."""
    sample.traffic = Traffic(rps=0.0, in_flight=12, oldest_unanswered_ms=1000.0 * waited_s, errors_per_s=0.0)


def refusing(sample: Sample, _waited_s: float) -> None:
    sample.traffic = Traffic(rps=0.0, in_flight=0, oldest_unanswered_ms=0.0, errors_per_s=80.0)


def hung_by_counters(sample: Sample, _waited_s: float) -> None:
    sample.traffic = Traffic(rps=0.0, in_flight=40, errors_per_s=0.0)


WAYS: dict[str, Callable[[Sample, float], None]] = {
    "hung": hung,
    "refusing": refusing,
    "hung by counters": hung_by_counters,
}
WORDS = {"hung": "slow", "refusing": "errors", "hung by counters": "slow"}


def played(
    judge: Judge, cluster: Cluster, seconds: float, way: str, *nodes: str, asked: bool = True
) -> Iterator[Verdict]:
    """The Verdicts while these nodes answer nothing; `asked`: they get requests."""
    begin_s = cluster.now_s
    for now_s, samples in cluster.run(seconds):
        for sample in map(outside, samples):
            if sample.node in nodes:
                WAYS[way](sample, now_s - begin_s)
                if not asked:
                    sample.traffic = Traffic(rps=0.0, in_flight=0, oldest_unanswered_ms=0.0, errors_per_s=0.0)
            elif way == "hung by counters" and sample.traffic is not None:
                sample.traffic = msgspec.structs.replace(sample.traffic, rt_p50_ms=None, rt_p95_ms=None, rt_p99_ms=None)
            yield from judge.tick(now_s, [sample])


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_answers_nothing_while_requests_wait_is_slow_for_as_long_as_that_lasts(way: str) -> None:
    judge, cluster = new_judge(), Cluster(seed=3)
    if way == "hung by counters":
        list(played(judge, cluster, 20.0, way))
    else:
        play(judge, cluster, 20.0)
    begun = [verdict for verdict in played(judge, cluster, LEAST_S + 2.0, way, "host1") if verdict.node == "host1"]
    early = states([v for v in begun if v.time_unix_s - begun[0].time_unix_s < LEAST_S - 1.0])
    assert not {"slow", "errors"} & early.keys()
    assert begun[-1].state == WORDS[way]
    why = "100% of its last requests failed, and 0% of its peers'" if way == "refusing" else "nothing was answered"
    assert any(why in line for line in begun[-1].path)
    assert begun[-1].severity > 0.9
    # Longer than after the last requests an episode ends; what waits was sent as a trial now and then.
    for turn in range(8):
        drained = list(played(judge, cluster, 45.0, way, "host1", asked=False))
        tried = list(played(judge, cluster, 5.0, way, "host1"))
        assert set(states([*drained, *tried], "host1")) == {WORDS[way]}, turn
    assert set(states(list(played(judge, cluster, 5.0, way, "host1")), "host2", "host3")) == {"calm"}


@pytest.mark.parametrize("way", ["hung", "refusing"])
def test_a_server_that_answers_again_is_calm_soon(way: str) -> None:
    judge, cluster = new_judge(), Cluster(seed=3)
    play(judge, cluster, 20.0)
    assert WORDS[way] in states(list(played(judge, cluster, LEAST_S + 2.0, way, "host1")), "host1")
    assert states(play(judge, cluster, 15.0)[-10:], "host1").keys() == {"calm"}


@pytest.mark.parametrize("way", ["hung", "refusing"])
def test_a_restart_is_over_before_that(way: str) -> None:
    judge, cluster = new_judge(), Cluster(seed=3)
    play(judge, cluster, 20.0)
    restart = list(played(judge, cluster, 2.0, way, "host1"))
    assert not {"slow", "errors"} & states([*restart, *play(judge, cluster, 10.0)]).keys()


@pytest.mark.parametrize("seed", seeds(2))
def test_servers_that_wait_for_the_same_database_are_all_slow(seed: int) -> None:
    judge, cluster = new_judge(), Cluster(seed=seed)
    play(judge, cluster, 20.0)
    verdicts = list(played(judge, cluster, 10.0, "hung", *cluster.names))
    assert "slow" not in states(verdicts)
    assert set(states(verdicts[-3:])) == {"all_slow"}


def one_slot(*looks: tuple[float, float, float], in_episode: bool = False) -> float:
    """The wait after these looks, (answers, in flight, oldest in s) each, after 20 s of 50 requests/s."""
    unanswered = Unanswered()
    unanswered.resize(1)
    slot = np.array([0])
    unanswered.note_episodes(slot, np.array([in_episode]))
    for answers, in_flight, oldest_s in [*[(10.0, 1.0, 0.0)] * 100, *looks]:
        (waited_s,) = unanswered.update(
            *(slot, np.array([answers / LOOK_S]), np.array([LOOK_S])),
            in_flight=np.array([in_flight]),
            oldest_ms=np.array([1000.0 * oldest_s]),
            failed=np.array([0.0]),
        )
    return float(waited_s)


def test_streams_that_have_begun_and_a_single_request_say_nothing() -> None:
    assert one_slot(*[(0.0, SEVERAL, 0.2 * look) for look in range(30)]) > LEAST_S
    assert one_slot(*[(0.0, 50.0, 0.0)] * 100) == 0.0, "each has an answer that goes on, as events that are streamed"
    assert one_slot(*[(0.0, SEVERAL - 1.0, 9.0)] * 100) == 0.0, "of one client"
    assert one_slot(*[(0.0, 9.0, 9.0)] * 100, (1.0, 9.0, 9.0)) == 0.0, "it answers"


def test_a_quiet_server_may_answer_nothing_for_long() -> None:
    unanswered, slot = Unanswered(), np.array([0])
    unanswered.resize(1)
    for look in range(400):
        answers = float(look < 350 and look % 50 == 0)
        (waited_s,) = unanswered.update(
            *(slot, np.array([answers / LOOK_S]), np.array([LOOK_S])),
            in_flight=np.array([SEVERAL]),
            oldest_ms=np.array([1000.0 * LOOK_S * (look - 300) if look > 300 else 0.0]),
            failed=np.array([0.0]),
        )
    assert waited_s == 0.0, f"fewer than {MISSING:g} answers are missing"
