"""The API's answers: made by `web/`, described in its OpenAPI document, read by the command line."""

from __future__ import annotations

import msgspec

from slackwater.core.messages import Change
from slackwater.views.pool import PoolView
from slackwater.views.why import Story


class Pools(msgspec.Struct):
    """All pools."""

    pools: list[PoolView]


class Changes(msgspec.Struct):
    """The newest first."""

    changes: list[Change]


class NodeStory(msgspec.Struct):
    """A node's last episode within a week; null: there was none."""

    story: Story | None


class Done(msgspec.Struct):
    """lbengine's answer, a sentence."""

    sentence: str


class Error(msgspec.Struct):
    """What is wrong, where, and what was expected."""

    error: str
