"""Settings of a dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slackwater.core.config import ControllerSettings, parse


def settings_in(folder: Path, web: str = "", pools: Sequence[str] = ("web",)) -> ControllerSettings:
    tables = "".join(f'[[pool]]\nname = "{pool}"\nbackend = "{pool}"\nsocket = "/s"\n' for pool in pools)
    text = f'state_dir = "{folder}"\n{tables}[web]\n{web}'
    return parse(text, "test")
