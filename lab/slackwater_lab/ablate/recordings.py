"""What each mechanism of the detector brings: recordings judged with one after the other off, and scored."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from slackwater.core.messages import Verdict
from slackwater.detector.classify.tree import Model
from slackwater.detector.recordings.recording import Recording
from slackwater.detector.recordings.recording import read as read_recording
from slackwater.detector.train import scores
from slackwater.detector.train.learned import judged
from slackwater_lab import cells
from slackwater_lab.ablate.data import digest_of
from slackwater_lab.ablate.detector_mechanisms import DETECTOR
from slackwater_lab.ablate.mechanisms import EVERYTHING
from slackwater_lab.ablate.play import cpu_s
from slackwater_lab.ablate.seams import lines_of, off
from slackwater_lab.compare.statistics import Estimate, ratio

FORMAT = 1
CODE = ("detector", "lab/slackwater_lab/ablate/detector_mechanisms.py", "lab/slackwater_lab/ablate/recordings.py")


class Judged(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A recording that was judged with one mechanism off."""

    v: int = FORMAT
    code: str
    commit: str | None
    machine: str
    recording: str
    off: str
    """Name of a mechanism, or `everything`."""
    cpu_s: float
    delays_s: list[float | None]
    """Seconds from the begin of each noise that users felt until it was detected; None where it was missed."""
    unfelt_found: int
    again: int
    """Episodes that began again beside a noise in which one had ended."""
    false_episodes: int
    calm_node_hours: float
    backs_s: list[float]
    """Seconds from the end of each noise until the episode beside it ended."""
    verdicts: int
    """Number of Verdicts that state a probability and count."""
    squares: float
    """Sum of the squares of stated probability less truth."""


def judge(path: Path, name: str, model: Model, code: str, commit: str | None, machine: str) -> Judged:
    """Judges and scores a recording. Raises RecordingError."""
    began_s, recording = cpu_s(), read_recording(path)
    with off(() if name == EVERYTHING else DETECTOR[name].seams):
        verdicts = judged(recording, model)
    score = scores.score(recording, verdicts)
    return Judged(
        code=code,
        commit=commit,
        machine=machine,
        recording=path.stem,
        off=name,
        cpu_s=round(cpu_s() - began_s, 1),
        delays_s=[None if noise.delay_s is None else round(noise.delay_s, 3) for noise in score.noises if noise.felt],
        unfelt_found=sum(noise.delay_s is not None and not noise.felt for noise in score.noises),
        again=_again(recording, verdicts),
        false_episodes=score.false_episodes,
        calm_node_hours=round(score.calm_node_hours, 4),
        backs_s=_backs_s(recording, verdicts),
        verdicts=int(score.reliability.verdicts.sum()),
        squares=round(float(score.reliability.squares.sum()), 3),
    )


def _again(recording: Recording, verdicts: Sequence[Verdict]) -> int:
    count = 0
    for noise in recording.labels:
        if noise.state == "interference":
            during = [
                verdict.state == "interference"
                for verdict in verdicts
                if verdict.node == noise.node and noise.start_unix_s <= verdict.time_unix_s < noise.end_unix_s
            ]
            count += max(0, sum(now and not before for before, now in pairwise([False, *during])) - 1)
    return count


def _backs_s(recording: Recording, verdicts: Sequence[Verdict]) -> list[float]:
    backs_s = []
    for noise in recording.labels:
        if noise.state != "interference":
            continue
        of_node = [verdict for verdict in verdicts if verdict.node == noise.node]
        before = [verdict for verdict in of_node if verdict.time_unix_s < noise.end_unix_s]
        if not before or before[-1].state != "interference":
            continue
        after = (
            verdict
            for verdict in of_node
            if verdict.time_unix_s >= noise.end_unix_s and verdict.state != "interference"
        )
        if (first := next(after, None)) is not None:
            backs_s.append(round(first.time_unix_s - noise.end_unix_s, 2))
    return backs_s


@functools.cache
def code_digest() -> str:
    """The digest of the code that the figures depend on."""
    return digest_of(CODE)


def read(path: Path) -> list[Judged]:
    """All lines, oldest first; none where there is no file. Raises ExperimentError, OSError."""
    return cells.read(path, Judged, FORMAT, "a recording that was judged")


def left(
    judgements: Iterable[Judged], code: str, files: Sequence[Path], names: Sequence[str]
) -> list[tuple[Path, str]]:
    """Recordings and mechanisms that are still to be judged with this code. No names mean all."""
    done = {(judgement.recording, judgement.off) for judgement in judgements if judgement.code == code}
    wanted = [EVERYTHING, *(name for name in DETECTOR if not names or name in names)]
    return [(path, name) for name in wanted for path in files if (path.stem, name) not in done]


@dataclass(frozen=True)
class Row:
    """One mechanism off, over all recordings."""

    name: str
    off: str
    recordings: int
    felt: int
    missed: int
    """Noises that users felt and nobody detected."""
    missed_interval: list[float] | None
    """Share, 95%."""
    delay_median_s: float | None
    delay_p95_s: float | None
    delay: Estimate | None
    """Ratio to the delay with everything on: geometric mean over the noises that both detected."""
    unfelt_found: int
    again: int
    false_episodes: int
    false_interval: list[float] | None
    """False episodes a node-day, 95%."""
    back_median_s: float | None
    brier: float | None
    lines: int
    guards: str


def rows(judgements: Sequence[Judged]) -> list[Row]:
    """A row for everything and each mechanism, in the table's order; of the last code in `found`."""
    current = [judgement for judgement in judgements if judgement.code == judgements[-1].code] if judgements else []
    with_everything = {judgement.recording: judgement for judgement in current if judgement.off == EVERYTHING}
    table = []
    for name in (EVERYTHING, *DETECTOR):
        played = [
            judgement for judgement in current if judgement.off == name and judgement.recording in with_everything
        ]
        if played:
            table.append(_row(name, played, [with_everything[judgement.recording] for judgement in played]))
    return table


def _row(name: str, played: Sequence[Judged], whole: Sequence[Judged]) -> Row:
    mechanism = DETECTOR.get(name)
    delays = [delay for judgement in played for delay in judgement.delays_s]
    pairs = list(zip(delays, (delay for judgement in whole for delay in judgement.delays_s), strict=True))
    known = [delay for delay in delays if delay is not None]
    false, verdicts = (
        sum(judgement.false_episodes for judgement in played),
        sum(judgement.verdicts for judgement in played),
    )
    return Row(
        name=name,
        off="nothing is off" if mechanism is None else mechanism.off,
        recordings=len(played),
        felt=len(delays),
        missed=len(delays) - len(known),
        missed_interval=scores.share_interval(len(delays) - len(known), len(delays)),
        delay_median_s=_quantile(known, 0.5),
        delay_p95_s=_quantile(known, 0.95),
        delay=ratio(pairs),
        unfelt_found=sum(judgement.unfelt_found for judgement in played),
        again=sum(judgement.again for judgement in played),
        false_episodes=false,
        false_interval=scores.rate_interval(false, sum(judgement.calm_node_hours for judgement in played) / 24),
        back_median_s=_quantile([back for judgement in played for back in judgement.backs_s], 0.5),
        brier=round(sum(judgement.squares for judgement in played) / verdicts, 4) if verdicts else None,
        lines=0 if mechanism is None else lines_of(mechanism.goes),
        guards="" if mechanism is None else mechanism.guards,
    )


def _quantile(values: Sequence[float], share: float) -> float | None:
    return round(float(np.quantile(values, share)), 2) if values else None
