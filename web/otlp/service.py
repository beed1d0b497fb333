"""The part that sends metrics and episodes to an OpenTelemetry collector. It only reads; nobody waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from slackwater.core.bus.bus import without_password
from slackwater.core.config import ControllerSettings
from slackwater.core.heartbeat import Heartbeat
from slackwater.core.otlp_collector import Collector
from slackwater.core.stopping import stop_event
from slackwater.web.reader import JournalReader

log = logging.getLogger("slackwater.otlp")

LOOK_EVERY_S = 1.0


async def run(settings: ControllerSettings) -> None:
    """Sends every `otlp.every_s` until SIGTERM or SIGINT. Raises OtlpError at the start."""
    collector = Collector.of(settings.otlp)
    from slackwater.web.otlp.sender import Sender  # needs packages that the Collector found

    stop = stop_event()
    sender = Sender(JournalReader(settings), collector)
    heartbeat = Heartbeat()
    next_s = time.monotonic()
    log.info("OpenTelemetry collector: %s", without_password(settings.otlp.endpoint))
    try:
        while not stop.is_set():
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + settings.otlp.every_s
                for send in (sender.send_metrics, sender.send_episodes):
                    await asyncio.to_thread(send)
                    heartbeat.beat()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_EVERY_S)
            heartbeat.beat()
    finally:
        collector.close()
