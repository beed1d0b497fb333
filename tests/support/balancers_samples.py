"""A synthetic cluster as its balancer sees it, judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from slackwater.core.messages import Sample, Verdict
from slackwater.detector.judge import Judge
from slackwater.detector.recordings.recording import Recording
from slackwater.detector.train.balancer import seen_from_balancer
from tests.support.synthetic_cluster import Cluster

PATIENCE_S = 60.0


def outside(sample: Sample) -> Sample:
    return seen_from_balancer(Recording([sample], [], "")).samples[0]


def play(judge: Judge, cluster: Cluster, seconds: float, each: Callable[[float], None] | None = None) -> list[Verdict]:
    return [
        verdict
        for now_s, samples in cluster.run(seconds, each)
        for verdict in judge.tick(now_s, [outside(sample) for sample in samples])
    ]


def states(verdicts: list[Verdict], *nodes: str) -> Counter[str]:
    return Counter(verdict.state for verdict in verdicts if not nodes or verdict.node in nodes)


def seconds_until(judge: Judge, cluster: Cluster, node: str, state: str) -> float:
    begin_s = cluster.now_s
    while cluster.now_s - begin_s < PATIENCE_S:
        for verdict in play(judge, cluster, 0.2):
            if (verdict.node, verdict.state) == (node, state):
                return cluster.now_s - begin_s
    raise AssertionError(f"{node} is not {state} after {PATIENCE_S:g} s")
