"""Hooks: real programs, called with JSON, bounded in time and number."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from real_processes import is_alive

from lbengine.hooks import AT_ONCE, WAITING, Hooks
from slackwater.messages import Change, State, Verdict


def program(folder: Path, text: str, name: str = "hook") -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def verdict(state: State, node: str = "web1") -> Verdict:
    return Verdict(
        v=1, node=node, pool="web", time_unix_s=5.0, state=state, since_unix_s=5.0, severity=0.0, path=["x"], model="m"
    )


def change(number: int = 0) -> Change:
    return Change(1, str(number), "web", 1.0, "weight", "web1", 100, 0, "because", "lbengine", True)


async def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_episodes_and_changes_are_told_as_json(tmp_path: Path) -> None:
    told = tmp_path / "told"

    async def story() -> None:
        hooks = Hooks([program(tmp_path, f"cat >> {told}")], 10.0)
        hooks.verdict(verdict("interference"))
        await until(lambda: len(lines(told)) == 1)
        hooks.change(change())
        await until(lambda: len(lines(told)) == 2)
        hooks.verdict(verdict("calm"))
        await until(lambda: len(lines(told)) == 3)
        hooks.verdict(verdict("unknown"))
        hooks.verdict(verdict("calm"))
        await hooks.close()

    asyncio.run(story())
    assert [line["event"] for line in lines(told)] == ["episode-start", "change", "episode-end"]
    assert lines(told)[1]["change"] == {
        "v": 1,
        "id": "0",
        "pool": "web",
        "time_unix_s": 1.0,
        "what": "weight",
        "target": "web1",
        "before": 100,
        "after": 0,
        "why": "because",
        "by": "lbengine",
        "applied": True,
    }


def test_one_that_hangs_is_killed_with_its_children(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pids = tmp_path / "pids"

    async def story() -> None:
        hooks = Hooks([program(tmp_path, f"sleep 600 & echo $! > {pids}; wait")], 0.5)
        hooks.change(change())
        await until(lambda: "killed after 0.5 s" in caplog.text)
        await until(lambda: not is_alive(int(pids.read_text())))
        await hooks.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())


def test_no_more_run_at_a_time_than_may_and_the_oldest_that_wait_are_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "runs").mkdir()

    async def story() -> None:
        hooks = Hooks([program(tmp_path, f"touch {tmp_path}/runs/$$; cat > /dev/null; sleep 600")], 600.0)
        began_s = time.monotonic()
        for number in range(AT_ONCE + WAITING + 3):
            hooks.change(change(number))
        assert time.monotonic() - began_s < 10.0
        await until(lambda: len(list((tmp_path / "runs").iterdir())) == AT_ONCE)
        running = [int(path.name) for path in (tmp_path / "runs").iterdir()]
        await hooks.close()
        assert not any(is_alive(pid) for pid in running)

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert caplog.text.count("a call was dropped") == 3


def test_one_that_is_not_there_or_fails_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        hooks = Hooks([str(tmp_path / "none"), program(tmp_path, "exit 3")], 10.0)
        hooks.change(change())
        await until(lambda: "none: cannot be called: No such file" in caplog.text)
        await until(lambda: "ended with status 3" in caplog.text)
        await hooks.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
