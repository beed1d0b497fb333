"""What the numbers of a run were measured on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.noise import last_level_cache_mib
from slackwater_lab.cluster.paths import program


def version_of(name: str, *arguments: str) -> str:
    """The first version number in what a program prints about itself."""
    done = subprocess.run([program(name), *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    match = re.search(r"\d+\.\d+[\w.+~-]*", done.stdout + done.stderr)
    return match.group() if match else "unknown"


def cpu_model(cpuinfo: str) -> str:
    line = next((row for row in cpuinfo.splitlines() if row.startswith("model name")), ": unknown")
    return line.split(":", 1)[1].strip()


def bare() -> dict[str, Any]:
    """This machine without programs and lab."""
    return {
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text()),
        "cores": os.cpu_count(),
        "last_level_cache_mib": last_level_cache_mib(),
        "kernel": platform.release(),
    }


def describe(lab: Lab) -> dict[str, Any]:
    """Machine, programs and the lab's shape, for the `machine` part of a run's JSON."""
    settings = lab.settings
    return {
        **bare(),
        "cgroup_version": lab.cgroups.version,
        "load_average_at_start": round(os.getloadavg()[0], 2),
        "haproxy": version_of(settings.haproxy, "-v"),
        "haproxy_command": settings.haproxy,
        "apache": version_of("apache2", "-v"),
        "php": version_of("php-fpm8.2", "-n", "-v"),
        "oha": version_of("oha", "--version"),
        "hosts": settings.hosts,
        "quota_cores": settings.quota_cores,
        "period_s": settings.period_s,
        "host_kind": settings.kind,
        "hypervisor": lab.hypervisor,
        "php_children": settings.php_children,
        "app": settings.app,
        "balance": settings.balance,
    }
