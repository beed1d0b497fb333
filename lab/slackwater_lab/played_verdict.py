"""A detector's Verdict of the pool `web`, for what plays the detector: benchmarks, simulated protocols, tests."""

from __future__ import annotations

from typing import Any

import msgspec

from slackwater.core.messages import State, Verdict


def verdict(node: str, state: State, **fields: Any) -> Verdict:
    """Under `interference` a node has lost 0.8 of its 300 requests/s; `fields` are what is otherwise."""
    slow = state == "interference"
    result = Verdict(
        v=1,
        node=node,
        pool="web",
        time_unix_s=0.0,
        state=state,
        since_unix_s=0.0,
        severity=0.8 if slow else 0.0,
        path=["because"],
        model="played",
        capacity_rps=60.0 if slow else 300.0,
        rps=50.0,
    )
    return msgspec.structs.replace(result, **fields)
