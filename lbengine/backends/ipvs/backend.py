"""IPVS that was set up with ipvsadm, as a backend of lbengine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slackwater.core.config import LbengineSettings
from slackwater.core.machine import kernel_id
from slackwater.lbengine.backends.ipvs.ipvs import Lvs, run_here
from slackwater.lbengine.backends.ipvs.preflight import check
from slackwater.lbengine.backends.ipvs.settings import IpvsPool, ServicePool
from slackwater.lbengine.balancer import Backend, Target

NETWORK = Path("/proc/self/ns/net")
"""Each network namespace has a table of its own."""


def _open(pool: IpvsPool, timeout_s: float) -> Lvs:
    return Lvs(pool.service, run_here(timeout_s))


def _check(pool: IpvsPool, settings: LbengineSettings, without_us: Mapping[str, int]) -> list[str]:
    return check(_open(pool, settings.socket_timeout_s), pool, without_us)


def targets(pool: ServicePool) -> list[Target]:
    """The service in this host's table. No other host can reach it."""
    table = f"{kernel_id()} {NETWORK.readlink()}"
    return [Target(pool.place, f"slackwater/ipvs/{pool.service}", (pool.service, table))]


IPVS = Backend(settings=IpvsPool, open=_open, check=_check, targets=targets)
