"""Settings of a dashboard."""

from __future__ import annotations

from pathlib import Path

from slackwater.core.config import ControllerSettings, parse


def settings_in(folder: Path, web: str = "") -> ControllerSettings:
    text = f'state_dir = "{folder}"\n[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/s"\n[web]\n{web}'
    return parse(text, "test")
