"""The sleep that messages end early."""

from __future__ import annotations

import asyncio
import time

import pytest

from slackwater.detector.alarm import Alarm

LONG_S = 3600.0


async def turns() -> None:
    """Lets the other tasks run until they wait."""
    for _ in range(5):
        await asyncio.sleep(0.0)


def test_it_sleeps_until_its_time() -> None:
    async def main() -> float:
        end_s = time.monotonic() + 0.01
        await Alarm().sleep_until(end_s)
        return time.monotonic() - end_s

    assert asyncio.run(main()) >= -time.get_clock_info("monotonic").resolution


def test_its_end_is_brought_forward_and_never_put_off() -> None:
    async def main() -> None:
        alarm = Alarm()
        now_s = time.monotonic()
        sleeping = asyncio.create_task(alarm.sleep_until(now_s + LONG_S))
        await turns()
        for at_s in (now_s + 0.01, now_s + LONG_S):
            alarm.bring_forward(at_s)
        await asyncio.wait_for(sleeping, 60.0)
        assert time.monotonic() >= now_s + 0.01 - time.get_clock_info("monotonic").resolution

    asyncio.run(main())


@pytest.mark.parametrize("is_asleep", [True, False])
def test_a_ring_ends_the_sleep_or_the_next_one_and_that_one_only(is_asleep: bool) -> None:
    async def main() -> None:
        alarm = Alarm()
        if not is_asleep:
            alarm.ring()
        sleeping = asyncio.create_task(alarm.sleep_until(time.monotonic() + LONG_S))
        if is_asleep:
            await turns()
            alarm.ring()
        await asyncio.wait_for(sleeping, 60.0)
        again = asyncio.create_task(alarm.sleep_until(time.monotonic() + LONG_S))
        await turns()
        assert not again.done()
        again.cancel()

    asyncio.run(main())


def test_what_is_brought_forward_while_nobody_sleeps_is_no_matter() -> None:
    async def main() -> None:
        alarm = Alarm()
        alarm.bring_forward(0.0)
        sleeping = asyncio.create_task(alarm.sleep_until(time.monotonic() + LONG_S))
        await turns()
        assert not sleeping.done()
        sleeping.cancel()

    asyncio.run(main())
