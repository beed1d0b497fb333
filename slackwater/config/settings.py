"""The controller's settings, declared once; the node's are declared in Rust, in `monitor/src/config.rs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from slackwater.config.kinds import (
    HEADER_PATTERN,
    TCP,
    URL_PATTERN,
    WEB_URL_PATTERN,
    Address,
    ConfigError,
    FilePath,
    OptionalAddress,
    Positive,
    Service,
    Socket,
    host_and_port,
    is_loopback,
)
from slackwater.messages import Mode, Name


class Settings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Base of all sections: an unknown key is an error."""


Law = Literal["optimal", "tail", "ice", "equalise"]
BALANCERS = {"haproxy": "HAProxy", "lvs": "IPVS", "keepalived": "keepalived"}
"""The balancers' names in texts."""


CONTROLLER = "slackwater-controller"
"""The user of the controller's parts at the bus."""
CONTROL = "slackwater-control"
"""The user of people's commands at the bus: it alone may publish them, and it may do nothing else."""


class BusSettings(Settings, frozen=True):
    """NATS. Without `url`, `slackwater serve` starts a private nats-server on `listen`, with users of its own."""

    url: Annotated[
        str, Meta(pattern=URL_PATTERN, description="URL of the site's own NATS, nats://HOST:PORT; empty: a private one")
    ] = ""
    listen: Annotated[
        Address,
        Meta(description="HOST:PORT on which the private nats-server listens; one that others reach needs `tls_cert`"),
    ] = "127.0.0.1:14222"
    tls_cert: Annotated[
        str, Meta(description="the private nats-server's certificate (PEM), for the host in `listen`; empty: no TLS")
    ] = ""
    tls_key: Annotated[str, Meta(description="the certificate's key (PEM)")] = ""
    user: Annotated[str, Meta(description="user name at `url`, with password_file; empty: none")] = ""
    password_file: Annotated[str, Meta(description="file with the user's password, closed to others")] = ""
    control_user: Annotated[
        str,
        Meta(
            description="user name at `url` for people's commands, with control_password_file; empty: as the controller"
        ),
    ] = ""
    control_password_file: Annotated[str, Meta(description="file with its password")] = ""
    tls_ca: Annotated[
        str, Meta(description="certificate authority (PEM) that a tls:// server must be of; empty: the machine's")
    ] = ""

    @property
    def address(self) -> str:
        """The URL that clients connect to."""
        return self.url or f"{'tls' if self.tls_cert else 'nats'}://{self.listen}"

    def __post_init__(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("`tls_cert` and `tls_key` must be set together")
        if self.url:
            return
        if not self.tls_cert and not is_loopback(self.listen):
            raise ValueError(
                f"`listen` {self.listen} is reached from other machines: set `tls_cert` and `tls_key`, so that no"
                " password is sent in the clear; or listen on 127.0.0.1, or name a NATS of your own in `url`"
            )
        if self.tls_cert and host_and_port(self.listen)[0] in ("0.0.0.0", "::"):
            raise ValueError(f"`listen` {self.listen}: expected the address or name that the certificate is for")


class PoolSettings(Settings, frozen=True):
    """One backend of one balancer."""

    name: Annotated[Name, Meta(description="the pool's name, as the nodes give it in their Samples")]
    balancer: Annotated[
        Literal["haproxy", "lvs", "keepalived"],
        Meta(
            description="what balances: haproxy (needs `backend` and `socket`), lvs (IPVS set up with ipvsadm; needs"
            " `service`) or keepalived (which owns the IPVS table; needs `service`)"
        ),
    ] = "haproxy"
    backend: Annotated[Name, Meta(description="HAProxy's name of the backend; required with HAProxy")] = ""
    socket: Annotated[
        Socket,
        Meta(
            description="HAProxy's admin socket (`stats socket PATH level admin`), required with HAProxy: a path;"
            " tcp://HOST:PORT needs `allow_tcp_socket`"
        ),
    ] = ""
    service: Annotated[
        Service,
        Meta(
            description="virtual service of IPVS as for ipvsadm, required with lvs and keepalived: `-t 10.0.0.1:80`,"
            " `-u [fd00::1]:53`, `-f 7`, `-f 7 -6`"
        ),
    ] = ""
    sockets: Annotated[
        list[Socket],
        Meta(description="admin sockets of further HAProxy processes or hosts with this backend; they get the same"),
    ] = []
    allow_tcp_socket: Annotated[
        bool,
        Meta(description="accept admin sockets on TCP addresses; they have no login: who reaches one controls HAProxy"),
    ] = False
    weight_delivery: Annotated[
        Literal["socket", "agent-check"],
        Meta(
            description="how HAProxy gets its weights: by the admin socket, or by agent-check from the nodes' monitors"
            " (`agent.listen` there), so that the socket is only read and `level operator` is enough"
        ),
    ] = "socket"
    mode: Annotated[Mode, Meta(description="observe: decide and record, touch nothing; act: set the weights")] = (
        "observe"
    )
    law: Annotated[
        Law,
        Meta(
            description="optimal: least mean response time; tail: least p99; ice: keep predicted CPU below u_threshold;"
            " equalise: the same predicted utilisation everywhere"
        ),
    ] = "optimal"
    u_threshold: Annotated[float, Meta(gt=0, le=1, description="CPU share that the law keeps each server below")] = 0.8
    max_mitigated: Annotated[
        float, Meta(gt=0, le=1, description="at most this share of the pool is reduced at a time (blast radius)")
    ] = 0.5
    target_p95_ms: Annotated[
        float, Meta(ge=0, description="target of the p95 of response time, for the dashboard; 0: none")
    ] = 0.0
    target_p99_ms: Annotated[float, Meta(ge=0, description="the same for p99; 0: none")] = 0.0
    servers: Annotated[
        dict[Name, Name],
        Meta(
            description="server name in the balancer -> node name, where the two differ; with IPVS a server's name is"
            " its address (`10.0.0.11:80`)"
        ),
    ] = {}

    def __post_init__(self) -> None:
        if self.balancer == "haproxy":
            missing, foreign = [key for key in ("backend", "socket") if not getattr(self, key)], ["service"]
        else:
            missing = [] if self.service else ["service"]
            foreign = ["backend", "socket", "sockets", "allow_tcp_socket"] + ["weight_delivery"] * (
                self.weight_delivery != "socket"
            )
        if missing:
            raise ValueError(f'`{missing[0]}` is missing, which `balancer = "{self.balancer}"` needs')
        if given := [key for key in foreign if getattr(self, key)]:
            others = '"lvs" or "keepalived"' if self.balancer == "haproxy" else '"haproxy"'
            raise ValueError(
                f'`{given[0]}` does not go with `balancer = "{self.balancer}"`, only with {others}; remove one of them'
            )
        if len(set(self.all_sockets)) < len(self.all_sockets):
            raise ValueError(f"`socket` and `sockets` name one twice: {', '.join(self.all_sockets)}")
        if any(socket.startswith(TCP) for socket in self.all_sockets) and not self.allow_tcp_socket:
            raise ValueError(
                "an admin socket on a TCP address has no login, so anyone who reaches it controls HAProxy;"
                " keep it in a closed network and set `allow_tcp_socket = true`, or use a path"
            )

    @property
    def all_sockets(self) -> list[str]:
        """Of every HAProxy that this pool is behind, the first one first."""
        return [self.socket, *self.sockets] if self.socket else []

    @property
    def balancer_name(self) -> str:
        """The balancer's name in texts."""
        return BALANCERS[self.balancer]

    @property
    def place(self) -> str:
        """What is driven, in words."""
        return place_in_words(self.balancer, self.service, self.backend, ", ".join(self.all_sockets))


def place_in_words(balancer: str, service: str, backend: str, sockets: str) -> str:
    """What is driven: IPVS's service, or a backend behind HAProxy's sockets."""
    if service:
        return f"{BALANCERS.get(balancer, balancer)}'s service `{service}`"
    return f"backend `{backend}` behind {sockets}"


class DetectorSettings(Settings, frozen=True):
    """How Samples become Verdicts."""

    model: Annotated[str, Meta(description="model file (.skops); empty: the shipped one; `thresholds`: none")] = ""
    tick_s: Annotated[Positive, Meta(description="how often new Samples are judged")] = 0.05
    stale_after_s: Annotated[Positive, Meta(description="a node without Samples for this long is `unknown`")] = 1.0
    calm_dwell_s: Annotated[Positive, Meta(description="how long a node must look calm for its episode to end")] = 1.2


class LbengineSettings(Settings, frozen=True):
    """How Verdicts become weights."""

    cycle_s: Annotated[Positive, Meta(description="how often the balancer is read and reconciled")] = 0.2
    lease_s: Annotated[Positive, Meta(description="without Verdicts for this long: back to the baseline weights")] = 3.0
    ramp_s: Annotated[Positive, Meta(description="time for a server to come back from 0 to its baseline weight")] = 1.5
    min_change: Annotated[
        float, Meta(ge=0, le=1, description="changes smaller than this share of the baseline are not sent")
    ] = 0.05
    max_falls_per_min: Annotated[
        int,
        Meta(
            ge=1,
            description="how often a minute Verdicts may turn a server's weight downwards; beyond that the lower weight"
            " is kept until the minute is over",
        ),
    ] = 6
    socket_timeout_s: Annotated[
        Positive,
        Meta(description="how long the balancer may take to answer; a hung lbengine is noticed after twice this"),
    ] = 1.0
    hooks: Annotated[
        list[FilePath],
        Meta(description="programs called with JSON on stdin when an episode begins or ends and after each change"),
    ] = []
    hook_timeout_s: Annotated[Positive, Meta(description="a hook that runs longer is killed")] = 5.0


class RetuneSettings(Settings, frozen=True):
    """The second stage: in long episodes the web servers themselves are retuned, through their wsengines."""

    mode: Annotated[
        Literal["off", "observe", "act"],
        Meta(
            description="off: no second stage; observe: record what it would do; act: give Orders to the nodes of pools"
            " that act too"
        ),
    ] = "off"
    order_key: Annotated[
        str, Meta(description="the private key (Ed25519, PEM, mode 0600) that signs Orders; required to act")
    ] = ""
    policy: Annotated[
        Literal["knowledge", "search"],
        Meta(description="knowledge: values by the knowledge base; search: by trying, and measuring response times"),
    ] = "knowledge"
    knowledge: Annotated[
        str, Meta(description="the knowledge base: a TOML file, severity -> factor or value for each knob; empty: ours")
    ] = ""
    long_after_s: Annotated[Positive, Meta(description="an episode that lasts longer enters the second stage")] = 30.0
    no_room_after_s: Annotated[Positive, Meta(description="the same if the other servers cannot carry the load")] = 5.0
    leave_after_s: Annotated[
        Positive, Meta(description="a node that is calm this long leaves it, and gets its own values back")
    ] = 10.0
    lease_s: Annotated[
        float, Meta(ge=3, le=600, description="an Order that is not renewed undoes itself after this time")
    ] = 60.0
    drain_s: Annotated[
        float, Meta(gt=0, le=20, description="how long requests in flight may take to end before a reload")
    ] = 10.0
    reload_min_interval_s: Annotated[float, Meta(ge=0, description="shortest time between two reloads of one node")] = (
        10.0
    )
    search_measure_s: Annotated[Positive, Meta(description="how long a search measures each try")] = 20.0
    calm_frequency: Annotated[
        str,
        Meta(
            description="what `cpu.frequency` is turned to on nodes that are calm with latency to spare: a governor, or"
            " kHz; empty: it is left alone"
        ),
    ] = ""
    calm_below_p95_ms: Annotated[
        float, Meta(ge=0, description="latency to spare: the node's p95 has been below this for a minute")
    ] = 0.0

    def __post_init__(self) -> None:
        if self.mode == "act" and not self.order_key:
            raise ValueError('`order_key` is missing, which `mode = "act"` needs')


class WebSettings(Settings, frozen=True):
    """The dashboard. `slackwater web user` manages its logins."""

    listen: Annotated[OptionalAddress, Meta(description="HOST:PORT; empty: no dashboard")] = "127.0.0.1:8099"
    read_without_login: Annotated[
        Literal["loopback", "always", "never"],
        Meta(
            description="who may read without a login: `loopback`: everyone, if it listens on loopback without `hosts`;"
            " `always`: everyone; `never`: nobody. Controls always need an operator's login"
        ),
    ] = "loopback"
    hosts: Annotated[
        list[str], Meta(description="names under which a TLS proxy in front of it is reached; others are refused")
    ] = []
    proxy_user_header: Annotated[
        str,
        Meta(
            pattern=HEADER_PATTERN,
            description="header in which a proxy of `proxies` names the logged-in person, such as X-Remote-User;"
            " empty: none is trusted",
        ),
    ] = ""
    proxies: Annotated[
        list[str],
        Meta(description="addresses of proxies whose headers are trusted, X-Forwarded-For too; loopback always is"),
    ] = []
    proxy_operators: Annotated[
        list[str], Meta(description="people named by the proxy who are operators; the others are viewers")
    ] = []
    grafana_url: Annotated[
        str,
        Meta(
            pattern=WEB_URL_PATTERN,
            description="URL of the Grafana dashboard; episodes then link to their time there. Empty: none",
        ),
    ] = ""
    session_h: Annotated[Positive, Meta(description="hours after which one has to log in again")] = 12.0


class JournalSettings(Settings, frozen=True):
    """What is kept, in `state_dir/journal.sqlite`."""

    keep_samples_h: Annotated[Positive, Meta(description="hours for which Samples are kept as they came")] = 24.0
    keep_minutes_d: Annotated[
        Positive, Meta(description="days for which their means of minutes and hours are kept, and episodes")
    ] = 90.0
    keep_changes_d: Annotated[
        Positive, Meta(description="days for which Changes are kept; of each node's own the newest 5000")
    ] = 730.0
    max_mb: Annotated[
        float,
        Meta(
            ge=10,
            description="megabytes that the journal stays under: nodes with very many Changes lose them first, then the"
            " oldest Samples go, the controller's Changes never",
        ),
    ] = 20_000.0
    min_free_mb: Annotated[
        float, Meta(ge=0, description="megabytes of the disk that the journal leaves free, by the same order")
    ] = 1000.0


class ControllerSettings(Settings, frozen=True):
    """The controller's file."""

    pool: Annotated[list[PoolSettings], Meta(min_length=1, description="the pools, one [[pool]] table each")]
    state_dir: Annotated[FilePath, Meta(description="folder for baselines, the journal and locks")] = (
        "/var/lib/slackwater"
    )
    bus: BusSettings = BusSettings()
    detector: DetectorSettings = DetectorSettings()
    lbengine: LbengineSettings = LbengineSettings()
    retune: RetuneSettings = RetuneSettings()
    web: WebSettings = WebSettings()
    journal: JournalSettings = JournalSettings()

    @property
    def bus_folder(self) -> Path:
        """Where the private nats-server's configuration, its list of nodes and its users' passwords are."""
        return Path(self.state_dir) / "bus"

    @property
    def controller_bus(self) -> BusSettings:
        """The bus as the controller's parts log in to it."""
        return self.bus if self.bus.url else self._private_bus(CONTROLLER)

    @property
    def control_bus(self) -> BusSettings:
        """The bus as people's commands log in to it."""
        bus = self.bus
        if not bus.url:
            return self._private_bus(CONTROL)
        if not bus.control_user:
            return bus
        return msgspec.structs.replace(bus, user=bus.control_user, password_file=bus.control_password_file)

    def _private_bus(self, user: str) -> BusSettings:
        password_file = self.bus_folder / "passwords" / f"{user}.password"
        return BusSettings(self.bus.address, user=user, password_file=str(password_file), tls_ca=self.bus.tls_ca)

    def the_pool(self, name: str | None) -> PoolSettings:
        """The pool of this name; without a name the only one. Raises ConfigError."""
        known = ", ".join(pool.name for pool in self.pool)
        if name is None:
            if len(self.pool) > 1:
                raise ConfigError(f"there are several pools, name one of them: {known}")
            return self.pool[0]
        for pool in self.pool:
            if pool.name == name:
                return pool
        raise ConfigError(f"no pool `{name}`; the configuration has: {known}")
