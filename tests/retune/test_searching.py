"""`policy = "search"` over time, against a site that is played: who tries what, and what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater.core.messages import Change
from slackwater.orders.knobs import RELEASE
from slackwater.retune.best_values import BestValues
from tests.support.played_retune import CHILDREN, NODES, Story, play


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


class Search(Story):
    """No room in the pool, and a response time that is best with so many children."""

    def __init__(self, folder: Path, best: int) -> None:
        super().__init__(folder, policy="search", search_measure_s=10.0)
        self.capacity_rps = 100.0
        self.p95_ms = lambda node: 50.0 + 10.0 * abs(self.children(node) - best)

    def children(self, node: str) -> int:
        children = self.site.own(node, CHILDREN)
        assert isinstance(children, int)
        return children

    async def tried(self, seconds: float) -> list[tuple[str, str]]:
        """Node and number of children of each Order that is no renewal."""
        log = await self.run(seconds)
        orders = [line.split() for line in log if CHILDREN in line and "renewed" not in line]
        return [(order[1], order[3]) for order in orders]


def test_a_search_tries_keeps_what_is_better_remembers_it_and_begins_there_the_next_time(folder: Path) -> None:
    best = 12

    async def script() -> None:
        story = Search(folder, best)
        story.states["web1"] = ("interference", 0.5)
        tried = await story.tried(600.0)
        children = story.children("web1")
        assert tried[:2] == [("web1", "16"), ("web1", RELEASE)], "what is known helps first, then it must prove itself"
        assert tried[-1] == ("web1", str(children))
        assert abs(children - best) <= 4
        assert BestValues(folder).get("any", 0.5) == {CHILDREN: children}
        assert "hold web1" in story.site.log
        assert story.site.log[-1] != "hold web1", "its weight is the law's again"
        story.states.clear()
        await story.run(30.0)
        story.states["web2"] = ("interference", 0.5)
        again = [("web2", str(children)), ("web2", RELEASE), ("web2", str(children))]
        assert await story.tried(300.0) == again, "good again: no further tries"

    play(script())


def test_values_that_need_no_reload_are_searched_too(folder: Path) -> None:
    async def script() -> None:
        story = Search(folder, 12)
        story.site.reloads = False
        story.states["web1"] = ("interference", 0.5)
        assert len(await story.tried(600.0)) > 3
        assert "drain web1" not in story.site.log
        assert BestValues(folder).get("any", 0.5) == {CHILDREN: story.children("web1")}

    play(script())


def test_one_node_searches_at_a_time_and_the_next_takes_what_was_found(folder: Path) -> None:
    async def script() -> None:
        story = Search(folder, 12)
        story.states = dict.fromkeys(NODES, ("interference", 0.5))
        tried = await story.tried(900.0)
        assert tried[:3] == [(node, "16") for node in NODES], "what is known helps all of them at once"
        nodes = [node for node, _ in tried[3:]]
        assert nodes == sorted(nodes), "one after the other"
        assert nodes.count("web1") > 3
        children = str(story.children("web1"))
        assert children != "16"
        for node in ("web2", "web3"):
            assert [value for name, value in tried[3:] if name == node] == [children, RELEASE, children]
        ended = [node for node, _, cause in story.site.causes if cause == "search_over"]
        assert ended == list(NODES), "the first Order after each search says that it is over"

    play(script())


def test_nothing_is_searched_while_others_carry_the_load(folder: Path) -> None:
    async def script() -> None:
        story = Search(folder, 12)
        story.capacity_rps = 300.0
        story.states["web1"] = ("interference", 0.5)
        assert await story.tried(300.0) == [("web1", "16")], "what the knowledge base says"
        assert "hold web1" not in story.site.log
        assert not (folder / "retune.json").exists()

    play(script())


def test_what_is_measured_away_from_the_baseline_weight_does_not_count(folder: Path) -> None:
    async def script() -> None:
        story = Search(folder, 12)
        story.site.moved.add("web1")
        story.states["web1"] = ("interference", 0.5)
        assert await story.tried(300.0) == [("web1", "16")]
        story.site.moved.clear()
        assert len(await story.tried(300.0)) > 3

    play(script())


def test_an_episode_that_ends_during_a_search_leaves_what_was_found_by_then(folder: Path) -> None:
    async def script() -> None:
        story = Search(folder, 12)
        story.states["web1"] = ("interference", 0.5)
        for _ in range(100):
            if story.states and await story.tried(5.0) and story.children("web1") not in (4, 16):
                story.states.clear()
                await story.run(30.0)
        assert BestValues(folder).get("any", 0.5) == {CHILDREN: 16}

    play(script())


def test_an_operators_change_ends_a_search(folder: Path) -> None:
    async def script() -> None:
        story = Search(folder, 12)
        story.states["web1"] = ("interference", 0.5)
        await story.run(60.0)
        of_theirs = Change(1, "c", "web", 0.0, CHILDREN, "web1", 16, 5, "words", "wsengine", True, cause="someone_else")
        story.pool.see(of_theirs)
        assert await story.tried(300.0) == []

    play(script())


def test_a_search_that_finds_nothing_better_leaves_everything_as_it_was(folder: Path) -> None:
    async def script() -> None:
        story = Search(folder, 4)
        story.states["web1"] = ("interference", 0.5)
        assert (await story.tried(600.0))[-1] == ("web1", RELEASE)
        assert story.children("web1") == 4
        assert BestValues(folder).get("any", 0.5) == {CHILDREN: 4}

    play(script())
