"""Tasks are ended for sure, also those that miss a cancellation."""

from __future__ import annotations

import asyncio

import pytest

from slackwater.core import tasks
from tests.support.nats_process import until


async def works_on(misses: int) -> str:
    """Until it has met so many cancellations; the next one ends it."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            misses -= 1
            if misses < 0:
                raise


def test_a_task_that_misses_cancellations_is_ended() -> None:
    async def run() -> None:
        task = asyncio.create_task(works_on(misses=2))
        await asyncio.sleep(0)
        await tasks.end(task)
        assert task.cancelled()

    asyncio.run(run())


def test_a_task_that_has_failed_is_ended_and_keeps_its_error() -> None:
    async def fails() -> None:
        raise ValueError("expected a number")

    async def run() -> None:
        task = asyncio.create_task(fails())
        await asyncio.wait([task])
        await tasks.end(task)
        with pytest.raises(ValueError, match="expected a number"):
            task.result()

    asyncio.run(run())


def test_work_in_time_gives_its_result_or_its_error() -> None:
    async def number() -> int:
        return 7

    async def fails() -> None:
        raise ValueError("expected a number")

    assert asyncio.run(tasks.within(60.0, number())) == 7
    with pytest.raises(ValueError, match="expected a number"):
        asyncio.run(tasks.within(60.0, fails()))


def test_work_that_takes_longer_is_ended() -> None:
    async def run() -> None:
        with pytest.raises(TimeoutError):
            await tasks.within(0.01, works_on(misses=1))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_work_ends_with_whoever_waits_for_it() -> None:
    async def run() -> None:
        waiting = asyncio.create_task(tasks.within(60.0, works_on(misses=1)))
        await asyncio.sleep(0.01)
        await tasks.end(waiting)
        assert waiting.cancelled()
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})

    asyncio.run(run())
