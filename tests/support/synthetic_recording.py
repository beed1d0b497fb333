"""Recordings of the made-up cluster. For tests only."""

from __future__ import annotations

from pathlib import Path

from slackwater.detector.recordings.recording import Label, write
from tests.support.synthetic_cluster import START_UNIX_S, Cluster, swing


def make(
    path: Path,
    seed: int,
    *,
    noise: float = 0.9,
    seconds: float = 40.0,
    rps_when_loud: float | None = None,
    kinds: tuple[str, str] = ("llcprobe", "llcprobe"),
) -> None:
    """A recording with two noises on two hosts, under swinging load."""
    cluster = Cluster(seed=seed)
    labels, samples = [], []
    for node, kind, begin_s in (("host1", kinds[0], 12.0), ("host2", kinds[1], 26.0)):
        labels.append(Label(node, kind, noise, START_UNIX_S + begin_s, START_UNIX_S + begin_s + 7.0))
    load = swing(cluster, 0.2, 0.6, 15.0)

    def each(now_s: float) -> None:
        load(now_s)
        for label in labels:
            loud = label.start_unix_s <= START_UNIX_S + now_s < label.end_unix_s
            cluster.hosts[label.node].neighbour = noise if loud else 0.0
            if loud and rps_when_loud is not None:
                cluster.hosts[label.node].rps = rps_when_loud

    for _, batch in cluster.run(seconds, each):
        samples += batch
    write(path, samples, labels if noise else [], f"synthetic, seed {seed}")
