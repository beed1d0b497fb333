"""keepalived, which owns its services in IPVS's table, as a backend of lbengine."""

from __future__ import annotations

from collections.abc import Mapping

from slackwater.core.config import LbengineSettings, PoolSettings
from slackwater.lbengine.backends.ipvs.backend import targets
from slackwater.lbengine.backends.ipvs.ipvs import run_here
from slackwater.lbengine.backends.ipvs.settings import ServicePool
from slackwater.lbengine.backends.ipvs.table import Service
from slackwater.lbengine.backends.keepalived.keepalived import Keepalived, LocalFiles
from slackwater.lbengine.backends.keepalived.preflight import check, claim
from slackwater.lbengine.backends.keepalived.settings import KeepalivedPool
from slackwater.lbengine.balancer import Backend


def _open(pool: KeepalivedPool, timeout_s: float) -> Keepalived:
    return Keepalived(pool.service, run_here(timeout_s), LocalFiles(), timeout_s)


def _check(pool: KeepalivedPool, settings: LbengineSettings, without_us: Mapping[str, int]) -> list[str]:
    return check(_open(pool, settings.socket_timeout_s), pool, LocalFiles(), without_us)


def _claim(pool: PoolSettings) -> str:
    return claim(Service.parse(pool.service), LocalFiles()) if isinstance(pool, ServicePool) else ""


KEEPALIVED = Backend(settings=KeepalivedPool, open=_open, check=_check, targets=targets, claim=_claim)
