"""Checks of a service that keepalived owns before it is driven."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import PurePosixPath

from slackwater.core.config import PoolSettings
from slackwater.lbengine.backends.ipvs.preflight import check_service
from slackwater.lbengine.backends.ipvs.table import Service
from slackwater.lbengine.backends.keepalived.keepalived import HostFiles, Keepalived, own_file, owned_by
from slackwater.lbengine.balancer import BalancerError
from slackwater.lbengine.preflight import NOTHING_SET

GONE_AFTER_A_BOOT = ("/run/", "/dev/shm/")


def claim(service: Service, files: HostFiles) -> str:
    """Why only keepalived may set a service's weights, in words; empty when no keepalived has it configured.

    Raises BalancerError when keepalived's configuration cannot be followed.
    """
    running = owned_by(service, files)
    if running is None:
        return ""
    return (
        f"IPVS service `{service}` belongs to keepalived (pid {running.pid}, {running.configuration}), which sets its"
        ' weights itself; use `balancer = "keepalived"`'
    )


def check(
    keepalived: Keepalived, pool: PoolSettings, files: HostFiles, without_us: Mapping[str, int] = NOTHING_SET
) -> list[str]:
    """Checks a service and its configuration, and changes nothing; returns warnings. Raises BalancerError."""
    running, known = keepalived.configuration()
    where = f"{keepalived.where} ({running.configuration})"
    paths = {real.address: own_file(real).path for real in known.servers}
    for path, count in Counter(paths.values()).items():
        if count > 1:
            raise BalancerError(f"{where}: {path} steers {count} real servers; expected a file for each")
    for address, path in paths.items():
        folder = str(PurePosixPath(path).parent)
        if not files.is_writable_folder(folder):
            raise BalancerError(
                f"{where}: {folder}, where the weight of {address} belongs, is no folder that may be written; it must"
                " be there before keepalived starts, or keepalived forgets the file (systemd-tmpfiles: `d"
                f" {folder} 0755 slackwater slackwater`, with the user that runs Slackwater)"
            )
    if scripts := [real.address for real in known.servers if real.dynamic_scripts]:
        raise BalancerError(
            f"{where}: the MISC_CHECK of {', '.join(scripts)} sets weights too (`misc_dynamic`); two would fight"
        )
    if wrong := keepalived.misread(known.servers):
        raise BalancerError(
            f"{where}: {', '.join(wrong)}; was it set with ipvsadm, or is the configuration not understood here?"
        )
    warnings = check_service(keepalived.lvs, keepalived.read(), pool, keepalived.where, without_us)
    if permanent := sorted({path for path in paths.values() if not path.startswith(GONE_AFTER_A_BOOT)}):
        outlived = ", ".join(permanent)
        warnings.append(f"{where}: {outlived} outlive a boot, and with them lowered weights; use files in /run")
    if known.quorum > 1:
        warnings.append(
            f"{where}: `quorum {known.quorum}` counts weights, so lowering them can take the service down; keep it far"
            " below what is left when servers are lowered"
        )
    return warnings
