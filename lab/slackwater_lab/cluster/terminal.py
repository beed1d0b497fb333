"""How tables are printed: as wide as the terminal, and wide enough where there is none."""

from __future__ import annotations

import sys

from rich.console import Console


def console() -> Console:
    """A console on stdout; in a pipe a table must not be cut to a terminal's usual 80 columns."""
    return Console() if sys.stdout.isatty() else Console(width=120)
