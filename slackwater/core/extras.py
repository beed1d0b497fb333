"""How more of Slackwater is installed: from a checkout. On the public index nobody of us holds a name, so a command
with one would install whatever somebody else puts there."""

from __future__ import annotations

from typing import Literal

COMMANDS = {"lab": "pip install . ./lab", "otlp": "pip install '.[otlp]'"}


def installed_by(what: Literal["lab", "otlp"]) -> str:
    """The command, for the end of a message: of `slackwater-lab`, or of an optional extra."""
    return f"{COMMANDS[what]} in a checkout of Slackwater"
