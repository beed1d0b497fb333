"""A new tree for one kind of node in the shipped model, whose other trees stay as they are.

`python tools/add_tree.py machine RECORDINGS` trains the tree for virtual machines, `... balancer` the one for servers
without a monitor: on the recordings of the tests where none are named, of which only the traffic is used. The
recordings that the other trees were trained on are not kept; `slackwater train` makes all trees at once.
`--calm` keeps the tree, and takes from recordings of calm how high its sums rise there, from which the threshold
follows. `--score` writes nothing: it prints how well each half of the recordings is judged by a tree of the other half.
"""

from __future__ import annotations

import argparse
import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import skops.io

from slackwater.detector.classify import tree
from slackwater.detector.recordings.recording import Recording, read
from slackwater.detector.train import levels
from slackwater.detector.train.balancer import seen_from_balancer
from slackwater.detector.train.learned import replay, show
from slackwater.detector.train.scores import Scores
from slackwater.detector.train.training import OUTSIDE, fit_kind

RECORDINGS = Path(__file__).resolve().parent.parent / "tests" / "recordings"
HALVES = 2
SCORES = (
    "felt",
    "false_episodes",
    "false_during",
    "slow_episodes",
    "slow_during",
    "disturbances",
    "calm_node_hours",
)


def halves_scores(recordings: Sequence[Recording], kind: str, content: dict[str, Any]) -> Scores:
    """Scores of each half of the recordings, by a tree of the other. `content`: of the model, without this tree."""
    scores = Scores()
    for half in range(HALVES):
        rest = [recording for number, recording in enumerate(recordings) if number % HALVES != half]
        _, arrays = fit_kind(rest, kind, content["trees"], content["coefficients"], lambda *_: None)
        model = tree.model_of("half", {**content["trees"], kind: arrays}, content["coefficients"], {})
        for recording in recordings[half::HALVES]:
            part = replay(seen_from_balancer(recording) if kind == OUTSIDE else recording, model)
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


def with_calm(recordings: Sequence[Recording], kind: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays of a tree of the shipped model, with how high its sums rise in these recordings of calm."""
    seen = show(recordings, tree.load(tree.SHIPPED), lambda *_: None)
    sums = levels.calm_sums(seen, tree.Tree.of(arrays), tree.KINDS.index(kind))
    print(f"{sums.days:.2f} node-days; the highest sums: {', '.join(f'{peak:.1f}' for peak in sums.peaks)}")
    return {**arrays, "calm": sums.as_dict()}


def asked() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("machine", OUTSIDE))
    parser.add_argument("recordings", nargs="*", type=Path, help="files, or folders of them")
    parser.add_argument("--calm", action="store_true", help="keep the tree, take its threshold from these recordings")
    parser.add_argument("--score", action="store_true", help="print the scores of halves, write nothing")
    return parser.parse_args()


def main() -> None:
    """Trains and writes the shipped model anew, or prints the scores."""
    question = asked()
    kind: str = question.kind
    files = [
        file
        for path in question.recordings or [RECORDINGS]
        for file in (sorted(path.rglob("*.parquet")) if path.is_dir() else [path])
    ]
    recordings = [read(file) for file in files]
    data = tree.SHIPPED.read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        content = json.loads(archive.read(tree.PLAIN))
    metadata, trees = json.loads(content["metadata"]), content["trees"]
    shipped = trees.pop(kind, None)
    if question.score:
        summary = halves_scores(recordings, kind, content).as_dict()
        for name in SCORES:
            print(f"{name}: {json.dumps(summary[name])}")
        return
    classifiers = skops.io.loads(data, trusted=tree.REVIEWED)["classifiers"]
    if question.calm:
        trees[kind] = with_calm(recordings, kind, shipped)
        metadata[f"{kind}, calm"] = [Path(recording.path).name for recording in recordings]
    else:
        classifiers[kind], trees[kind] = fit_kind(recordings, kind, trees, content["coefficients"], lambda *_: None)
        metadata[kind] = [Path(recording.path).name for recording in recordings]
    tree.save(
        tree.SHIPPED,
        {"classifiers": classifiers, "trees": trees, "coefficients": content["coefficients"]},
        metadata,
    )


if __name__ == "__main__":
    main()
