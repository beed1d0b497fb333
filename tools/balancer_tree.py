"""The tree for servers without a monitor: `python tools/balancer_tree.py` adds it to the shipped model.

Its other trees stay as they are, since the recordings that they were trained on are not kept. It is trained on the
recordings of the tests, of which only the traffic is used. `slackwater train` makes this tree with the others.
`--score` writes nothing: it prints how well each half of the recordings is judged by a tree of the other half.
"""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import skops.io

from slackwater.detector.classify import tree
from slackwater.detector.recordings.recording import Recording, read
from slackwater.detector.train.balancer import seen_from_balancer
from slackwater.detector.train.learned import replay
from slackwater.detector.train.scores import Scores
from slackwater.detector.train.training import OUTSIDE, fit_outside

RECORDINGS = Path(__file__).resolve().parent.parent / "tests" / "recordings"
HALVES = 2


def halves_scores(recordings: Sequence[Recording], content: dict[str, Any]) -> Scores:
    """Scores of each half of the recordings, by a tree of the other. `content`: of the model, without this tree."""
    scores = Scores()
    for half in range(HALVES):
        rest = [recording for number, recording in enumerate(recordings) if number % HALVES != half]
        _, arrays = fit_outside(rest, content["trees"], content["coefficients"], lambda *_: None)
        model = tree.model_of("half", {**content["trees"], OUTSIDE: arrays}, content["coefficients"], {})
        for recording in recordings[half::HALVES]:
            part = replay(seen_from_balancer(recording), model)
            felt = [noise for noise in part.noises if noise.felt]
            missed = sum(noise.delay_s is None for noise in felt)
            print(
                f"{Path(recording.path).stem}: {missed} of {len(felt)} missed, {part.false_episodes} false in "
                f"{part.calm_node_hours:.3f} node-hours {dict(part.false_during)}, slow by itself"
                f" {dict(part.slow_during)}",
                flush=True,
            )
            scores.merge(part)
    return scores


def main() -> None:
    """Trains and writes the shipped model anew, or prints the scores."""
    recordings = [read(path) for path in sorted(RECORDINGS.rglob("*.parquet"))]
    data = tree.SHIPPED.read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        content = json.loads(archive.read(tree.PLAIN))
    metadata, trees = json.loads(content["metadata"]), content["trees"]
    trees.pop(OUTSIDE, None)
    if "--score" in sys.argv[1:]:
        summary = halves_scores(recordings, content).as_dict()
        for name in (
            "felt",
            "false_episodes",
            "false_during",
            "slow_episodes",
            "slow_during",
            "disturbances",
            "calm_node_hours",
        ):
            print(f"{name}: {json.dumps(summary[name])}")
        return
    classifiers = skops.io.loads(data, trusted=tree.REVIEWED)["classifiers"]
    classifiers[OUTSIDE], trees[OUTSIDE] = fit_outside(recordings, trees, content["coefficients"], lambda *_: None)
    metadata["balancer"] = [Path(recording.path).name for recording in recordings]
    tree.save(
        tree.SHIPPED,
        {"classifiers": classifiers, "trees": trees, "coefficients": content["coefficients"]},
        metadata,
    )


if __name__ == "__main__":
    main()
