"""Which programs look at which servers, and how their looks are taken."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from slackwater.lbengine.balancer import Server
from slackwater.lbengine.view import packets
from slackwater.lbengine.view.packets import MOST_LOOKS, Packets

SERVER = Server(name="web1", weight=100, address="[::ffff:192.0.2.1]:80")
END = "192.0.2.1:80"


def test_a_route_that_comes_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    routes: dict[str, str] = {}

    async def interfaces_to(servers: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
        return dict(routes), {server: "no route" for server in servers if server not in routes}

    monkeypatch.setattr(packets, "interfaces_to", interfaces_to)

    async def play() -> None:
        watching = Packets("/nowhere/sniffer", 0.05)
        await watching.watch([SERVER])
        assert watching.why_not(SERVER) == "no route"
        routes[END] = "eth0"
        await watching.watch([SERVER])
        assert watching.why_not(SERVER) == "no route", "it is not asked for each time"
        monkeypatch.setattr(packets, "FIND_AGAIN_S", 0.0)
        watching._find_again_s = 0.0
        await watching.watch([SERVER])
        sniffer = watching._by_end[END]
        await watching.watch([SERVER])
        assert watching._by_end[END] is sniffer, "the same route starts no other program"
        await watching.close()

    asyncio.run(play())


def test_looks_that_nobody_took_yet_are_kept_and_the_oldest_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "sniffer"
    lines = "".join(
        f'{{"server": "{END}", "exchanges": {number}}}\n{{"period_s": 0.05}}\n' for number in range(1, MOST_LOOKS + 3)
    )
    script = f"import time; print({lines!r}, end='', flush=True); time.sleep(60)"
    program.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(script)}\n")
    program.chmod(0o755)

    async def interfaces_to(servers: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
        return dict.fromkeys(servers, "eth0"), {}

    monkeypatch.setattr(packets, "interfaces_to", interfaces_to)

    async def play() -> list[int]:
        watching = Packets(str(program), 60.0)
        await watching.watch([SERVER])
        async with asyncio.timeout(60.0):
            looks = watching._by_end[END]._looks
            while not looks or looks[-1][0][END].exchanges < MOST_LOOKS + 2:
                await asyncio.sleep(0.01)
        taken = []
        while look := watching.take():
            taken.append(look[END][0].exchanges)
        assert not watching.is_ahead
        await watching.close()
        return taken

    assert asyncio.run(play()) == list(range(3, MOST_LOOKS + 3))
