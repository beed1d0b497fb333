"""A slackwater-wsengine in each host of the lab."""

from __future__ import annotations

import os
import shutil

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from slackwater_lab.cluster import bus
from slackwater_lab.cluster.hosts import Host, events_socket
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.paths import BIN, DEBIAN, LAB_DIR, LabError, program, system_program
from slackwater_lab.cluster.spawn import Running

WSENGINE = "slackwater-wsengine"
NICE = -10
"""The priority in wsengine's unit."""
KEY_FILE = LAB_DIR / "orders.key"
PUBLIC_FILE = LAB_DIR / "orders.pub"


def make_keys() -> None:
    """The controller's key, and the half of it that the nodes get."""
    key = Ed25519PrivateKey.generate()
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    KEY_FILE.touch(mode=0o600)
    KEY_FILE.write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    PUBLIC_FILE.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, public))
    PUBLIC_FILE.chmod(0o644)


def wsengine_toml(host: Host, pool: str, knobs: dict[str, dict[str, str]]) -> str:
    """The file of one host; `knobs` is section -> knob -> allowed values, as TOML."""
    folder = host.folder
    sections = {
        "apache": {
            "command": f'["{program("apache2")}", "-f", "{folder}/apache.conf"]',
            "drop_in": f'"{folder}/zz-slackwater.conf"',
            "info_module": f'"{DEBIAN}/usr/lib/apache2/modules/mod_info.so"',
            "status_url": f'"http://{host.address}/server-status?auto"',
            "reload_min_interval_s": "2.0",
        },
        "php_fpm": {
            "command": f'["{program("php-fpm8.2")}", "-c", "{folder}/php.ini"]',
            "config": f'"{folder}/fpm.conf"',
            "pool": '"web"',
            "drop_in": f'"{folder}/pool.d/zz-slackwater.conf"',
            "reload_min_interval_s": "2.0",
        },
        **({"cpu": {"cgroup": f'"{host.vm}"', "events_socket": f'"{events_socket(host)}"'}} if "cpu" in knobs else {}),
    }
    text = (
        f'node = "{host.name}"\npool = "{pool}"\nstate_dir = "{folder}/wsengine"\n'
        f'{bus.wsengine_section(host)}[orders]\npublic_key = "{PUBLIC_FILE}"\n'
    )
    for section, settings in sections.items():
        rows = {**settings, **knobs.get(section, {})}
        text += f"[{section}]\n" + "".join(f"{name} = {value}\n" for name, value in rows.items())
    return text


def start_wsengine(lab: Lab, host: Host) -> Running:
    """The one of this guest, with the settings that are there."""
    engine = shutil.which(WSENGINE, path=f"{os.environ.get('PATH', '')}:{BIN}")
    if engine is None:
        raise LabError(f"{BIN}/{WSENGINE} is missing: run `make setup`")
    command = [*at_priority(), engine, "run", "--config", str(host.folder / "wsengine.toml")]
    return lab.add(lab.machines[host.name].start(WSENGINE, command, "wsengine.log"))


def at_priority() -> list[str]:
    """The words before wsengine's command that give it its unit's priority."""
    return [system_program("nice"), "-n", str(NICE)]


def start_wsengines(lab: Lab, pool: str, knobs: dict[str, dict[str, str]]) -> list[Running]:
    """One in each guest, beside the monitor."""
    for host in lab.hosts:
        lab.machines[host.name].write("wsengine.toml", wsengine_toml(host, pool, knobs))
    return [start_wsengine(lab, host) for host in lab.hosts]
