"""What a run leaves behind, in Parquet: every request, every weight, and what is needed to make all figures again.

`NNNN.parquet`: a request a row (`due_s` from the run's begin, `seconds`, `status`); the file's metadata has the run,
its marks and what was lost. `NNNN-weights.parquet`: the balancer 20 times a second (`at_s`, `server`, `weight`,
`requests`). `NNNN-verdicts.parquet`: what the detector judged, where the policy had one (`at_s`, `server`, `state`).
`NNNN-samples.parquet`: the monitors' Samples where the policy had any, labelled, as `slackwater record` writes them.
The first is written last: a run is there when it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from slackwater.core.files import replacing
from slackwater.detector.features.columns import Floats, Ints

KEY = b"slackwater-compare"
RUNS = "runs"


class ExperimentError(Exception):
    """An experiment that cannot be run or read; the text says which file or name, and what was expected."""


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run: a scenario under a policy."""

    number: int
    round: int
    scenario: str
    policy: str


@dataclass(frozen=True)
class Marks:
    """Instants of a run in seconds from its begin."""

    calm_s: float
    on_s: float
    """The first neighbour is loud."""
    off_s: float
    """The last one has ended."""
    end_s: float


@dataclass
class Recorded:
    """One run. Arrays of requests, and of looks at the balancer."""

    run: Run
    marks: Marks
    lost: int
    """Requests without any response."""
    due_s: Floats
    seconds: Floats
    status: Ints
    weights: list[tuple[float, str, int, int]] = field(default_factory=list)
    """(at_s, server, weight, requests so far)"""
    verdicts: list[tuple[float, str, str]] | None = None
    """(at_s, server, state), in order of time; None: there was no detector."""
    facts: dict[str, Any] = field(default_factory=dict)


LOOKS = ("at_s", "server", "weight", "requests")
JUDGED = ("at_s", "server", "state")


def path_of(folder: Path, number: int, table: str = "") -> Path:
    """The file of a run's requests, or of its `weights`, `verdicts` or `samples`."""
    return folder / RUNS / (f"{number:04d}-{table}.parquet" if table else f"{number:04d}.parquet")


def write(folder: Path, recorded: Recorded) -> None:
    """Writes a run. Raises OSError."""
    number = recorded.run.number
    path = path_of(folder, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path_of(folder, number, "weights"), _columns(LOOKS, recorded.weights))
    if recorded.verdicts is not None:
        _write(path_of(folder, number, "verdicts"), _columns(JUDGED, recorded.verdicts))
    about = {
        "run": msgspec.to_builtins(recorded.run),
        "marks": asdict(recorded.marks),
        "lost": recorded.lost,
        "facts": recorded.facts,
    }
    table = pa.table({"due_s": recorded.due_s, "seconds": recorded.seconds, "status": recorded.status})
    _write(path, table.replace_schema_metadata({KEY: json.dumps(about).encode()}))


def _columns(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Any:
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return pa.table(dict(zip(names, map(list, columns), strict=True)))


def _write(path: Path, table: Any) -> None:
    with replacing(path) as draft:
        pq.write_table(table, draft, compression="zstd")
