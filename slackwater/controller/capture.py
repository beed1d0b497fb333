"""What the balancer's view lacks on this host to capture packets, with the remedy."""

from __future__ import annotations

import shutil
from pathlib import Path

from slackwater.core.config import ControllerSettings
from slackwater.core.config.balancer_view import BalancerViewSettings
from slackwater.core.files import text_of
from slackwater.core.state_dir import running_serve
from slackwater.lbengine.view.packets import program_path

CAP_NET_RAW = 1 << 13


def capture_remedy(settings: ControllerSettings) -> str:
    """What to do so that packets can be captured on this host; empty where nothing is known to be missing."""
    program = settings.balancer_view.sniffer
    if not program:
        return f'set `sniffer = "{BalancerViewSettings().sniffer}"` in [balancer_view], then slackwater reload'
    if program_path(program) is None:
        return f"install {program} on this host, or name its place as `sniffer` in [balancer_view]"
    if shutil.which("ip") is None:
        return "install iproute2 on this host: it has `ip`"
    pid = running_serve(settings.state_dir)
    if pid is not None and not _may_capture(pid):
        return "give the controller's service the right to capture: AmbientCapabilities=CAP_NET_RAW in its unit"
    return ""


def _may_capture(pid: int) -> bool:
    """Whether a process may pass the right to capture on; also true where nobody may know."""
    try:
        status = text_of(Path(f"/proc/{pid}/status"))
    except OSError:
        return True
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    is_root = fields.get("Uid", "").split()[:2] == ["0", "0"]
    return bool(int(fields.get("CapEff" if is_root else "CapAmb", "0"), 16) & CAP_NET_RAW)
