"""How the lab and the optional extras are installed: from a checkout. The project holds no name on the public index, so
a command with one would install whatever somebody else puts there."""

from __future__ import annotations

from typing import Literal

COMMANDS = {"lab": "pip install . ./lab", "otlp": "pip install '.[otlp]'"}


def installed_by(extra: Literal["lab", "otlp"]) -> str:
    """The command, for the end of a message: of `slackwater-lab`, or of an optional extra."""
    return f"{COMMANDS[extra]} in a checkout of Slackwater"
