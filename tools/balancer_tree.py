"""Adds the tree for servers without a monitor to the shipped model: `python tools/balancer_tree.py`.

Its other trees stay as they are, since the recordings that they were trained on are not kept. It is trained on the
recordings of the tests, of which only the traffic is used. `slackwater train` makes this tree with the others.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import skops.io

from slackwater.detector.classify import tree
from slackwater.detector.recordings.recording import read
from slackwater.detector.train.training import OUTSIDE, fit_outside

RECORDINGS = Path(__file__).resolve().parent.parent / "tests" / "recordings"


def main() -> None:
    """Trains, and writes the shipped model anew."""
    recordings = [read(path) for path in sorted(RECORDINGS.rglob("*.parquet"))]
    data = tree.SHIPPED.read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        content = json.loads(archive.read(tree.PLAIN))
    classifiers = skops.io.loads(data, trusted=tree.REVIEWED)["classifiers"]
    metadata, trees = json.loads(content["metadata"]), content["trees"]
    trees.pop(OUTSIDE, None)
    fitted = fit_outside(recordings, trees, content["coefficients"], lambda *_: None)
    classifiers[OUTSIDE], trees[OUTSIDE] = fitted
    metadata["balancer"] = [Path(recording.path).name for recording in recordings]
    tree.save(
        tree.SHIPPED,
        {"classifiers": classifiers, "trees": trees, "coefficients": content["coefficients"]},
        metadata,
    )


if __name__ == "__main__":
    main()
