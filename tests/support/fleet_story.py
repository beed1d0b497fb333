"""Two pools with episodes, labels and a neighbour, for the page of all servers."""

from __future__ import annotations

from pathlib import Path

from slackwater.core.config import ControllerSettings, parse
from slackwater.core.messages import Cycle, Message, Sample, ServerState, State, Traffic, Verdict
from tests.support.web_story import T0

POOLS = """
[[pool]]
name = "web"
backend = "web"
socket = "/s"
zones = { web1 = "east", web2 = "west", web10 = "east" }
machine_types = { web1 = "small", web2 = "large" }
[[pool]]
name = "shop"
backend = "shop"
socket = "/s"
"""


def settings_in(folder: Path, more: str = "") -> ControllerSettings:
    return parse(f'state_dir = "{folder}"\n{POOLS}{more}', "test")


def verdicts(node: str, pool: str, state: State, since: float, last: float, severity: float = 0.0) -> list[Message]:
    return [
        Verdict(1, node, pool, unix_s, state, T0 + since, severity, ["x"], "m") for unix_s in (T0 + since, T0 + last)
    ]  # fmt: skip


def site(balance: str = "roundrobin") -> list[Message]:
    """web1 beside a neighbour for 10 min, web2 was beside one an hour ago, web10 is calm, shop1 is overloaded."""
    messages: list[Message] = []
    messages += verdicts("web1", "web", "calm", -7200, -600) + verdicts("web1", "web", "interference", -600, 0, 0.5)
    messages += verdicts("web2", "web", "interference", -4200, -3600, 0.9) + verdicts("web2", "web", "calm", -3600, 0)
    messages += verdicts("web10", "web", "calm", -7200, 0) + verdicts("shop1", "shop", "overload", -60, 0, 0.1)
    rates = {"web1": 20.0, "web2": 40.0, "web10": 40.0, "shop1": 5.0}
    for node, rps in rates.items():
        pool = "shop" if node == "shop1" else "web"
        traffic = Traffic(rps=rps, rt_p50_ms=2.0, rt_p95_ms=rps)
        for seq, unix_s in enumerate((T0 - 10.0, T0)):
            messages.append(Sample(1, node, pool, unix_s, "boot", seq, 0.2, traffic=traffic))
    web = [ServerState(node, "up", 100, 100, 100, share=rates[node] / 100) for node in ("web1", "web2", "web10")]
    shop = [ServerState("shop1", "up", 1, 1, 1, share=1.0)]
    mean = "share" if balance == "roundrobin" else "concurrency"
    for pool, servers in (("web", web), ("shop", shop)):
        messages.append(Cycle(1, pool, T0, "act", False, balance, "optimal", "", servers, mean))  # type: ignore[arg-type]
    return messages
