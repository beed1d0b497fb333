"""The data of the ablation: a line of JSON for each scenario under a balance, in one file that is only appended to."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from slackwater_lab import cells
from slackwater_lab.ablate.mechanisms import EVERYTHING, named
from slackwater_lab.ablate.play import Figures
from slackwater_lab.cluster.paths import ROOT

FORMAT = 1
CODE = (
    *(
        "detector",
        "lab/slackwater_lab/sim",
        "lab/slackwater_lab/ablate/instead.py",
        "lab/slackwater_lab/ablate/mechanisms.py",
        "lab/slackwater_lab/ablate/play.py",
    ),
    *(
        "lbengine/decision",
        "lbengine/laws",
        *(f"lbengine/{module}.py" for module in ("balancer", "baseline")),
    ),
)
"""The figures depend on the content of these files. With other content they are figures of another program."""
KINDS = (".py", ".skops")


class Key(NamedTuple):
    """A scenario under a balance of `mechanisms.BALANCES`."""

    seed: int
    number: int
    balance: str


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A scenario under one balance, played with some mechanisms off."""

    v: int = FORMAT
    code: str
    """The value of `code_digest` when it was played."""
    commit: str | None
    machine: str
    seed: int
    number: int
    balance: str
    cpu_s: float
    """CPU time that it took."""
    alone: Figures
    """The balancer without Slackwater."""
    everything: Figures
    off: dict[str, Figures]
    """Mechanism -> figures without it, where the weights then differed."""
    same: list[str]
    """Mechanisms without which the same was set all the time."""

    @property
    def key(self) -> Key:
        return Key(self.seed, self.number, self.balance)

    def without(self, name: str) -> Figures | None:
        """The figures without a mechanism; None: it was not played."""
        return self.everything if name == EVERYTHING or name in self.same else self.off.get(name)


def digest_of(places: Iterable[str], root: Path = ROOT) -> str:
    """The first 12 digits of a digest over the code in these folders and files: the same after a rebase, another after
    any change."""
    digest = hashlib.sha256()
    for place in places:
        path = root / place
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in KINDS:
                digest.update(f"{file.relative_to(root)} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


@functools.cache
def code_digest() -> str:
    """The digest of `CODE`."""
    return digest_of(CODE)


def read(path: Path) -> list[Line]:
    """All lines, oldest first; none where there is no file. Raises ExperimentError, OSError."""
    return cells.read(path, Line, FORMAT, "a scenario of the ablation")


def of_one_state(lines: Sequence[Line]) -> list[Line]:
    """The lines that have the same code as the last line."""
    return [line for line in lines if line.code == lines[-1].code] if lines else []


def left(
    lines: Iterable[Line], code: str, keys: Iterable[Key], mechanisms: Sequence[str]
) -> list[tuple[Key, tuple[str, ...]]]:
    """The scenarios that are still to be played with this code, each with the mechanisms to switch off. No names mean
    all."""
    played: dict[Key, set[str]] = {}
    for line in lines:
        if line.code == code:
            played.setdefault(line.key, set()).update(line.off, line.same)
    todo = []
    for key in keys:
        wanted = [mechanism.name for mechanism in named(mechanisms, key.balance)]
        missing = tuple(name for name in wanted if name not in played.get(key, ()))
        if missing:
            todo.append((key, missing))
    return todo
