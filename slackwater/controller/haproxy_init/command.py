"""`slackwater init`: the first configuration of a controller, beside a running HAProxy."""

from __future__ import annotations

import contextlib
import grp
import os
import shlex
from pathlib import Path

import click
import msgspec

from slackwater.controller.haproxy_init.bus_address import make_certificate, own_address, with_certificate
from slackwater.controller.haproxy_init.first_settings import (
    LeftOut,
    NewPool,
    Wishes,
    choose,
    is_local,
    lines_for,
    reached_from_outside,
    settings_text,
)
from slackwater.core.bus import nats_server
from slackwater.core.bus.config import ListedNode, parse_nodes
from slackwater.core.config import ControllerSettings, is_loopback, parse
from slackwater.core.files import PRIVATE, SERVICE_USER, exists, in_hands_of, replacing
from slackwater.core.options import DEFAULT_CONFIG, config_option
from slackwater.core.state_dir import running_serve
from slackwater.lbengine.backends.haproxy.algorithms import CONFIGURED
from slackwater.lbengine.backends.haproxy.configuration import started
from slackwater.lbengine.backends.haproxy.site import SiteConfiguration, read_configuration
from slackwater.lbengine.backends.haproxy.survey import (
    FoundBackend,
    FoundServer,
    Survey,
    find_socket,
    survey,
)
from slackwater.lbengine.preflight import MOST_NAMES

ASK_WITHIN_S = 3.0
USUAL_CONFIGURATION = Path("/etc/haproxy/haproxy.cfg")
SERVICE = "slackwater-controller"
A_FILE = click.Path(exists=True, dir_okay=False)
MANY = 1000
"""From this number of servers on the survey takes seconds, which the person is told."""


class InitError(Exception):
    """Nothing was written. The text says why, and what to do."""


class NodeLines(msgspec.Struct, frozen=True):
    """A web server, and the commands that set it up."""

    node: str
    pool: str
    commands: list[str]


class InitResult(msgspec.Struct, frozen=True):
    """The survey's findings and what was done, for `--json`."""

    config: str
    written: bool
    text: str
    haproxy: Survey
    pools: list[NewPool]
    left_out: list[LeftOut]
    certificate: list[str]
    """The files that were made for the bus, in words; empty where they are not needed, or were named."""
    login: list[str]
    """The command that lets a person use the dashboard's buttons; empty where somebody may already."""
    missing: list[str]
    """What is missing on this host, each with its remedy."""
    nodes: list[NodeLines]
    """The commands to run for each web server."""


@click.command(epilog="Example: slackwater init --listen 10.0.0.5:14222")
@config_option
@click.option("--socket", default="", metavar="PATH", help="HAProxy's admin socket; otherwise it is searched for.")
@click.option(
    "--haproxy-cfg",
    type=click.Path(path_type=Path),
    help=f"HAProxy's configuration, a file or a folder, to find the socket in.  [default: {USUAL_CONFIGURATION}, else"
    " what a running HAProxy was started with]",
)
@click.option("--backend", "backends", multiple=True, metavar="NAME", help="Only this backend; may be given again.")
@click.option(
    "--listen", default="", metavar="HOST:PORT", help="Where the web servers reach the bus; a certificate is made."
)
@click.option("--tls-cert", type=A_FILE, metavar="FILE", help="A certificate of yours (PEM), for the host in --listen.")
@click.option("--tls-key", type=A_FILE, metavar="FILE", help="The certificate's key (PEM).")
@click.option(
    "--tls-ca", type=A_FILE, metavar="FILE", help="The authority that signed it, unless the machines know it."
)
@click.option("--state-dir", default="", metavar="DIR", help="The controller's folder, if it is not the usual one.")
@click.option("--force", is_flag=True, help="Replace a configuration that is there.")
@click.option("--dry-run", is_flag=True, help="Write nothing; print what would be written.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def init(
    config_path: Path,
    socket: str,
    haproxy_cfg: Path | None,
    backends: tuple[str, ...],
    listen: str,
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    state_dir: str,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Find HAProxy's admin socket, backends and servers, and write a configuration in observe mode.

    Prints what each backend lacks to be driven, lets the web servers log in to the bus, and prints the commands that
    set each of them up. Where --listen is an address that other machines reach and no certificate is named, it makes
    one beside the configuration, and the authority that signs it. HAProxy itself is not changed. A configuration that
    is there is left alone. The exit status is 1, and nothing is written, if no backend can be driven.
    """
    files = [str(Path(file).absolute()) if file else "" for file in (tls_cert, tls_key, tls_ca)]
    asked = Wishes(backends, str(Path(state_dir).absolute()) if state_dir else "", listen, *files)
    wishes = with_certificate(asked, config_path.parent)
    if config_path.exists() and not (force or dry_run):
        raise InitError(f"{config_path} is there already; --force replaces it, --dry-run shows what would be written")
    configuration = _configuration(haproxy_cfg)
    haproxy = survey(*find_socket(socket, configuration), configuration, ASK_WITHIN_S)
    if (count := sum(len(backend.servers) for backend in haproxy.backends)) >= MANY:
        click.echo(f"{count:,} servers in {len(haproxy.backends):,} backends: this takes some seconds", err=True)
    unknown = set(backends) - {backend.name for backend in haproxy.backends}
    if unknown:
        known = ", ".join(backend.name for backend in haproxy.backends) or "none with servers"
        raise InitError(f"{haproxy.socket}: no backend `{min(unknown)}`; HAProxy has: {known}")
    pools, left_out = choose(haproxy, wishes)
    if not pools:
        reasons = [f"{backend.backend}: {backend.why}" for backend in left_out] or [
            "HAProxy has no backend with servers"
        ]
        raise InitError("no backend can be driven:\n  " + "\n  ".join(reasons))
    text = settings_text(haproxy, pools, wishes)
    settings = parse(text, str(config_path))
    named = "" if config_path == Path(DEFAULT_CONFIG) else str(config_path.absolute())
    new = [ListedNode(pool.name, node.name) for pool in pools for node in pool.nodes]
    _with_nodes(nats_server.nodes_of(settings), new)  # refuses before anything is written
    certificate: list[str] = []
    if not dry_run:
        if wishes != asked:
            certificate = make_certificate(settings, config_path.parent, _write)
        nats_server.change_nodes(settings, lambda nodes: _with_nodes(nodes, new))
        _write(config_path, text, 0o640)
    result = InitResult(
        config=str(config_path),
        written=not dry_run,
        text=text,
        haproxy=haproxy,
        pools=pools,
        left_out=left_out,
        certificate=certificate,
        login=[] if exists(Path(settings.state_dir) / "web-users.json") else [_login_command(named)],
        missing=_missing(haproxy, pools, settings),
        nodes=[
            NodeLines(node.name, pool.name, lines_for(node, settings.bus_folder / "passwords", wishes.tls_ca, named))
            for pool in pools
            for node in pool.nodes
        ],
    )
    click.echo(msgspec.json.encode(result).decode() if as_json else _as_text(result, settings))


def _with_nodes(nodes: list[ListedNode], new: list[ListedNode]) -> list[ListedNode]:
    """The nodes with the new ones. Raises ConfigError where two have the same name."""
    together = dict.fromkeys([*nodes, *new])
    return parse_nodes("".join(f"{node.pool} {node.name}\n" for node in together), "the list of nodes")


def _configuration(named: Path | None) -> SiteConfiguration:
    if named is None and not USUAL_CONFIGURATION.exists():
        running = started()
        return read_configuration(Path(running[0].files[0])) if len(running) == 1 else SiteConfiguration()
    return read_configuration(named or USUAL_CONFIGURATION)


def _write(path: Path, text: str, mode: int) -> None:
    """Writes a file whole or not at all. Where `mode` lets a group read it, that is the service's group; without one
    only the owner may read it."""
    with replacing(path, PRIVATE) as draft:
        if mode & 0o077 == 0o040 and os.geteuid() == 0 and in_hands_of(path) is None:
            with contextlib.suppress(KeyError):  # without the package
                os.chown(draft, 0, grp.getgrnam(SERVICE_USER).gr_gid)
                draft.chmod(mode)
        draft.write_text(text, encoding="utf-8")
        if mode & 0o004:
            draft.chmod(mode)


def _login_command(config: str) -> str:
    return f"slackwater web user add NAME --role operator{f' --config {shlex.quote(config)}' if config else ''}"


def _missing(haproxy: Survey, pools: list[NewPool], settings: ControllerSettings) -> list[str]:
    missing = list(haproxy.access)
    if _is_cut_off(pools, settings):
        here = f"{own_address(_hosts(pools))}:14222"
        missing.append(
            f"the web servers cannot reach the bus, which listens on {settings.bus.listen} for this machine alone: run"
            f" this again with --force --listen {here}, the address at which they reach this host; it makes a"
            " certificate too, unless --tls-cert, --tls-key and --tls-ca name yours"
        )
    return missing


def _hosts(pools: list[NewPool]) -> list[str]:
    return [node.host for pool in pools for node in pool.nodes if node.host]


def _is_cut_off(pools: list[NewPool], settings: ControllerSettings) -> bool:
    return reached_from_outside(pools) and is_loopback(settings.bus.listen)


def _as_text(result: InitResult, settings: ControllerSettings) -> str:
    haproxy = result.haproxy
    lines = [f"HAProxy {haproxy.version}, admin socket {haproxy.socket} ({haproxy.found_by})", ""]
    left_out = {backend.backend: backend.why for backend in result.left_out}
    for backend in haproxy.backends:
        lines += _about(backend, backend.name in {pool.name for pool in result.pools}, left_out.get(backend.name, ""))
    lines.append("")
    if result.written:
        lines.append(f"wrote {result.config}: observe mode, which sets no weight")
        lines.append(f"users of the bus: {len(result.nodes)} web servers, passwords in {settings.bus_folder}/passwords")
        lines += result.certificate
    else:
        lines += [f"would write {result.config}:", "", result.text.rstrip()]
    lines += ["", "On this host:"]
    lines += [f"  ✕ {text}" for text in result.missing]
    start = "systemctl reload" if running_serve(settings.state_dir) else "systemctl enable --now"
    lines += [
        f"  {start} {SERVICE}",
        *(f"  {command}   # the dashboard's buttons, such as pause, need a login" for command in result.login),
        "",
        "For each web server, from this host, after slackwater-node is installed there:",
    ]
    if _is_cut_off(result.pools, settings):
        return "\n".join([*lines, "  as soon as they can reach the bus"])
    for node in result.nodes:
        lines += [f"  # {node.node}", *(f"  {command}" for command in node.commands)]
    return "\n".join(lines)


def _about(backend: FoundBackend, is_pool: bool, why_not: str) -> list[str]:
    shown = [
        f"{server.name} {server.address or server.fqdn} weight {server.weight}{_configured(server)}"
        for server in backend.servers
        if not server.placeholder
    ]
    more = len(shown) - MOST_NAMES
    servers = ", ".join(shown[:MOST_NAMES] if more > 1 else shown) + (f" and {more} more" if more > 1 else "")
    balance = CONFIGURED.get(backend.balance, backend.balance)
    head = f"backend {backend.name}: balance {balance or '?'}; {servers}"
    if is_pool:
        warnings = list(backend.warnings)
        if is_local(backend):
            warnings.append(
                "all its servers are on this host, and each is taken for a machine of its own, as in a laboratory;"
                " where they share this one, give all of them one node in `servers`"
            )
        if unseen := [server.name for server in backend.servers if server.on_unix_socket]:
            warnings.append(
                f"HAProxy reaches {', '.join(unseen)} over a Unix socket, so on this host; its monitor sees no requests"
                " there, and no response times"
            )
        warnings += _port_warnings(backend)
        return [head, "  ✓ can be driven", *(f"  ! {text}" for text in warnings)]
    return [head, f"  ✕ left out: {why_not or 'not asked for'}"]


def _port_warnings(backend: FoundBackend) -> list[str]:
    """Warnings about servers whose port HAProxy takes from the client."""
    groups: dict[str, list[str]] = {}
    for server in backend.servers:
        if server.host and not (server.port or server.on_unix_socket):
            groups.setdefault(server.port_offset, []).append(server.name)
    warnings = []
    for offset, servers in groups.items():
        where = "no port in HAProxy, which takes the one that the client came in by"
        if offset:
            how = "adds {} to" if offset[0] == "+" else "takes {} from"
            where = f"HAProxy {how.format(offset[1:])} the port that the client came in by"
        warnings.append(
            f"{', '.join(servers)}: {where}; a monitor there looks at port 80, unless `--port` names another in the"
            " command below"
        )
    return warnings


def _configured(server: FoundServer) -> str:
    configured = server.configured_weight
    return "" if configured in (None, server.weight) else f" (configured: {configured})"
