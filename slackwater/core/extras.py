"""How an optional extra of this package is installed: from a checkout. On the public index nobody of us holds the
name, so a command with it would install whatever somebody else puts there."""

from __future__ import annotations

from typing import Literal


def installed_by(extra: Literal["lab", "otlp"]) -> str:
    """The command, for the end of a message."""
    return f"pip install '.[{extra}]' in a checkout of Slackwater"
