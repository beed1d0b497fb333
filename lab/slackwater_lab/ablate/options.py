"""What the two commands of the ablation share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import click

FILE = click.Path(dir_okay=False, path_type=Path)


def check(names: Sequence[str], known: Collection[str], data: Path | None, *, needs_data: bool, lines: str) -> None:
    """Raises UsageError for a mechanism that there is not, or without the data file where that is needed; `lines`: what
    its lines are, in words."""
    if unknown := [name for name in names if name not in known]:
        raise click.UsageError(f"--off {unknown[0]}: expected one of {', '.join(known)}")
    if data is None and needs_data:
        raise click.UsageError(f"--data is missing: the file with the {lines}")
