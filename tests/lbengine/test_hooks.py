"""Hooks: real programs, called with JSON, bounded in time and number."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from slackwater.core.messages import Change, State, Verdict
from slackwater.lbengine.hooks import AT_ONCE, WAITING, Hooks
from tests.support.real_processes import is_alive


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
    deadline_s = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_episodes_and_changes_are_reported_as_json(tmp_path: Path) -> None:
    received = tmp_path / "told"

    async def story() -> None:
        hooks = Hooks([program(tmp_path, f"cat >> {received}")], 60.0, tmp_path / "hooks.json")
        hooks.verdict(verdict("interference"))
        await until(lambda: len(lines(received)) == 1)
        hooks.change(msgspec.structs.replace(change(), cause="tried"))
        hooks.change(change())
        await until(lambda: len(lines(received)) == 2)
        hooks.verdict(verdict("calm"))
        await until(lambda: len(lines(received)) == 3)
        hooks.verdict(verdict("unknown"))
        hooks.verdict(verdict("calm"))
        await hooks.close()

    asyncio.run(story())
    assert [line["event"] for line in lines(received)] == ["episode-start", "change", "episode-end"]
    assert lines(received)[1]["change"] == {
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


class Called(Hooks):
    """Notes the calls of episodes instead of making them; time is the test's."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 100.0
        self.calls: list[tuple[str, str]] = []
        super().__init__(["/hook"], 1.0, folder / "hooks.json", lambda: self.now_s)

    def call(self, about: dict[str, object]) -> None:
        verdict_of = about["verdict"]
        assert isinstance(verdict_of, dict)
        self.calls.append((str(about["event"]), verdict_of["node"]))


def test_an_episode_that_goes_on_over_a_takeover_ends_once(tmp_path: Path) -> None:
    hooks = Called(tmp_path)
    hooks.verdict(verdict("calm"), ours=False)
    hooks.verdict(verdict("interference"), ours=False)
    hooks.now_s += 10.0
    hooks.take_over("web", hooks.now_s - 2.0)
    assert hooks.calls == [], "the one before has called it"
    hooks.verdict(verdict("calm"))
    hooks.verdict(verdict("calm"))
    assert hooks.calls == [("episode-end", "web1")]


def test_what_happened_since_the_other_one_was_last_heard_of_is_called_by_the_one_that_takes_over(
    tmp_path: Path,
) -> None:
    hooks = Called(tmp_path)
    hooks.verdict(verdict("interference"), ours=False)
    hooks.verdict(verdict("calm", "web2"), ours=False)
    hooks.now_s += 10.0
    died_s = hooks.now_s
    hooks.now_s += 1.0
    hooks.verdict(verdict("calm"), ours=False)
    hooks.verdict(verdict("interference", "web2"), ours=False)
    hooks.take_over("api", died_s)
    assert hooks.calls == []
    hooks.take_over("web", died_s)
    hooks.take_over("web", died_s)
    assert hooks.calls == [("episode-end", "web1"), ("episode-start", "web2")]


def test_a_restart_within_an_episode_does_not_begin_it_again(tmp_path: Path) -> None:
    first = Called(tmp_path)
    first.verdict(verdict("interference"))
    second = Called(tmp_path)
    second.verdict(verdict("interference"))
    assert second.calls == []
    third = Called(tmp_path)
    third.verdict(verdict("calm"))
    assert third.calls == [("episode-end", "web1")]
    fourth = Called(tmp_path)
    fourth.verdict(verdict("calm"))
    fourth.verdict(verdict("overload"))
    assert fourth.calls == [("episode-start", "web1")]


@pytest.mark.parametrize("kept", [b"{", b'{"\xff": {}}'])
def test_without_what_was_kept_hooks_hear_again_of_what_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: bytes
) -> None:
    (tmp_path / "hooks.json").write_bytes(kept)
    hooks = Called(tmp_path)
    assert "hooks.json: cannot be read" in caplog.text
    hooks.verdict(verdict("interference"))
    assert hooks.calls == [("episode-start", "web1")]


def test_one_that_hangs_is_killed_with_its_children(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pids = tmp_path / "pids"
    pids.touch()

    async def story() -> None:
        hooks = Hooks([program(tmp_path, f"sleep 600 & echo $! > {pids}; wait")], 0.5, tmp_path / "hooks.json")
        calls = 0
        while not pids.read_text():  # one that is slow to begin is killed before it has come so far
            calls += 1
            hooks.change(change(calls))
            await until(lambda calls=calls: caplog.text.count("killed after 0.5 s") == calls)  # type: ignore[misc]
        await until(lambda: not is_alive(int(pids.read_text())))
        await hooks.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())


def test_no_more_run_at_a_time_than_may_and_the_oldest_that_wait_are_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "runs").mkdir()

    async def story() -> None:
        hung = program(tmp_path, f"touch {tmp_path}/runs/$$; cat > /dev/null; sleep 600")
        hooks = Hooks([hung], 600.0, tmp_path / "hooks.json")
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


def test_one_that_is_not_there_or_fails_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        hooks = Hooks([str(tmp_path / "none"), program(tmp_path, "exit 3")], 60.0, tmp_path / "hooks.json")
        hooks.change(change())
        await until(lambda: "none: cannot be called: No such file" in caplog.text)
        await until(lambda: "ended with status 3" in caplog.text)
        await hooks.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
