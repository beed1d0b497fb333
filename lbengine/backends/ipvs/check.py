"""What must be right before IPVS is driven: asked at the start, refused in words."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath

from lbengine.backends.ipvs import schedulers
from lbengine.backends.ipvs.ipvs import Lvs, LvsSnapshot
from lbengine.backends.keepalived.keepalived import Files, Keepalived, own_file, owned_by
from lbengine.backends.snapshot import BalancerError
from lbengine.decision.rounding import grain
from slackwater.messages import is_name

FINE_BASELINE = 20
"""Below this weight a step of 5% cannot be made."""
SHORT_RUNS = 40
"""Above so many steps `wrr` serves a lowered server in long runs: nothing, then its full share."""
GONE_AFTER_A_BOOT = ("/run/", "/dev/shm/")


def check_lvs(lvs: Lvs, files: Files) -> list[str]:
    """Looks at a service of IPVS; returns warnings. Raises BalancerError when it cannot be driven, or when a keepalived
    on this host owns it. Changes nothing: who may read IPVS's table may write it."""
    if (running := owned_by(lvs.service, files)) is not None:
        raise BalancerError(
            f"{lvs.where} belongs to keepalived (pid {running.pid}, {running.configuration}), which sets its weights"
            ' itself; use `balancer = "keepalived"`'
        )
    return _check(lvs, lvs.look(), lvs.where)


def check_keepalived(door: Keepalived, files: Files) -> list[str]:
    """Looks at a service that keepalived owns, and at its configuration. As `check_lvs`."""
    running, known = door.configuration()
    where = f"{door.where} ({running.configuration})"
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
                f" {folder} 0755 root root`)"
            )
    if scripts := [real.address for real in known.servers if real.dynamic_scripts]:
        raise BalancerError(
            f"{where}: the MISC_CHECK of {', '.join(scripts)} sets weights too (`misc_dynamic`); two would fight"
        )
    found = _check(door.lvs, door.look(), door.where)
    if lasting := sorted({path for path in paths.values() if not path.startswith(GONE_AFTER_A_BOOT)}):
        found.append(f"{where}: {', '.join(lasting)} outlive a boot, and with them lowered weights; use files in /run")
    if known.quorum > 1:
        found.append(
            f"{where}: `quorum {known.quorum}` counts weights, so lowering them can take the service down; keep it far"
            " below what is left when servers are lowered"
        )
    return found


def _check(lvs: Lvs, snapshot: LvsSnapshot, where: str) -> list[str]:
    servers = snapshot.servers
    if len(servers) < 2:
        raise BalancerError(
            f"{where} has {len(servers)} server{'' if len(servers) == 1 else 's'}; expected at least 2, or there is"
            " nowhere to move load to"
        )
    for server in servers:
        if not is_name(server.name):
            raise BalancerError(f"{where}: {server.address!r} gives no safe name of a server")
        if server.weight > lvs.highest_weight:
            raise BalancerError(
                f"{where}: {server.name} has weight {server.weight}; expected at most {lvs.highest_weight}"
            )
    if problem := schedulers.refusal(snapshot.balance, snapshot.flags, sum(server.weight for server in servers)):
        raise BalancerError(f"{where}: {problem}")
    found = schedulers.warnings(snapshot.balance, snapshot.flags, snapshot.persistent_s, lvs.expires_quiescent())
    if limited := [server.name for server in servers if server.upper]:
        found.append(f"{', '.join(limited)} get no connections beyond their upper threshold, whatever their weight")
    if coarse := [server.name for server in servers if 0 < server.weight < FINE_BASELINE]:
        found.append(f"the weights of {', '.join(coarse)} are too small for fine steps; give them 20 or more")
    step = grain([server.weight for server in servers])
    if snapshot.balance == "wrr" and (large := [server for server in servers if server.weight // step > SHORT_RUNS]):
        found.append(
            "`wrr` takes turns in runs as long as the weights are large: a lowered server gets nothing, then its full"
            f" share; give 20 or so instead of {', '.join(f'{one.name} ({one.weight})' for one in large)}"
        )
    if away := [f"{server.name} ({server.status})" for server in servers if not server.available]:
        found.append(f"{', '.join(away)} left alone as long as it takes no connections")
    if nothing := [server.name for server in servers if server.available and server.weight == 0]:
        found.append(f"{', '.join(nothing)} has weight 0 and is left alone until it is given one")
    return [f"{where}: {text}" for text in found]
