"""Replays recordings through the whole detector and scores it, for `slackwater detector evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slackwater.detector.classify.tree import Model
from slackwater.detector.recordings.recording import STATES_OF_KINDS, Recording
from slackwater.detector.train.fit import compare_laws, mean_laws
from slackwater.detector.train.learned import Progress, learn, replay, track
from slackwater.detector.train.scores import Scores


def evaluate(recordings: Sequence[Recording], model: Model, progress: Progress) -> dict[str, Any]:
    """Scores of a model on recordings, and of the estimator's law, ready for JSON.

    The law is scored on each recording after a fit to all others. With a single recording it is not scored.
    """
    scores = Scores()
    parts = []
    for recording in track(recordings, "replaying", progress):
        scores.merge(replay(recording, model))
        parts.append(learn(recording))
    laws = [
        compare_laws([*parts[:number], *parts[number + 1 :]], [part])
        for number, part in enumerate(parts)
        if len(parts) > 1
    ]
    trained_on = model.metadata.get("data", [])
    kinds = {str(kind) for part in trained_on for kind in part["kinds"]}
    return {
        "model": model.name,
        "trained_on": sorted(kinds - STATES_OF_KINDS.keys()),
        "recordings": [
            {
                "file": Path(recording.path).name,
                "description": recording.description,
                "seconds": round(recording.seconds, 1),
            }
            for recording in recordings
        ],
        "node_hours": round(sum(recording.seconds * len(recording.nodes) for recording in recordings) / 3600, 4),
        **scores.as_dict(),
        "law": mean_laws(laws),
    }
