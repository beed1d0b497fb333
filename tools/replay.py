"""Replays the recordings through detector and lbengine and prints a digest of every Verdict and every weight.

A change that should not alter behaviour prints the same lines before and after it: `python tools/replay.py`.
Sentences are left out, so that a better wording changes nothing here.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from pathlib import Path

import msgspec

from slackwater.core.config import LbengineSettings
from slackwater.core.messages import Verdict
from slackwater.detector.recordings.recording import Recording, read
from slackwater.detector.train.replay import batches
from slackwater_lab.sim.control import Balancing, Detecting, pool_settings
from slackwater_lab.sim.signals import POOL

RECORDINGS = Path(__file__).resolve().parent.parent / "tests" / "recordings"
SENTENCES = {"path"}


def numbers(verdict: Verdict) -> bytes:
    """A Verdict without its sentences, floats to nine digits: processors differ in the last ones."""
    fields = msgspec.to_builtins(verdict)
    kept = {key: round(value, 9) if isinstance(value, float) else value for key, value in fields.items()}
    return msgspec.json.encode({key: value for key, value in kept.items() if key not in SENTENCES}, order="sorted")


def replay(recording: Recording, balance: str, law: str) -> tuple[int, str, int, str]:
    """(Verdicts, their digest, changes of a weight, their digest) of one recording under one algorithm and law."""
    detecting = Detecting()
    engine = Balancing(recording.nodes, balance, pool_settings(law), LbengineSettings())
    requests: dict[str, float] = defaultdict(float)
    of_verdicts, of_weights = hashlib.sha256(), hashlib.sha256()
    judged = moved = 0
    for now_s, samples in batches(recording):
        for verdict in detecting.tick(now_s, [msgspec.structs.replace(sample, pool=POOL) for sample in samples]):
            of_verdicts.update(numbers(verdict))
            judged += 1
        for sample in samples:
            if sample.traffic is not None and sample.traffic.rps is not None:
                requests[sample.node] += sample.traffic.rps * sample.period_s
        counts = [int(requests[node]) for node in recording.nodes]
        changed = engine.cycle(now_s, detecting.latest, counts, [0] * len(counts))
        for server, weight in sorted(changed.items()):
            of_weights.update(f"{now_s:.2f} {server} {weight}\n".encode())
            moved += 1
    return judged, of_verdicts.hexdigest()[:16], moved, of_weights.hexdigest()[:16]


def main() -> None:
    """Prints a line for each recording, algorithm and law."""
    for path in sorted(RECORDINGS.glob("*.parquet")):
        recording = read(path)
        for balance, law in (("roundrobin", "optimal"), ("leastconn", "optimal"), ("roundrobin", "ice")):
            judged, verdicts, moved, weights = replay(recording, balance, law)
            print(
                f"{path.stem:20} {balance:10} {law:8} {judged} Verdicts {verdicts}  {moved} weights {weights}",
                flush=True,
            )


if __name__ == "__main__":
    main()
