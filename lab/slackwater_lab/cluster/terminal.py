"""How tables and figures are printed."""

from __future__ import annotations

import sys

from rich.console import Console


def console() -> Console:
    """A console on stdout; in a pipe a table must not be cut to a terminal's usual 80 columns."""
    return Console() if sys.stdout.isatty() else Console(width=120)


def shown(value: float | None, form: str = ".1f") -> str:
    """A figure as text; `-` where there is none."""
    return "-" if value is None else format(value, form)
