"""The governor of a pool: what it orders, renews and gives back, over a played node."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from slackwater.core.config import GovernorSettings
from slackwater.core.messages import GOVERNOR, WSENGINE, Change, Cycle, Order, Verdict
from slackwater.governor.levers import CORES, QUOTA
from slackwater.governor.lines import as_line
from slackwater.governor.node import REST_S, STALE_S
from slackwater.governor.policies.table import POLICIES
from slackwater.governor.pool import GovernedPool
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.orders.access import BusAccess
from slackwater.orders.knobs import RELEASE
from slackwater.orders.signing import Signer
from tests.support.played_bus import PlayedBus, PlayedJournal
from tests.support.played_governor import LEASE_S, PERIOD_S, TARGET_MS, Played, PlayedNode

POOL = HAProxyPool(name="web", backend="web", socket="/s", mode="act", target_p95_ms=TARGET_MS)


def go(coroutine: object) -> None:
    asyncio.run(coroutine)  # type: ignore[arg-type]


def test_it_takes_away_at_low_load_and_gives_back_when_it_rises() -> None:
    async def story() -> None:
        played = Played()
        await played.run(120.0)
        low = played.node.capacity_cores
        assert low < 2.5, "0.8 of 4 cores are busy"
        assert played.node.base_ms / (1.0 - 0.8 / low) <= TARGET_MS
        assert played.reasons[0].startswith("at most ")
        assert f"of {TARGET_MS:g} ms, 80 requests/s, 0.80 cores busy" in played.reasons[0]
        assert played.causes[0] == "governor"
        played.node.busy_cores = 2.6
        await played.run(2.0)
        assert played.node.capacity_cores > 2.6, "more is given at once"
        await played.run(60.0)
        governed = played.published[-1]
        assert governed.misses < 10 < governed.seconds
        assert (governed.cores, governed.most_cores) == (played.node.value(CORES), 4)

    go(story())


def test_it_begins_with_all_there_is_and_lowers_no_more_often_than_it_may() -> None:
    async def story() -> None:
        played = Played(GovernorSettings(mode="act", lower_every_s=20.0, lease_s=LEASE_S))
        await played.run(0.8)
        assert played.orders == [], "nothing is known yet"
        await played.run(300.0)
        given = [at_s for (at_s, _, _), cause in zip(played.orders, played.causes, strict=True) if cause == "governor"]
        times = sorted(set(given))
        assert len(times) >= 2
        assert all(later - earlier >= 20.0 - 1e-6 for earlier, later in itertools.pairwise(times))

    go(story())


@pytest.mark.parametrize(
    ("state", "why"),
    [("interference", "interference: nothing is lowered"), (None, "no Verdict: nothing is lowered")],
)
def test_during_interference_and_without_a_verdict_nothing_is_lowered(state: str | None, why: str) -> None:
    async def story(policy: str) -> None:
        played = Played(GovernorSettings(mode="act", lease_s=LEASE_S, policy=policy))  # type: ignore[arg-type]
        played.state = state
        await played.run(30.0)
        assert played.orders == []
        assert played.published[-1].interference == (state is not None)
        if policy != "slackwater":  # which sees to it by itself
            assert played.published[-1].why == why
        played.state = "calm"
        await played.run(30.0)
        assert played.node.set

    go(story("slackwater"))
    go(story("linux-ondemand"))


def test_leases_are_renewed_and_end_when_the_controller_dies() -> None:
    async def story() -> None:
        played = Played()
        await played.run(3 * LEASE_S)
        assert played.node.set
        assert "renewed" in played.causes
        await played.run(LEASE_S + 1.0, governed=False)
        assert played.node.set == {}, "the node puts everything back by itself"

    go(story())


def test_a_request_whose_answer_was_never_seen_is_no_queue_when_nobody_asks() -> None:
    async def story() -> None:
        played = Played()
        played.node.lost_s = 0.0
        await played.run(60.0)
        lowered = played.node.capacity_cores
        played.node.answers, played.node.busy_cores = False, 0.01
        await played.run(20.0)
        assert played.node.capacity_cores <= lowered
        played.node.lost_s = 0.0
        await played.run(2.0)
        assert played.node.set == {}, "a new one without an answer is a queue"

    go(story())


@pytest.mark.parametrize("how", ["blind", "paused", "end"])
def test_everything_is_given_back(how: str) -> None:
    async def story() -> None:
        played = Played()
        await played.run(60.0)
        assert played.node.set
        if how == "end":
            await played.pool.end()
        else:
            setattr(played, how, True)
            await played.run(STALE_S + 2.0)
        assert played.node.set == {}
        assert played.orders[-1][2] == RELEASE

    go(story())


def test_without_cycles_nothing_is_ordered_and_the_leases_run_out() -> None:
    async def story() -> None:
        played = Played()
        await played.run(60.0)
        played.silent = True
        await played.run(4.0)
        count = len(played.orders)
        await played.run(LEASE_S + 1.0)
        assert len(played.orders) == count
        assert played.node.set == {}

    go(story())


@pytest.mark.parametrize("mode", ["governor", "pool"])
def test_in_observe_it_only_records_what_it_would_set(mode: str) -> None:
    async def story() -> None:
        settings = GovernorSettings(mode="observe" if mode == "governor" else "act")
        played = Played(settings, mode="observe" if mode == "pool" else "act")
        await played.run(120.0)
        assert played.orders == []
        assert played.notes
        knob, before, _ = played.notes[0]
        assert before == played.node.knobs[knob][0], "from the value without us"
        assert played.node.set == {}
        governed = played.published[-1]
        assert governed.mode == "observe"
        assert governed.wanted_cores is not None
        assert governed.wanted_cores < 4
        assert "would set" in as_line(governed)

    go(story())


def test_a_knob_that_is_refused_or_somebody_elses_is_left_alone_for_a_while() -> None:
    async def story() -> None:
        played = Played(node=PlayedNode(refuses=True))
        await played.run(REST_S)
        asked = [knob for _, knob, _ in played.orders]
        assert asked
        assert len(asked) == len(set(asked)), "once each"
        played = Played()
        await played.run(30.0)
        knob = next(iter(played.node.set))
        played.take_away(knob, "someone_else")
        count = len(played.orders)
        await played.run(REST_S - 2.0)
        assert knob not in {name for _, name, _ in played.orders[count:]}
        await played.run(30.0)
        assert knob in {name for _, name, _ in played.orders[count:]}

    go(story())


def test_a_knob_in_somebody_elses_lease_is_not_taken() -> None:
    async def story() -> None:
        node = PlayedNode(by="retune")
        node.set[QUOTA] = 300, "theirs", 1e9
        played = Played(node=node)
        await played.run(60.0)
        assert {knob for _, knob, _ in played.orders} <= {CORES}

    go(story())


def test_after_a_start_what_the_last_run_set_is_taken_up_and_put_back() -> None:
    async def story() -> None:
        played = Played()
        await played.run(60.0)
        held = set(played.node.set)
        count = len(played.orders)
        played.begin()
        await played.run(1.0)
        assert {(knob, value) for _, knob, value in played.orders[count:]} == {(knob, RELEASE) for knob in held}
        await played.run(60.0)
        assert played.node.set, "and it begins again"

    go(story())


def test_what_cannot_be_ordered_now_is_ordered_later() -> None:
    async def story() -> None:
        played = Played()
        played.refusal = "the bus is away"
        await played.run(30.0)
        assert played.orders == []
        played.refusal = ""
        await played.run(2.0)
        assert played.node.set

    go(story())


@pytest.mark.parametrize("policy", list(POLICIES))
def test_each_policy_stays_within_the_limits(policy: str) -> None:
    async def story() -> None:
        settings = GovernorSettings(mode="act", policy=policy, lower_every_s=1.0, lease_s=LEASE_S)  # type: ignore[arg-type]
        played = Played(settings)
        for busy_cores in (0.2, 3.0, 1.0):
            played.node.busy_cores = busy_cores
            await played.run(40.0)
        assert bool(played.orders) == (policy != "static")

    go(story())


def test_of_two_controllers_only_the_one_whose_lbengine_leads_gives_orders() -> None:
    async def story() -> None:
        now_s = [1000.0]
        bus, journal = PlayedBus(), PlayedJournal()
        access = BusAccess(
            POOL,
            LEASE_S,
            bus,  # type: ignore[arg-type]
            journal,  # type: ignore[arg-type]
            Signer(Ed25519PrivateKey.generate()),
            "a",
            by=GOVERNOR,
            records_renewals=False,
            clock=lambda: now_s[0],
        )
        pool = GovernedPool(POOL, GovernorSettings(mode="act", lease_s=LEASE_S), access, lambda: now_s[0])
        access.pool = pool
        node = PlayedNode()

        async def run(seconds: float, led_by: str) -> list[Order]:
            before = len(bus.orders)
            until_s = now_s[0] + seconds
            while now_s[0] < until_s:
                now_s[0] += PERIOD_S
                access.take(Cycle(1, "web", 1e9, "act", False, "roundrobin", "optimal", "x", [], controller=led_by))
                access.take(node.report(now_s[0]))
                access.take(Verdict(1, "web1", "web", 1e9, "calm", 0.0, 0.0, ["calm"], "m"))
                access.take(node.sample())
                await pool.step()
                for order in bus.orders[before:]:
                    if isinstance(order.value, int):
                        node.set[order.knob] = order.value, order.id, now_s[0] + LEASE_S
                        done = Change(
                            1, order.id, "web", 1e9, order.knob, "web1", None, order.value, "x", WSENGINE, True
                        )
                        done.follows, done.cause = order.id, "ordered"
                        access.take(done)
            return bus.orders[before:]

        assert await run(40.0, "b") == []
        orders = await run(60.0, "a")
        assert {order.by for order in orders} == {GOVERNOR}
        assert len(orders) > len(journal.messages) > 0, "renewals are not recorded"
        assert {change.cause for change in journal.messages if isinstance(change, Change)} == {"governor"}
        assert bus.changes == journal.messages
        assert await run(40.0, "b") == []

    go(story())
