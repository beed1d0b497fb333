"""The API's answers: made by `web/`, described in its OpenAPI document, read by the command line."""

from __future__ import annotations

import msgspec

from slackwater.core.messages import Change
from slackwater.views.pool import PoolStatus
from slackwater.views.why import Episode


class Pools(msgspec.Struct):
    """All pools."""

    pools: list[PoolStatus]
    time_unix_s: float = 0.0
    """Now, by the dashboard's clock; 0: an older version answered."""


class Changes(msgspec.Struct):
    """The newest first."""

    changes: list[Change]


class NodeEpisode(msgspec.Struct):
    """A node's last episode within a week; null: there was none."""

    episode: Episode | None


class Done(msgspec.Struct):
    """lbengine's answer, a sentence."""

    sentence: str


class Error(msgspec.Struct):
    """What is wrong, where, and what was expected."""

    error: str
