"""The controller's settings, declared once; the node's are declared in Rust, in `monitor/src/config.rs`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from slackwater.core.config.balancer_view import BalancerViewSettings
from slackwater.core.config.kinds import (
    HEADER_PATTERN,
    URL_PATTERN,
    WEB_URL_PATTERN,
    Address,
    ConfigError,
    FilePath,
    OptionalAddress,
    Positive,
    Settings,
    host_and_port,
    is_loopback,
    is_loopback_host,
)
from slackwater.core.config.node_changes import GovernorSettings, RetuneSettings
from slackwater.core.config.otlp import OtlpSettings
from slackwater.core.config.replace import ReplaceSettings
from slackwater.core.messages import Mode, Name, ServerName, Switchable

Law = Literal["optimal", "ice"]
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

    @property
    def needs_tls(self) -> bool:
        """Whether nothing may be said on a connection that is not encrypted."""
        return bool(self.tls_ca) or self.address.startswith("tls://")

    @property
    def has_password(self) -> bool:
        """Whether we have a secret that others could read on such a connection."""
        return bool(self.password_file or self.control_password_file) or "@" in self.address

    def __post_init__(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("`tls_cert` and `tls_key` must be set together")
        if self.url:
            try:
                urlsplit(self.url).port  # noqa: B018  # it is read for its errors
            except ValueError:
                expected = "expected nats://HOST:PORT or tls://HOST:PORT, an IPv6 address in brackets"
                raise ValueError(f"`url`: {expected}") from None  # without the URL, which may have a password
            if self.has_password and not self.needs_tls and not is_loopback_host(urlsplit(self.url).hostname or ""):
                raise ValueError(
                    "`url` would send the password in the clear to another machine: tls://HOST:PORT encrypts, and with"
                    " `tls_ca` nats:// does too"
                )
            return
        if self.tls_ca and not self.tls_cert:
            raise ValueError("`tls_ca` demands TLS, and the private nats-server has none: set `tls_cert` and `tls_key`")
        if not self.tls_cert and not is_loopback(self.listen):
            raise ValueError(
                f"`listen` {self.listen} is reached from other machines: set `tls_cert` and `tls_key`, so that no"
                " password is sent in the clear; or listen on 127.0.0.1, or name a NATS of your own in `url`"
            )
        if self.tls_cert and host_and_port(self.listen)[0] in ("0.0.0.0", "::"):
            raise ValueError(f"`listen` {self.listen}: expected the address or name that the certificate is for")


class OwnBusSettings(BusSettings, frozen=True):
    """The nats-server that `slackwater serve` runs, as `url`, to log in to it: it is of the controller's user."""


class PoolSettings(Settings, frozen=True):
    """The settings that every pool has. Each balancer adds its own (`slackwater/core/config/balancers.py`)."""

    title: ClassVar[str] = ""
    """The balancer's name in texts."""
    needs: ClassVar[str] = ""
    """What the balancer is and which settings it requires, for the help of `balancer`."""
    patterns: ClassVar[Mapping[str, str]] = {}
    """The patterns of its settings in words, as in PATTERNS_IN_WORDS."""

    name: Annotated[Name, Meta(description="the pool's name, as the nodes give it in their Samples")]
    mode: Annotated[Mode, Meta(description="observe: decide and record, set nothing; act: set weights")] = "observe"
    law: Annotated[
        Law,
        Meta(description="optimal: least mean response time; ice: keep the predicted CPU below u_threshold"),
    ] = "optimal"
    u_threshold: Annotated[float, Meta(gt=0, le=1, description="CPU share that the law keeps each server below")] = 0.9
    max_mitigated: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="at most this share of the pool is drained at a time: below a tenth of its baseline"
            " (blast radius)",
        ),
    ] = 0.5
    causes_off: Annotated[
        list[Switchable], Meta(description="causes that change no weight: `errors`, `own_limit`, `warm_up`")
    ] = msgspec.field(default_factory=list)
    balance_capacity: Annotated[
        bool, Meta(description="give unequal servers weights in calm that fill them alike; false: only advise these")
    ] = False
    balance_step_s: Annotated[
        Positive, Meta(description="least time between two steps of these weights, of a tenth of the baseline at most")
    ] = 3600.0
    target_p95_ms: Annotated[
        float, Meta(ge=0, description="target of the p95 of response time, for the dashboard; 0: none")
    ] = 0.0
    target_p99_ms: Annotated[float, Meta(ge=0, description="the same for p99; 0: none")] = 0.0
    servers: Annotated[
        dict[ServerName, Name],
        Meta(
            description="server name in the balancer -> node name, where the two differ; with IPVS a server's name is"
            " its address (`10.0.0.11:80`)"
        ),
    ] = msgspec.field(default_factory=dict)
    zones: Annotated[
        dict[Name, Name], Meta(description="node name -> its zone, to search and group by on the page Fleet")
    ] = msgspec.field(default_factory=dict)
    machine_types: Annotated[dict[Name, Name], Meta(description="node name -> its machine type, for the same")] = (
        msgspec.field(default_factory=dict)
    )

    @classmethod
    def word(cls) -> str:
        """The balancer's word in the file, which is the struct's tag; empty where it is no balancer's."""
        return str(cls.__struct_config__.tag or "")

    @property
    def balancer(self) -> str:
        return self.word()

    @property
    def driven(self) -> dict[str, str]:
        """What is driven: the settings that tell it from all else, in the form that a baseline file keeps."""
        return {}

    @classmethod
    def from_driven(cls, driven: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that `driven` was made of."""
        return dict(driven)

    @classmethod
    def describe_place(cls, driven: Mapping[str, str]) -> str:
        """`driven` in words."""
        return f"{cls.title} {dict(driven)}"

    @property
    def place(self) -> str:
        """What is driven, in words."""
        return self.describe_place(self.driven)

    @property
    def unique(self) -> list[tuple[str, str]]:
        """What no two pools may share: the setting, and what it is in words."""
        return []


class DetectorSettings(Settings, frozen=True):
    """How Samples become Verdicts."""

    model: Annotated[str, Meta(description="model file (.skops); empty: the shipped one")] = ""
    tick_s: Annotated[Positive, Meta(description="new Samples are judged at once, but not more often than this")] = 0.05
    stale_after_s: Annotated[
        Positive, Meta(description="a node is `unknown` when its next Sample is this much later than it said")
    ] = 1.0
    calm_dwell_s: Annotated[
        Positive,
        Meta(
            description="how long a node must at least look calm for its episode to end; up to four times that, but "
            "not beyond 4 s, where episodes follow each other within 10 s"
        ),
    ] = 1.8
    false_episodes_per_node_day: Annotated[
        Positive,
        Meta(
            description="how many episodes may begin on a calm node in a day; fewer take more evidence, so each begins "
            "later"
        ),
    ] = 1.0


class LbengineSettings(Settings, frozen=True):
    """How Verdicts become weights."""

    cycle_s: Annotated[Positive, Meta(description="how often the balancer is read and reconciled")] = 0.2
    lease_s: Annotated[Positive, Meta(description="without Verdicts for this long: back to the baseline weights")] = 3.0
    min_change: Annotated[
        float, Meta(ge=0, le=1, description="changes smaller than this share of the baseline are not sent")
    ] = 0.05
    socket_timeout_s: Annotated[
        Positive,
        Meta(description="how long the balancer may take to answer; a hung lbengine is noticed after twice this"),
    ] = 1.0
    hooks: Annotated[
        list[FilePath],
        Meta(description="programs called with JSON on stdin when an episode begins or ends and after each change"),
    ] = msgspec.field(default_factory=list)
    hook_timeout_s: Annotated[Positive, Meta(description="a hook that runs longer is killed")] = 5.0


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
    ] = msgspec.field(default_factory=list)
    proxy_user_header: Annotated[
        str,
        Meta(
            pattern=HEADER_PATTERN,
            description="header in which a proxy of `proxies` names the logged-in person, such as X-Remote-User;"
            " believed with the secret of `proxy_secret_file` only. Empty: none is",
        ),
    ] = ""
    proxy_secret_file: Annotated[
        str,
        Meta(
            description="file with a secret of 16 characters or more, closed to others, that the proxies send as"
            " X-Slackwater-Secret; without it no header of theirs counts. Empty: they are known by address alone"
        ),
    ] = ""
    proxies: Annotated[
        list[str],
        Meta(description="addresses of proxies in front of it, whose X-Forwarded-For counts; on loopback too"),
    ] = msgspec.field(default_factory=list)
    proxy_operators: Annotated[
        list[str], Meta(description="people named by the proxy who are operators; the others are viewers")
    ] = msgspec.field(default_factory=list)
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
    balancer_view: BalancerViewSettings = BalancerViewSettings()
    retune: RetuneSettings = RetuneSettings()
    replace: ReplaceSettings = ReplaceSettings()
    governor: GovernorSettings = GovernorSettings()
    web: WebSettings = WebSettings()
    journal: JournalSettings = JournalSettings()
    otlp: OtlpSettings = OtlpSettings()

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
        return OwnBusSettings(self.bus.address, user=user, password_file=str(password_file), tls_ca=self.bus.tls_ca)

    def governor_problem(self, has_target: bool = False) -> tuple[str, str] | None:
        """What the governor lacks, or shares with the second stage: the setting's key, and the text.

        Each knob has one owner. `has_target`: one is given elsewhere.
        """
        governor, retune = self.governor, self.retune
        if governor.mode == "off":
            return None
        if not has_target and not any(pool.target_p95_ms for pool in self.pool):
            return "mode", "governor.mode: no pool has a `target_p95_ms`, which the governor is to meet"
        if governor.mode == "act" and not retune.order_key:
            return "mode", 'governor.mode = "act" needs `retune.order_key`, the key that signs Orders'
        shared = sorted(governor.owns.difference(retune.leave_alone))
        if retune.mode == "off" or not shared:
            return None
        both = ", ".join(f'"{knob}"' for knob in sorted(governor.owns.union(retune.leave_alone)))
        return "knobs", (
            f"the governor and the second stage would both set {', '.join(shared)}; each knob has one owner: add to"
            f" [retune] `leave_alone = [{both}]`, or take them out of governor.knobs"
        )

    def the_pool(self, name: str | None) -> PoolSettings:
        """The pool of this name; without a name the only one. Raises ConfigError."""
        known = ", ".join(pool.name for pool in self.pool)
        if name is None:
            if len(self.pool) > 1:
                raise ConfigError(f"there are several pools, name one with --pool: {known}")
            return self.pool[0]
        for pool in self.pool:
            if pool.name == name:
                return pool
        raise ConfigError(f"no pool `{name}`; the configuration has: {known}")
