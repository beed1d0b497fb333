"""Which failing servers keep load from being moved. Pure.

What one server loses all others get, so no load is moved while another fails well above its peers. A server that goes
on failing when nothing was moved to it for `MOST_S` fails by itself, or by what a client asks of it. Load is moved in
spite of it then, until it fails `WORSE` times as much. So nobody can keep a pool's weights where they are by a few
failures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slackwater.core.messages import Verdict
from slackwater.lbengine.verdicts import is_failing

MOST_S = 60.0
WORSE = 1.5


@dataclass(frozen=True)
class FailingServer:
    """A server that fails well above its peers, and is not in an episode of `errors`."""

    since_s: float
    """Begin of the time in which no load is moved because of it."""
    share: float | None = None
    """Share of its requests that failed at the end of that time; None: it goes on."""


def after(
    before: Mapping[str, FailingServer], verdicts: Mapping[str, Verdict], now_s: float
) -> dict[str, FailingServer]:
    """The failing servers after a turn, by name."""
    failing = {}
    for name, verdict in verdicts.items():
        if verdict.state == "errors" or not is_failing(verdict):
            continue
        share, known = verdict.failed_share or 0.0, before.get(name, FailingServer(now_s))
        if known.share is None and now_s - known.since_s >= MOST_S:
            known = FailingServer(known.since_s, share)
        elif known.share is not None and share > WORSE * known.share:
            known = FailingServer(now_s)
        failing[name] = known
    return failing


def keeps_load(verdict: Verdict, known: FailingServer | None) -> bool:
    """Whether no load may be moved because of this server."""
    return is_failing(verdict) and (known is None or known.share is None)
