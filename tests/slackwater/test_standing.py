"""Where a site stands: one sentence and a next step for each state, by the most urgent pool."""

from __future__ import annotations

from typing import get_args

import pytest

from slackwater.core.messages import State
from slackwater.views.pool import PoolStatus, Row, without_controller
from slackwater.views.standing import SYMBOLS, StandingState, standing


def row(state: State) -> Row:
    return Row(
        "web1",
        "web1",
        "up",
        state,
        None,
        100,
        100,
        100,
        80.0,
        None,
        None,
        rt_p95_ms=4.0,
        rt_p99_ms=6.0,
        cpu=0.4,
        why="",
    )


def view(pool: str = "web", state: State = "calm", **more: object) -> PoolStatus:
    fields: dict[str, object] = {"mode": "act", "age_s": 0.2, "stale": False, "judged": True, **more}
    return PoolStatus(pool=pool, sentence="", headline="", rows=[row(state)], **fields)  # type: ignore[arg-type]


SEEN = [
    ([view()], "acting", "In pool web a server that is slow gets less weight until it is well again."),
    ([view(mode="observe")], "observing", "In pool web no weight is changed: decisions are only recorded."),
    ([view(paused=True)], "paused", "Pool web has the baseline weights"),
    ([view(stale=True, age_s=12.0)], "broken", "The controller is silent about pool web"),
    ([view(stale=True, age_s=None)], "empty", "Nothing is recorded of pool web yet."),
    ([view(state="unknown", judged=False)], "empty", "none of them is measured yet"),
    ([view(state="unknown")], "broken", "No server of pool web is judged any more"),
    ([view(state="overload"), view("Db", paused=True)], "paused", "Pool Db has the baseline weights"),
    ([view("a", paused=True), view("b", paused=True)], "paused", "Pools a, b have the baseline weights"),
]


@pytest.mark.parametrize(("views", "state", "sentence"), SEEN)
def test_each_state_has_its_sentence_and_a_next_step(
    views: list[PoolStatus], state: StandingState, sentence: str
) -> None:
    stands = standing(views)
    assert (stands.state, stands.symbol) == (state, SYMBOLS[state])
    assert sentence in stands.sentence
    assert stands.todo.endswith(".")


def test_the_command_that_ends_a_pause_names_what_is_paused() -> None:
    over = "when the reason for the pause is over."
    assert standing([view("a", paused=True), view("b")]).todo == f"`slackwater resume --pool a` {over}"
    assert standing([view("a", paused=True), view("b", paused=True)]).todo == f"`slackwater resume --all` {over}"


@pytest.mark.parametrize("left", [True, False])
def test_where_the_balancer_is_silent_too_only_what_is_left_is_restored(left: bool) -> None:
    pool = view()
    pool.rows[0].weight = 50
    without_controller(pool, "connection refused", left)
    assert ("restore --all" in standing([pool]).todo) is left


def test_every_state_is_among_them() -> None:
    assert {state for _, state, _ in SEEN} == set(get_args(StandingState))


def test_the_most_urgent_pool_is_named_and_the_others_counted() -> None:
    stands = standing([view(), view("db", mode="observe"), view("api", stale=True, age_s=9.0), view("img")])
    assert stands.state == "broken"
    assert "about pool api:" in stands.sentence
    assert stands.sentence.endswith("Other pools: 1 observing, 2 acting.")


@pytest.mark.parametrize(
    ("has_journal", "state", "sentence"),
    [(True, "broken", "Nothing can be shown: j: not read"), (False, "empty", "Nothing was ever recorded: j: not read")],
)
def test_a_journal_that_cannot_be_read_is_not_one_that_never_was(
    has_journal: bool, state: StandingState, sentence: str
) -> None:
    stands = standing([], "j: not read", has_journal)
    assert (stands.state, stands.sentence.rstrip(".")) == (state, sentence)


@pytest.mark.parametrize("mode", ["act", "observe"])
def test_something_is_to_be_done_about_a_server_that_fails(mode: str) -> None:
    failing = view(mode=mode)
    failing.rows[0].peers_failed_share = 0.0
    stands = standing([failing])
    assert stands.todo == "look at the error log of web1: no neighbour is the cause."


def test_something_is_to_be_done_about_servers_that_fail_alike() -> None:
    failing = view()
    failing.rows[0].failed_share = 0.12
    assert standing([failing]).todo == "look at the error log of web1: no neighbour is the cause."
    named = view("api")
    named.rows[0].peers_failed_share = 0.0
    assert standing([failing, named]).todo == "look at the error log of web1, web1: no neighbour is the cause."
    failing.rows[0].failed_share = 0.04
    assert standing([failing]).todo == "nothing."
