"""One neighbour is one episode, however often its signals waver; all servers slow at once are one of the pool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.core.journal import series
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Change, Cycle, ServerState, State, Verdict
from slackwater.views.together import MOST_S, end, leading, together
from slackwater.views.why import Episode, as_text, episode_of, episodes

T0 = 1_795_000_000.0


@dataclass(frozen=True)
class Span:
    node: str
    state: State
    since_unix_s: float
    until_unix_s: float | None


def spans(*times: tuple[float, float | None], node: str = "web1", state: State = "interference") -> list[Span]:
    return [Span(node, state, since, until) for since, until in times]


def test_a_saw_of_thirteen_seconds_is_one_episode_and_two_neighbours_are_two() -> None:
    saw = spans((0, 2), (3, 4), (5.5, 8), (10, 11), (12.5, 13))
    (group,) = together(saw)
    assert (group[0].since_unix_s, end(group)) == (0, 13)
    assert len(together([*saw, *spans((40, 50))])) == 2
    assert len(together(spans((0, 60), (70, 90)))) == 1, "ten seconds are little after sixty"
    assert len(together(spans((0, 600), (600 + MOST_S, 700)))) == 2


def test_servers_are_told_apart_and_states_of_one_are_not() -> None:
    groups = together([*spans((0, 5)), *spans((1, 5), node="web2"), *spans((5, 9), state="overload")])
    assert [len(group) for group in groups] == [2, 1]
    assert leading(together([*spans((0, 5), state="overload"), *spans((5, 9))])[0]).state == "interference"


def test_all_slow_is_one_episode_of_the_pool() -> None:
    (group,) = together(span for n in (1, 2, 3) for span in spans((n / 10, 20 + n), node=f"web{n}", state="all_slow"))
    assert len(group) == 3


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 100), st.floats(0, 50)), max_size=12))
def test_no_span_is_lost_or_counted_twice(times: list[tuple[str, float, float]]) -> None:
    made = [Span(node, "interference", since, since + lasts) for node, since, lasts in times]
    grouped = [span for group in together(made) for span in group]
    assert sorted(map(id, grouped)) == sorted(map(id, made))


class Counted(Span):
    """Counts how often its end is asked for."""

    asked = 0

    def __getattribute__(self, name: str) -> object:
        if name == "until_unix_s":
            Counted.asked += 1
        return super().__getattribute__(name)


@pytest.mark.parametrize("count", [100, 1000])
def test_a_server_that_wavers_for_days_is_looked_at_once(count: int) -> None:
    """It was looked at anew from its beginning with each time, which took hours."""
    Counted.asked = 0
    (group,) = together(Counted("web1", "interference", 3.0 * number, 3.0 * number + 1.0) for number in range(count))
    assert len(group) == count
    assert Counted.asked <= 2 * count


@pytest.mark.parametrize("oldest", [False, True])
def test_of_very_many_states_the_newest_are_read_or_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, oldest: bool
) -> None:
    monkeypatch.setattr(series, "MOST_STATES", 4)
    times: list[tuple[float, State]] = [
        (100.0 * number, "calm" if number % 2 else "interference") for number in range(20)
    ]
    with Journal.open(journal_path(tmp_path)) as journal:
        journal.record(*verdicts("web1", *times))
        assert len(journal.states("web", T0)) == 4
        listed = episodes(journal, "web", T0, oldest=oldest)
        assert [episode.since_unix_s - T0 for episode in listed] == ([0, 200] if oldest else [1600, 1800])
        assert all(episode.until_unix_s is not None for episode in listed), "what was left out is no reason to go on"
        first = episode_of(journal, "web", "web1", {}, T0 + 3000, T0 + 10)
        last = episode_of(journal, "web", "web1", {}, T0 + 3000)
    assert first is not None
    assert last is not None
    assert (first.since_unix_s, last.since_unix_s) == (T0, T0 + 1800)


def verdicts(node: str, *states: tuple[float, State]) -> list[Verdict]:
    ends = [*(since_s for since_s, _ in states[1:]), states[-1][0] + 1.0]
    return [
        Verdict(1, node, "web", T0 + until, state, T0 + since_s, 0.5, [f"why {state}"], "m")
        for (since_s, state), until in zip(states, ends, strict=True)
    ]


def weight(at_s: float, after: int, server: str = "web1", what: str = "weight", follows: str = "") -> Change:
    return Change(
        *(1, f"{what}{server}{at_s}", "web", T0 + at_s, what, server, 100, after, f"at {at_s:g}", "lbengine", True),
        follows=follows,
    )


def seen(folder: Path, *messages: Verdict | Change | Cycle, node: str = "web1", now_s: float = 300.0) -> Episode:
    with Journal.open(journal_path(folder)) as journal:
        journal.record(*messages)
        episode = episode_of(journal, "web", node, {}, T0 + now_s)
    assert episode is not None
    return episode


def test_the_changes_of_another_episode_of_the_server_are_not_listed(tmp_path: Path) -> None:
    messages: list[Verdict | Change] = [
        *verdicts("web1", (0, "interference"), (20, "calm"), (50, "interference"), (60, "calm")),
        *(weight(0.4, 0), weight(21, 40), weight(22, 100), weight(50.3, 0), weight(61, 100)),
        weight(33, 7, what="outcome", follows="weightweb20.1"),
    ]
    with Journal.open(journal_path(tmp_path)) as journal:
        journal.record(*messages)
        first = episode_of(journal, "web", "web1", {}, T0 + 300, T0 + 10)
        last = episode_of(journal, "web", "web1", {}, T0 + 300)
    assert first is not None
    assert last is not None
    assert [change.why for change in first.changes] == ["at 0.4", "at 21", "at 22"]
    assert [change.why for change in last.changes] == ["at 50.3", "at 61"]


def test_an_episode_without_changes_says_why_there_is_none(tmp_path: Path) -> None:
    episode = seen(tmp_path, *verdicts("web1", (0, "overload"), (20, "calm")))
    assert as_text(episode).splitlines()[1:] == [
        "  because why overload",
        "  no weight was changed: its own load fills it, and no neighbour is the cause",
    ]


def test_while_it_goes_on_the_reason_is_that_of_lbengine(tmp_path: Path) -> None:
    why = "interference, but no split is surely better: the best is no worse with 40%"
    server = ServerState("web1", "up", 100, 100, 100, why=why, cause="no_gain")
    cycle = Cycle(1, "web", T0 + 5, "act", False, "roundrobin", "optimal", "web: 1 unchanged", [server])
    episode = seen(tmp_path, *verdicts("web1", (0, "interference")), cycle)
    assert f"  no weight was changed: {why}" in as_text(episode)


def test_all_slow_is_listed_once_and_every_server_finds_it(tmp_path: Path) -> None:
    messages = [
        verdict for n in (1, 2, 3) for verdict in verdicts(f"web{n}", (n / 10, "all_slow"), (20 + n / 10, "calm"))
    ]
    episode = seen(tmp_path, *messages, node="web3")
    text = as_text(episode)
    assert text.startswith("pool web (web1, web2, web3): all_slow since ")
    assert "no weight was changed: all servers were slow alike, so none was a better place for requests" in text
    with Journal.open(journal_path(tmp_path)) as journal:
        assert len(episodes(journal, "web", T0)) == 1


def test_an_episode_during_which_the_controller_died_is_not_said_to_go_on(tmp_path: Path) -> None:
    now = T0 + 3600.0
    with Journal.open(journal_path(tmp_path), clock=lambda: T0 + 5.0) as journal:
        journal.record(*verdicts("web1", (0, "interference")))
        late, soon = episode_of(journal, "web", "web1", {}, now), episode_of(journal, "web", "web1", {}, T0 + 6.0)
    assert late is not None
    assert soon is not None
    assert late.unseen_since_unix_s == T0 + 5.0
    assert "its end is not known, as its node was last judged at " in as_text(late)
    assert "it goes on" not in as_text(late)
    assert "it goes on" in as_text(soon)
