"""What Debian's packages do when they are installed, which unpacking alone leaves out: the test site's files.

The files are the packages' own. What is enabled is what their maintainer scripts enable, with the two modules and the
configuration that php8.2-fpm's README asks for. Users and folders are those of the packages, too.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from slackwater_lab.cluster.paths import BIN, DEBIAN, LabError
from slackwater_lab.cluster.spawn import call

MODULES = (
    *("mpm_event", "authn_core", "authz_core", "authz_host", "auth_basic", "access_compat", "authn_file", "authz_user"),
    *("alias", "dir", "autoindex", "env", "mime", "negotiation", "setenvif", "filter", "deflate", "status"),
    "reqtimeout",
)
"""What apache2.postinst enables on a new machine."""
CONFIGURATIONS = ("charset", "localized-error-pages", "other-vhosts-access-log", "security", "serve-cgi-bin")
FPM_MODULES, FPM_CONFIGURATION = ("proxy", "proxy_fcgi"), "php8.2-fpm"
TLS_MODULES, TLS_SITE = ("socache_shmcb", "ssl"), "default-ssl"
USERS = {"haproxy": 901, "slackwater": 902, "slackwater-node": 903}
"""What the packages of these names make, with a group of the same name."""
PHP = "etc/php/8.2"


def add_users(layer: Path) -> None:
    (layer / "etc").mkdir(parents=True, exist_ok=True)
    for name, line in (("passwd", "{0}:x:{1}:{1}::/nonexistent:/usr/sbin/nologin"), ("group", "{0}:x:{1}:")):
        kept = [line for line in Path(f"/etc/{name}").read_text().splitlines() if line.partition(":")[0] not in USERS]
        own = [line.format(user, number) for user, number in USERS.items()]
        (layer / "etc" / name).write_text("\n".join([*kept, *own]) + "\n")


def add_folders(layer: Path, folders: Sequence[str]) -> None:
    for folder in folders:
        (layer / folder).mkdir(parents=True, exist_ok=True)


def add_program(layer: Path, name: str) -> None:
    """One of ours, where its package has it."""
    if not (BIN / name).exists():
        raise LabError(f"{BIN / name} is missing: run `make setup`")
    (layer / "usr/bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(BIN / name, layer / "usr/bin" / name)


def add_apache(layer: Path, *, fpm: bool, tls: bool) -> None:
    """Apache as its package leaves it; with php-fpm and TLS as their README files say."""
    apache = layer / "etc/apache2"
    modules = (*MODULES, *(FPM_MODULES if fpm else ()), *(TLS_MODULES if tls else ()))
    configurations = (*CONFIGURATIONS, *((FPM_CONFIGURATION,) if fpm else ()))
    sites = {"000-default": "000-default", **({TLS_SITE: TLS_SITE} if tls else {})}
    for kind, names in (
        ("mods", {end: end for module in modules for end in (f"{module}.load", f"{module}.conf")}),
        ("conf", {f"{name}.conf": f"{name}.conf" for name in configurations}),
        ("sites", {f"{name}.conf": f"{name}.conf" for name in sites}),
    ):
        (apache / f"{kind}-enabled").mkdir(parents=True, exist_ok=True)
        for name in names:
            if (DEBIAN / f"etc/apache2/{kind}-available/{name}").exists():
                (apache / f"{kind}-enabled/{name}").symlink_to(f"../{kind}-available/{name}")
    add_folders(layer, ("var/www/html", "var/log/apache2", "var/cache/apache2/mod_cache_disk"))
    shutil.copy(DEBIAN / "usr/share/apache2/default-site/index.html", layer / "var/www/html/index.html")
    if tls:
        add_snakeoil(layer)


def add_snakeoil(layer: Path) -> None:
    """The certificate that ssl-cert's `make-ssl-cert generate-default-snakeoil` makes."""
    add_folders(layer, ("etc/ssl/certs", "etc/ssl/private"))
    key, certificate = layer / "etc/ssl/private/ssl-cert-snakeoil.key", layer / "etc/ssl/certs/ssl-cert-snakeoil.pem"
    words = ("-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=web", "-keyout", str(key))
    call([str(BIN / "openssl"), "req", "-x509", *words, "-out", str(certificate)])


def add_php(layer: Path) -> None:
    """What phpenmod does in the packages' maintainer scripts."""
    available, enabled = layer / PHP / "mods-available", layer / PHP / "fpm/conf.d"
    for folder in (available, enabled):
        folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(DEBIAN / "usr/lib/php/8.2/php.ini-production", layer / PHP / "fpm/php.ini")
    for ini in [*DEBIAN.glob("usr/share/php8.2-*/*/*.ini"), *(DEBIAN / PHP / "mods-available").glob("*.ini")]:
        text = ini.read_text()
        priority = re.search(r"priority=(\d+)", text)
        (available / ini.name).write_text(text)
        name = f"{priority[1] if priority else '20'}-{ini.name}"
        (enabled / name).symlink_to(f"/{PHP}/mods-available/{ini.name}")


def add_files(layer: Path, files: Mapping[str, str], *, executable: bool = False) -> None:
    for name, text in files.items():
        (layer / name).parent.mkdir(parents=True, exist_ok=True)
        (layer / name).write_text(text)
        (layer / name).chmod(0o755 if executable else 0o644)


def haproxy_cfg(servers: Mapping[str, str], balance: str, *, tls: bool) -> str:
    """Debian's haproxy.cfg, and what a site adds to it. `servers`: their addresses."""
    port, more = (443, " ssl verify none") if tls else (80, "")
    lines = "".join(f"    server {name} {address}:{port}\n" for name, address in servers.items())
    return f"""\
{(DEBIAN / "etc/haproxy/haproxy.cfg").read_text()}
frontend www
    bind :80
    default_backend web

backend web
    balance {balance}
    option httpchk
    http-response set-header X-Served-By %s
    default-server check maxconn 100 weight 100{more}
{lines}"""
