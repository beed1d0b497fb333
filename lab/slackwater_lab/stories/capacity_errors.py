"""How far the estimated capacities are from the measured ones, by playing recorded states to the detector."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from slackwater.core.config import DetectorSettings
from slackwater.core.messages import Verdict
from slackwater.detector.classify.tree import Model
from slackwater.detector.judge import Judge
from slackwater.detector.recordings.recording import Recording, RecordingError, read
from slackwater.detector.train.replay import batches
from slackwater_lab.stories.capacity import State

COLUMNS = ("load", "taken", "measured", "estimated", "lost", "estimated lost", "error", "within one s.e.")


def load_states(path: Path) -> tuple[Recording, list[State]]:
    """A recording of `slackwater lab capacity` and the states of the JSON beside it. Raises RecordingError."""
    beside = path.with_suffix(".json")
    try:
        states = msgspec.convert(json.loads(beside.read_text())["states"], list[State])
    except (OSError, ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise RecordingError(
            f"{beside}: expected the states that `slackwater lab capacity --out` wrote: {error}"
        ) from None
    return read(path), states


def compare(recording: Recording, states: Sequence[State], model: Model) -> list[dict[str, Any]]:
    """Each state with the last Verdict in it: what was estimated there, and how far that is from what was measured.

    Shares of the calm capacity lost are compared where a neighbour was; capacities are compared relatively, and count
    as within one standard error by the standard errors of both.
    """
    judge = Judge.of(recording.samples[0].pool, DetectorSettings(), model)
    last: dict[int, Verdict] = {}
    for now_s, samples in batches(recording):
        for verdict in judge.tick(now_s, samples):
            for number, state in enumerate(states):
                if verdict.node == state.host and state.begin_unix_s <= verdict.time_unix_s <= state.end_unix_s:
                    last[number] = verdict
    return [_row(state, last.get(number)) for number, state in enumerate(states)]


def _row(state: State, verdict: Verdict | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "load": state.load,
        "taken": round(state.taken, 3),
        "measured_rps": round(state.truth_rps, 1),
        "lost": round(state.lost, 3),
    }
    if verdict is None or verdict.capacity_rps is None:
        return row
    row |= {
        "state": verdict.state,
        "estimated_rps": round(verdict.capacity_rps, 1),
        "relative_error": round(verdict.capacity_rps / state.truth_rps - 1.0, 3) if state.truth_rps else None,
    }
    if state.taken_wanted:
        row |= {"estimated_lost": round(verdict.severity, 3), "lost_error": round(verdict.severity - state.lost, 3)}
    if verdict.capacity_stderr_rps is not None:
        stderr_rps = float(np.hypot(verdict.capacity_stderr_rps, state.truth_stderr_rps))
        row["stderr_rps"] = round(verdict.capacity_stderr_rps, 1)
        row["within"] = abs(verdict.capacity_rps - state.truth_rps) <= stderr_rps
    return row


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median and 90th percentile of the errors, and how many lie within one standard error (0.68 is right)."""
    lost = [abs(row["lost_error"]) for row in rows if "lost_error" in row]
    calm = [
        abs(row["relative_error"]) for row in rows if "lost_error" not in row and row.get("relative_error") is not None
    ]
    within = [row["within"] for row in rows if "within" in row]
    return {
        "states": len(rows),
        "without_estimate": sum("estimated_rps" not in row for row in rows),
        "lost_error_median": _quantile(lost, 0.5),
        "lost_error_p90": _quantile(lost, 0.9),
        "calm_error_median": _quantile(calm, 0.5),
        "calm_error_worst": _quantile(calm, 1.0),
        "within_one_standard_error": round(float(np.mean(within)), 3) if within else None,
    }


def _quantile(values: Sequence[float], share: float) -> float | None:
    return round(float(np.quantile(values, share)), 3) if values else None


def table_rows(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """`COLUMNS` of each state as words."""

    def cell(row: dict[str, Any], key: str, form: str) -> str:
        value = row.get(key)
        return "-" if value is None else format(value, form)

    return [
        (
            cell(row, "load", ".0%"),
            cell(row, "taken", ".0%"),
            cell(row, "measured_rps", ".0f"),
            f"{cell(row, 'estimated_rps', '.0f')} ± {cell(row, 'stderr_rps', '.0f')}",
            cell(row, "lost", ".2f"),
            cell(row, "estimated_lost", ".2f"),
            cell(row, "lost_error" if "lost_error" in row else "relative_error", "+.2f"),
            {True: "yes", False: "no", None: "-"}[row.get("within")],
        )
        for row in rows
    ]
