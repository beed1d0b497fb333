"""The headline of a pool is made of all that is known: it counts no server as calm that is not, and names each one."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.core.messages import ServerCondition, State
from slackwater.views.headline import exceptions, headline
from slackwater.views.row import Row


def row(node: str, state: State = "calm", condition: ServerCondition = "up", **more: Any) -> Row:
    fields = {"weight": 100, "baseline": 100, "wanted": 100, "rps": 20.0, "rt_p95_ms": 9.0, "cpu": 0.2} | more
    fields.setdefault("full_weight", fields["baseline"])
    made = Row(node=node, server=node, condition=condition, state=state, since_unix_s=None, share=None,
               share_wanted=None, rt_p99_ms=None, why="", **fields)  # fmt: skip
    made.exceptions = exceptions(made, "HAProxy")
    return made


SLOW: dict[str, Any] = {"rt_p95_now_ms": 155.0, "rt_p95_usual_ms": 9.2}
SEEN = [
    ([row("web1"), row("web2"), row("web3")], "All 3 servers are calm"),
    ([row("web1"), row("web2"), row("web3", condition="down")], "2 of 3 calm; web3 is down in HAProxy"),
    (
        [row("web1"), row("web2", **SLOW, as_in_calm=["CPU", "disk", "memory"])],
        "1 of 2 calm; web2 is slow (155 ms, usually 9), and no neighbour is the cause:"
        " its CPU, disk and memory are as in calm",
    ),
    (
        [row("web1"), row("web2", **SLOW, as_in_calm=["CPU"])],
        "1 of 2 calm; web2 is slow (155 ms, usually 9), and no neighbour is the cause: its CPU is as in calm",
    ),
    ([row("web1"), row("web2", **SLOW)], "1 of 2 calm; web2 is slow (155 ms, usually 9), and no neighbour is found"),
    (
        [row("web1"), row("web2", failed_share=0.37, peers_failed_share=0.0), row("web3")],
        "2 of 3 calm; web2 fails 37 of 100 requests, its peers 0",
    ),
    (
        [row("web1", weight=0), row("web2", weight=40, decided=False)],
        "0 of 2 calm; web1 has weight 0 of 100; web2 has weight 40 of 100, set by someone else",
    ),
    (
        [row("web1", "interference", weight=20, pinned=True), row("web2", "slow", weight=40, decided=False)],
        "0 of 2 calm; web1 has weight 20 of 100, pinned; web2 has weight 40 of 100, set by someone else;"
        " web1 is beside a noisy neighbour; web2 is slow, and the cause is not visible from the balancer",
    ),
    ([row("web1", weight=20, pinned=True), row("web2")], "1 of 2 calm; web1 has weight 20 of 100, pinned"),
    ([row("web1", "interference", weight=0), row("web2")], "1 of 2 calm; web1 is beside a noisy neighbour"),
    ([row("web1", "slow"), row("web2")], "1 of 2 calm; web1 is slow, and the cause is not visible from the balancer"),
    (
        [row("web1"), row("web2", "slow", **SLOW)],
        "1 of 2 calm; web2 is slow (155 ms, usually 9), and the cause is not visible from the balancer",
    ),
    ([row("web1", "unknown", condition="maintenance"), row("web2")], "1 of 2 calm; web1 is in maintenance in HAProxy"),
    (
        [row("web1", "all_slow"), row("web2", "all_slow")],
        "0 of 2 calm; web1, web2 are slow together with the others, so no neighbour is the cause",
    ),
    ([row("web1", condition="down"), row("web2", condition="down")], "0 of 2 calm; web1, web2 are down in HAProxy"),
    (
        [row("web1", failed_share=0.12), row("web2", failed_share=0.12)],
        "2 of 2 calm; 12 of 100 requests fail, on all servers alike",
    ),
    (
        [row("web1", failed_share=0.0), row("web2", failed_share=0.34), row("web3", failed_share=0.0)],
        "3 of 3 calm; 11 of 100 requests fail, most of them at web2",
    ),
    (
        [row("web1", rps=90.0, failed_share=0.06), row("web2", rps=10.0, failed_share=0.46)],
        "2 of 2 calm; 10 of 100 requests fail, most of them at web2, web1",
    ),
    ([row("web1", failed_share=0.12)], "1 of 1 calm; 12 of 100 requests fail"),
    ([row(f"web{n}", "unknown") for n in range(9)], "0 of 9 calm; web0, web1, web2, web3 and 5 more are unknown"),
]


@pytest.mark.parametrize(("rows", "expected"), SEEN, ids=[expected for _, expected in SEEN])
def test_each_exception_is_named_in_plain_words(rows: list[Row], expected: str) -> None:
    assert headline(rows)[1] == expected


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    """Servers in all combinations of what can be known of them."""
    servers = []
    for number in range(draw(st.integers(0, 6))):
        fails = draw(st.sampled_from([{}, {"failed_share": 0.4, "peers_failed_share": 0.01}, {"failed_share": 0.4}]))
        slow = draw(st.sampled_from([{}, SLOW]))
        weight, decided = draw(st.sampled_from([(100, True), (0, True), (0, False), (40, False), (None, True)]))
        condition: ServerCondition = draw(st.sampled_from(get_args(ServerCondition)))
        state: State = draw(st.sampled_from(["calm", "interference", "overload", "all_slow", "unknown"]))
        more = {**fails, **slow, "weight": weight, "decided": decided}
        servers.append(row(f"web{number}", state, condition, **more))
    return servers


def is_calm(server: Row) -> bool:
    """Told anew, past the code under test."""
    return (
        server.condition in ("up", "unchecked")
        and server.state == "calm"
        and server.peers_failed_share is None
        and server.rt_p95_now_ms is None
        and server.weight in (None, server.baseline)
    )


@given(rows())
def test_it_never_claims_more_calm_servers_than_there_are_and_names_every_other(servers: list[Row]) -> None:
    state, text = headline(servers)
    calm = [server for server in servers if is_calm(server)]
    if text.startswith("All"):
        assert calm == servers
        claimed = len(servers)
    elif text == "The only server is calm":
        claimed = 1
    elif text == "There are no servers":
        claimed = 0
    else:
        counted = re.match(r"(\d+) of (\d+) calm; ", text)
        assert counted is not None
        claimed = int(counted[1])
        assert int(counted[2]) == len(servers)
    assert claimed == len(calm)
    for server in servers:
        if not is_calm(server):
            assert server.exceptions
            assert server.node in text or "more" in text
    if state == "calm":
        assert all(server.state == "calm" for server in servers)


def test_an_own_limit_is_named_with_its_level_and_what_would_help() -> None:
    limited = row("web2", "slow", resource="own limit", own_limit_cores=0.4)
    words = "gets 0.4 CPUs and no more, by a limit of its own: a larger quota or machine would help"
    assert exceptions(limited, "HAProxy") == [words]
    full = row("web2", "overload", resource="own limit", own_limit_cores=0.4)
    assert exceptions(full, "HAProxy") == [words]


def test_a_level_that_nothing_proves_to_be_a_limit_leaves_it_open() -> None:
    steady = row("web2", "interference", resource="cpu", own_limit_cores=0.4)
    assert exceptions(steady, "HAProxy") == ["is beside a steady neighbour, or has a limit of its own, of 0.4 CPUs"]
