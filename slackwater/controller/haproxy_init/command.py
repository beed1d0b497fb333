"""`slackwater init`: the first configuration of a controller, beside a running HAProxy."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path

import click
import msgspec

from slackwater.controller.capture import capture_remedy
from slackwater.controller.haproxy_init.bus_address import bus_section
from slackwater.controller.haproxy_init.first_settings import (
    LeftOut,
    NewPool,
    choose,
    is_local,
    only_machine,
    settings_text,
    unresolved_in,
)
from slackwater.controller.haproxy_init.site_files import (
    ASK_WITHIN_S,
    SERVICE,
    USUAL_CONFIGURATION,
    haproxy_configuration,
    other_haproxies,
    unless_usual,
    write_settings,
)
from slackwater.core.config import ConfigError, ControllerSettings, parse, read
from slackwater.core.files import exists
from slackwater.core.options import DEFAULT_CONFIG, config_option, json_option, tell
from slackwater.core.service_user import give_group
from slackwater.core.state_dir import running_serve
from slackwater.lbengine.backends.haproxy.site import SiteConfiguration, SurveyError
from slackwater.lbengine.backends.haproxy.survey import (
    FoundBackend,
    FoundServer,
    Survey,
    find_socket,
    survey,
)
from slackwater.lbengine.preflight import MOST_NAMES

MANY = 1000
"""From this number of servers on the survey takes seconds, which the person is told."""


class InitError(Exception):
    """Nothing was written. The text says why, and what to do."""


class InitResult(msgspec.Struct, frozen=True):
    """The survey's findings and what was done, for `--json`."""

    config: str
    written: bool
    text: str
    haproxy: Survey
    pools: list[NewPool]
    left_out: list[LeftOut]
    access: str
    """What was written to open HAProxy's socket to the controller, in words; empty: nothing."""
    login: list[str]
    """The command that lets a person use the dashboard's buttons; empty where somebody may already."""
    others: list[str]
    """Files of other HAProxies that run on this host; empty where those of this one are not known."""
    missing: list[str]
    """What is missing on this host, each with its remedy."""


@click.command(epilog="Example: slackwater init --backend web")
@config_option
@click.option("--socket", default="", metavar="PATH", help="HAProxy's admin socket; otherwise it is searched for.")
@click.option(
    "--haproxy-cfg",
    type=click.Path(path_type=Path),
    help=f"HAProxy's configuration, a file or a folder, to find the socket in.  [default: {USUAL_CONFIGURATION}, else"
    " what a running HAProxy was started with]",
)
@click.option("--backend", "backends", multiple=True, metavar="NAME", help="Only this backend; may be given again.")
@click.option("--state-dir", default="", metavar="DIR", help="The controller's folder, if it is not the usual one.")
@click.option("--force", is_flag=True, help="Replace a configuration that is there.")
@click.option("--dry-run", is_flag=True, help="Write nothing; print what would be written.")
@json_option
def init(
    config_path: Path,
    socket: str,
    haproxy_cfg: Path | None,
    backends: tuple[str, ...],
    state_dir: str,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Find HAProxy's admin socket, backends and servers, and write a configuration in observe mode.

    The web servers need nothing: each is known by what its HAProxy sees of it. Prints what each backend lacks to be
    driven. Where the controller's user lacks the group that opens the socket, a drop-in of its unit gives it. HAProxy
    itself is not changed. A configuration that is there is left alone; with --force its section [bus] stays, and so do
    the monitors that log in by it. The exit status is 1, and nothing is written, if no backend can be driven.
    """
    if state_dir and Path(state_dir).exists() and not Path(state_dir).is_dir():
        raise InitError(f"--state-dir: {state_dir}: not a folder")
    if config_path.exists() and not (force or dry_run):
        raise InitError(f"{config_path} is there already; --force replaces it, --dry-run shows what would be written")
    configuration = haproxy_configuration(haproxy_cfg)
    others = other_haproxies(configuration)
    try:
        haproxy = survey(*find_socket(socket, configuration), configuration, ASK_WITHIN_S)
    except SurveyError as error:
        raise SurveyError(
            str(error) if socket or haproxy_cfg else _and_others(str(error), configuration, others)
        ) from None
    if (count := sum(len(backend.servers) for backend in haproxy.backends)) >= MANY:
        click.echo(f"{count:,} servers in {len(haproxy.backends):,} backends: this takes some seconds", err=True)
    unknown = set(backends) - {backend.name for backend in haproxy.backends}
    if unknown:
        known = ", ".join(backend.name for backend in haproxy.backends) or "none with servers"
        raise InitError(f"{haproxy.socket}: no backend `{min(unknown)}`; HAProxy has: {known}")
    pools, left_out = choose(haproxy, backends)
    if not pools:
        reasons = [f"{backend.backend}: {backend.why}" for backend in left_out] or [
            "HAProxy has no backend with servers"
        ]
        raise InitError("no backend can be driven:\n  " + "\n  ".join(reasons))
    text = settings_text(haproxy, pools, str(Path(state_dir).absolute()) if state_dir else "")
    before = ""
    with contextlib.suppress(ConfigError):  # there is none yet, or none that can be read
        before = read(config_path)
    text += bus_section(before, config_path)
    settings = parse(text, str(config_path))
    named = unless_usual(config_path)
    access = ""
    if not dry_run:
        write_settings(config_path, text)
        access = _give_access(haproxy, config_path)
    result = InitResult(
        config=str(config_path),
        written=not dry_run,
        text=text,
        haproxy=haproxy,
        pools=pools,
        left_out=left_out,
        access=access,
        login=[] if exists(Path(settings.state_dir) / "web-users.json") else [_login_command(named)],
        others=others if configuration.place else [],
        missing=_missing(haproxy, access, settings),
    )
    tell(result, _as_text(result, settings), as_json)


def _and_others(error: str, configuration: SiteConfiguration, others: list[str]) -> str:
    """The error, with the files of the HAProxies that run; what to do comes first."""
    if not others:
        return error
    files = f"name one with --haproxy-cfg: {', '.join(others)}"
    if configuration.place:
        return f"{error}. Other HAProxies run here with these files; {files}"
    return f"HAProxies run here with files that are not {USUAL_CONFIGURATION}; {files}. Without one: {error}"


def _config_option(config: str) -> str:
    return f" --config {shlex.quote(config)}" if config else ""


def _login_command(config: str) -> str:
    return f"slackwater web user add NAME --role operator{_config_option(config)}"


def _give_access(haproxy: Survey, config_path: Path) -> str:
    """Opens the admin socket to the controller's service by a group, where it is root's to do; says so in words."""
    group = haproxy.access.group
    if not group or os.geteuid() != 0 or config_path != Path(DEFAULT_CONFIG):
        return ""
    return f"wrote {give_group(group)}: group {group} opens {haproxy.socket} to the controller"


def _missing(haproxy: Survey, given: str, settings: ControllerSettings) -> list[str]:
    missing = haproxy.access.lacks(is_given=bool(given))
    if settings.balancer_view.sniffer and (lacks := capture_remedy(settings)):
        missing.append(f"percentiles of response times need packets; without them there are means alone: {lacks}")
    return missing


def _as_text(result: InitResult, settings: ControllerSettings) -> str:
    haproxy = result.haproxy
    lines = [f"HAProxy {haproxy.version}, admin socket {haproxy.socket} ({haproxy.found_by})"]
    if result.others:
        lines.append(
            f"  ! other HAProxies run on this host, with {', '.join(result.others)}: their servers are not in this"
            " configuration. For one of them: --haproxy-cfg FILE. Where several are in front of the same servers, their"
            " admin sockets belong in one pool: one in `socket`, the others in `sockets`"
        )
    lines.append("")
    left_out = {backend.backend: backend.why for backend in result.left_out}
    for backend in haproxy.backends:
        lines += _about(backend, backend.name in {pool.name for pool in result.pools}, left_out.get(backend.name, ""))
    lines.append("")
    if result.written:
        lines.append(f"wrote {result.config}: observe mode, which sets no weight")
        lines += [result.access] if result.access else []
    else:
        lines += [f"would write {result.config}:", "", result.text.rstrip()]
    lines += ["", "On this host:"]
    lines += [f"  ✕ {text}" for text in result.missing]
    runs = running_serve(settings.state_dir)
    page = f", or http://{settings.web.listen}" if settings.web.listen else ""
    config = _config_option(unless_usual(Path(result.config)))
    lines += [
        f"  slackwater {'reload' if runs else 'serve'}{config}"
        if config
        else f"  systemctl {'reload' if runs else 'enable --now'} {SERVICE}",
        f"  slackwater status --watch{config}{page}   # each server's state, requests/s, response times and errors",
        *(f"  {command}   # the dashboard's buttons, such as pause, need a login" for command in result.login),
        "",
        "The web servers need nothing. Later,"
        f" `slackwater monitors{config}` adds a monitor on each, which tells the cause.",
    ]
    return "\n".join(lines)


def _about(backend: FoundBackend, is_pool: bool, why_not: str) -> list[str]:
    shown = [
        f"{server.name} {_place(server)} weight {server.weight}{_configured(server)}{' backup' * server.backup}"
        for server in backend.servers
        if not server.placeholder
    ]
    more = len(shown) - MOST_NAMES
    servers = ", ".join(shown[:MOST_NAMES] if more > 1 else shown) + (f" and {more} more" if more > 1 else "")
    head = f"backend {backend.name}: balance {backend.balance or '?'}; {servers or 'no server that is in use'}"
    if is_pool:
        warnings = list(backend.warnings)
        if is_local(backend):
            warnings.append(
                "all its servers are on this host, and each is taken for a machine of its own, as in a laboratory;"
                " where they share this one, give all of them one node in `servers`"
            )
        elif place := only_machine(backend):
            warnings.append(
                f"all its servers are on {place}: a noisy neighbour slows them alike, and no other machine can take"
                " their load"
            )
        if unseen := [server.name for server in backend.servers if server.on_unix_socket]:
            warnings.append(
                f"HAProxy reaches {', '.join(unseen)} over a Unix socket, so on this host: no packet shows its response"
                " times, here or to a monitor"
            )
        warnings += _port_warnings(backend)
        if unresolved := unresolved_in(backend):
            warnings.append(unresolved)
        if others := [server.name for server in backend.servers if server.protocol != "http1" and server.host]:
            warnings.append(
                f"{', '.join(others)}: no HTTP/1 in the clear, so packets may not tell response times. Over TLS they do"
                " once as many answers as requests were seen; of FastCGI, HTTP/2 and TCP there are HAProxy's own counts"
                " and mean at most"
            )
        return [head, "  ✓ can be driven", *(f"  ! {text}" for text in warnings)]
    return [head, f"  ✕ left out: {why_not or 'not asked for'}"]


def _port_warnings(backend: FoundBackend) -> list[str]:
    """Warnings about servers whose port HAProxy takes from the client."""
    groups: dict[str, list[str]] = {}
    for server in backend.servers:
        if server.address and server.host and not (server.port or server.on_unix_socket):
            groups.setdefault(server.port_offset, []).append(server.name)
    warnings = []
    for offset, servers in groups.items():
        where = "no port in HAProxy, which takes the one that the client came in by"
        if offset:
            how = "adds {} to" if offset[0] == "+" else "takes {} from"
            where = f"HAProxy {how.format(offset[1:])} the port that the client came in by"
        warnings.append(
            f"{', '.join(servers)}: {where}; so no packet shows response times from here, and HAProxy's mean alone is"
            " shown: give the server a port in HAProxy's configuration. A monitor there looks at port 80, unless"
            " `slackwater bus node settings` names another with `--port`"
        )
    return warnings


def _place(server: FoundServer) -> str:
    if not server.address:
        return f"{server.fqdn} (no address yet)"
    return (
        server.address.removesuffix(":0") if server.address.count(":") == 1 or "]" in server.address else server.address
    )


def _configured(server: FoundServer) -> str:
    configured = server.configured_weight
    return "" if configured in (None, server.weight) else f" (configured: {configured})"
