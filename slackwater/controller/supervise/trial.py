"""A trial of new settings in a process of its own: it shows beforehand what their parts would refuse at the start.

It loads what the supervisor never loads, and waits for balancers while the supervisor goes on with its work.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from slackwater.controller.supervise.differences import DETECTOR, GOVERNOR, OTLP, REPLACE, RETUNE
from slackwater.core import programs
from slackwater.core.bus import nats_server
from slackwater.core.config import ControllerSettings, PoolSettings

log = logging.getLogger("slackwater.reload")


class TrialError(Exception):
    """The settings cannot be used; the text says which, and what was expected."""


def try_settings(settings: ControllerSettings, parts: Collection[str], pools: Collection[str], listen: str) -> None:
    """Examines what these parts need, the balancers of these pools, and whether the dashboard can listen there.

    Warnings go to the log. Raises TrialError, or what the parts raise.
    """
    for pool in settings.pool:
        if pool.name in pools:
            _try_pool(settings, pool)
    if DETECTOR in parts:
        from slackwater.detector.service import choose_model

        choose_model(settings.detector)
    if RETUNE in parts and settings.retune.mode != "off":
        from slackwater.retune import knowledge

        knowledge.load(settings.retune.knowledge)
    gives_orders = {RETUNE: settings.retune.mode == "act", GOVERNOR: settings.governor.mode == "act"}
    if any(acts and part in parts for part, acts in gives_orders.items()):
        from slackwater.orders.signing import Signer

        Signer.load(Path(settings.retune.order_key))
    command = settings.replace.command
    if REPLACE in parts and command and (problem := programs.why_not_callable(command)):
        raise TrialError(f"replace.command: {problem}")
    if OTLP in parts and settings.otlp.endpoint:
        from slackwater.core.otlp_collector import Collector

        Collector.of(settings.otlp)
    if listen and (problem := nats_server.why_not_free(listen)):
        raise TrialError(f"the dashboard cannot listen on {listen}: {problem}; see `web.listen`")


def _try_pool(settings: ControllerSettings, pool: PoolSettings) -> None:
    from slackwater.lbengine.backends.table import check

    for warning in check(pool, settings.lbengine, settings.state_dir):
        log.warning("%s", warning)
