"""Apache and php-fpm of one host, from generated configuration; nothing of the machine's own is read."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from typing import Protocol

from slackwater_lab.cluster.paths import DEBIAN, LabError, debian_places

MODULES = ("authz_core", "mime", "dir", "reqtimeout", "proxy", "proxy_fcgi")
MPMS = {
    "event": """\
MaxRequestWorkers 512
StartServers 2
ServerLimit 8
ThreadsPerChild 64
ThreadLimit 64
MinSpareThreads 64
MaxSpareThreads 512
""",
    "prefork": """\
MaxRequestWorkers 512
StartServers 8
ServerLimit 512
MinSpareServers 8
MaxSpareServers 64
""",
    "event-small": """\
MaxRequestWorkers 32
StartServers 1
ServerLimit 4
ThreadsPerChild 16
ThreadLimit 16
MinSpareThreads 1
MaxSpareThreads 32
""",
}
"""MPM -> Apache's settings: up to 512 requests at once, or 32 where there are many hosts."""
PHP_API = "20220829"
PHP_EXTENSIONS = (
    *("ctype", "iconv", "mbstring", "posix", "tokenizer", "dom", "simplexml", "xml", "xmlreader"),
    *("apcu", "fileinfo", "intl", "pdo", "pdo_sqlite"),
)


class Served(Protocol):
    """The place of a web server: a host of the lab, or a benchmark's."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...

    @property
    def folder(self) -> Path: ...


def unprivileged_user() -> tuple[str, str]:
    """User and group that serve the pages: php-fpm refuses to serve as root."""
    for name in ("www-data", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return name, grp.getgrgid(user.pw_gid).gr_name
    raise LabError("neither `www-data` nor `nobody` is a user of this machine; the web servers need one of them")


def apache_conf(host: Served, root: Path, user: str, group: str, mpm: str) -> str:
    """Apache's configuration; more threads than the balancer ever opens connections, so php-fpm is what queues."""
    folder = host.folder
    modules = DEBIAN / "usr/lib/apache2/modules"
    module = f"mpm_{mpm.partition('-')[0]}"
    loads = "\n".join(f'LoadModule {name}_module "{modules}/mod_{name}.so"' for name in (module, *MODULES))
    return f"""\
ServerRoot "{folder}"
{loads}
ServerName {host.name}.lab
Listen {host.address}:80
User {user}
Group {group}
PidFile "{folder}/apache.pid"
ErrorLog "{folder}/apache-error.log"
LogLevel warn
DefaultRuntimeDir "{folder}"
Mutex pthread
TypesConfig /dev/null
AddType text/html .html .php
AddType text/css .css
AddType application/javascript .js
AddType image/png .png
AddType image/svg+xml .svg

{MPMS[mpm]}ListenBacklog 1024
KeepAlive On
KeepAliveTimeout 60
MaxKeepAliveRequests 0
Timeout 60

DocumentRoot "{root}"
DirectoryIndex index.php
<Directory "/">
    AllowOverride None
    Require all denied
</Directory>
<Directory "{root}">
    Require all granted
</Directory>
<FilesMatch "\\.php$">
    SetHandler "proxy:unix:{folder}/php.sock|fcgi://localhost/"
</FilesMatch>
"""


def php_ini(host: Served) -> str:
    modules = {name: debian_places(f"usr/lib/php/{PHP_API}/{name}.so") for name in (*PHP_EXTENSIONS, "opcache")}
    if lacks := [name for name, places in modules.items() if not places]:
        raise LabError(f"PHP extensions are missing: {', '.join(lacks)}: run `make setup`")
    loads = "\n".join(f'extension="{modules[name][0]}"' for name in PHP_EXTENSIONS)
    return f"""\
{loads}
zend_extension="{modules["opcache"][0]}"
opcache.enable = 1
opcache.memory_consumption = 64
opcache.validate_timestamps = 0
opcache.jit = disable
opcache.lockfile_path = "{host.folder}"
memory_limit = 64M
max_execution_time = 60
date.timezone = UTC
display_errors = stderr
session.save_path = "{host.folder}/sessions"
session.gc_maxlifetime = 60
session.gc_probability = 1
session.gc_divisor = 500
"""


def fpm_conf(host: Served, user: str, group: str, children: int) -> str:
    folder = host.folder
    return f"""\
[global]
pid = {folder}/php-fpm.pid
error_log = {folder}/php-fpm.log
daemonize = no
process_control_timeout = 10s
[web]
user = {user}
group = {group}
listen = {folder}/php.sock
listen.owner = {user}
listen.group = {group}
listen.mode = 0660
listen.backlog = 1024
pm = static
pm.max_children = {children}
pm.max_requests = 0
catch_workers_output = yes
"""


def write_configuration(host: Served, root: Path, children: int, mpm: str) -> None:
    """Writes the three files into the host's folder, and makes the folders that the servers write into."""
    user, group = unprivileged_user()
    for name in ("", "sessions"):
        (host.folder / name).mkdir(parents=True, exist_ok=True)
    owner = pwd.getpwnam(user)
    os.chown(host.folder / "sessions", owner.pw_uid, owner.pw_gid)
    (host.folder / "apache.conf").write_text(apache_conf(host, root, user, group, mpm))
    (host.folder / "php.ini").write_text(php_ini(host))
    (host.folder / "fpm.conf").write_text(fpm_conf(host, user, group, children))


def apache_command(host: Served, program: str) -> list[str]:
    return [program, "-f", str(host.folder / "apache.conf"), "-DFOREGROUND"]


def fpm_command(host: Served, program: str) -> list[str]:
    return [program, "-c", str(host.folder / "php.ini"), "-y", str(host.folder / "fpm.conf"), "--nodaemonize"]


def make_retunable(host: Served) -> None:
    """Adds what wsengine needs, as the rollout does at a site: drop-in files and status pages."""
    folder = host.folder
    (folder / "pool.d").mkdir(exist_ok=True)
    with (folder / "apache.conf").open("a") as file:
        file.write(
            f'LoadModule status_module "{DEBIAN}/usr/lib/apache2/modules/mod_status.so"\n'
            f'<Location "/server-status">\n    SetHandler server-status\n    Require all granted\n</Location>\n'
            f'IncludeOptional "{folder}/zz-slackwater.conf"\n'
        )
    with (folder / "fpm.conf").open("a") as file:
        file.write(f"pm.status_path = /fpm-status\ninclude = {folder}/pool.d/*.conf\n")
