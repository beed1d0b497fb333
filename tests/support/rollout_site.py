"""A running site on the test hosts, as somebody else set it up: Apache with php-fpm behind HAProxy. No Slackwater."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

from tests.support.ansible_files import php_of
from tests.support.rollout_hosts import Hosts
from tools.systems import DEBIAN_12, DEBIAN_13, UBUNTU_24_04, System

WEBS = ["web1", "web2", "web3"]
NAMES = ["lb1", *WEBS]
SITES: dict[str, dict[str, System]] = {
    **{system.release: dict.fromkeys(NAMES, system) for system in (DEBIAN_12, DEBIAN_13, UBUNTU_24_04)},
    "mixed": {"lb1": DEBIAN_12, "web1": DEBIAN_13, "web2": DEBIAN_13, "web3": DEBIAN_12},
}
"""Sites that the rollout is run on: each host's system."""
INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends -o Dpkg::Use-Pty=0"
PAGE = "<?php usleep(2000); echo gethostname(), ' ', $_GET['n'] ?? '', \"\\n\";\n"
PHP = """<FilesMatch "\\.php$">
    SetHandler "proxy:unix:/run/php/php{version}-fpm.sock|fcgi://localhost"
</FilesMatch>
"""
HAPROXY = """global
\tlog /dev/log\tlocal0
\tchroot /var/lib/haproxy
{socket}\tuser haproxy
\tgroup haproxy
\tdaemon

defaults
\tmode\thttp
\ttimeout connect 5000
\ttimeout client  50000
\ttimeout server  50000

frontend www
\tbind *:80
\tdefault_backend web

backend web
\tbalance roundrobin
\toption redispatch
"""
SOCKET = "\tstats socket /run/haproxy/admin.sock mode 660 level admin\n\tstats timeout 30s\n"


def haproxy_cfg(webs: dict[str, str], socket: str = SOCKET) -> str:
    """The balancer's file; `webs` are the servers' names and addresses."""
    servers = "".join(f"\tserver {name} {address}:80 check inter 500ms\n" for name, address in webs.items())
    return HAPROXY.format(socket=socket) + servers


def put(hosts: Hosts, name: str, path: str, text: str) -> None:
    """Writes a file on a host that runs."""
    place = hosts.folder / f"put-{name}"
    place.write_text(text)
    hosts.ssh(name, f"cat > {path} <<'END-OF-FILE'\n{text}END-OF-FILE\n")
    place.unlink()


def set_up(hosts: Hosts, balancers: list[str], webs: list[str], socket: str = SOCKET) -> None:
    """Installs and starts the site on all hosts side by side."""
    addresses = {name: hosts[name].address for name in webs}

    def web(name: str) -> None:
        version = php_of(hosts[name].system)
        fpm = f"php{version}-fpm"
        hosts.ssh(name, f"{INSTALL} apache2 {fpm} && a2enmod -q proxy_fcgi", timeout_s=300)
        put(hosts, name, "/etc/apache2/conf-enabled/php.conf", PHP.format(version=version))
        put(hosts, name, "/var/www/html/index.php", PAGE)
        # Or a reload of php-fpm would cut requests in flight: wsengine says so and does not turn its knob.
        setting = "s/^;process_control_timeout.*/process_control_timeout = 10s/"
        hosts.ssh(name, f"sed -i '{setting}' /etc/php/{version}/fpm/php-fpm.conf")
        hosts.ssh(name, f"systemctl restart apache2 {fpm} && systemctl is-active apache2 {fpm}")

    def balancer(name: str) -> None:
        hosts.ssh(name, f"{INSTALL} haproxy", timeout_s=300)
        put(hosts, name, "/etc/haproxy/haproxy.cfg", haproxy_cfg(addresses, socket))
        hosts.ssh(name, "systemctl restart haproxy && systemctl is-active haproxy")

    with ThreadPoolExecutor(len(webs) + len(balancers)) as at_once:
        jobs = [at_once.submit(web, name) for name in webs] + [at_once.submit(balancer, name) for name in balancers]
        for job in jobs:
            job.result()


KEEPALIVED = """vrrp_instance www {{
	state BACKUP
	interface eth0
	virtual_router_id 77
	priority {priority}
	advert_int 1
	virtual_ipaddress {{
		{address}/24
	}}
}}
"""


def share_address(hosts: Hosts, balancers: list[str], address: str) -> None:
    """keepalived between the balancers: the first one that lives has the address."""
    for number, name in enumerate(balancers):
        hosts.ssh(name, f"{INSTALL} keepalived", timeout_s=300)
        put(hosts, name, "/etc/keepalived/keepalived.conf", KEEPALIVED.format(priority=100 - number, address=address))
        hosts.ssh(name, "systemctl enable -q keepalived && systemctl restart keepalived")


# Copies that tools keep of the files they change, caches that are made anew, and locks.
NOT_CONFIGURATION = ("passwd-", "group-", "shadow-", "gshadow-", ".pwd.lock", "ld.so.cache")


def configuration(hosts: Hosts, name: str) -> dict[str, str]:
    """What stands in /etc (mode, owner, bytes), which packages, users, units and files of ours there are."""
    skip = " ".join(f"! -path 'etc/{name}'" for name in NOT_CONFIGURATION)
    files = hosts.ssh(
        name,
        f"cd / && find etc \\( -type f -o -type l -o -type d \\) {skip} -printf '%p %y %m %U %G %l\\n' | LC_ALL=C sort;"
        f" find etc -type f {skip} -print0 | LC_ALL=C sort -z | xargs -0 sha256sum",
    ).stdout
    seen = dict.fromkeys(files.splitlines(), "")
    for kind, command in {
        "packages": "dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\\n'",
        "manual": "apt-mark showmanual",
        "units": "systemctl list-unit-files --no-legend --no-pager",
        "ours": "find /opt /usr /var /lib /run -iname '*slackwater*' ! -path '/run/systemd/*' 2>/dev/null; true",
    }.items():
        seen |= {f"{kind}: {line}": "" for line in hosts.ssh(name, command).stdout.splitlines()}
    return seen


def difference(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Lines that are on one side only."""
    return [f"- {line}" for line in before if line not in after] + [f"+ {line}" for line in after if line not in before]


def digest(seen: dict[str, str]) -> str:
    return hashlib.sha256("\n".join(sorted(seen)).encode()).hexdigest()
