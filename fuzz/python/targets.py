"""What the fuzzers of the Python decoders call: bytes that came from elsewhere go in, and nothing but the declared
error may come out. What a decoder accepts must also hold what it promises.
"""

from __future__ import annotations

import io
import logging
import math
import re
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from flask.testing import FlaskClient

import slackwater.lbengine.backends.table  # noqa: F401  (declares the balancers that a configuration can name)
from fuzz.python.bus_socket import bus_socket, bus_words
from slackwater.core import config, messages
from slackwater.core.bus.config import MAX_PAYLOAD_BYTES
from slackwater.core.bus.parts import payloads
from slackwater.core.messages import Cycle, MessageError
from slackwater.detector.features import sample_decoder
from slackwater.lbengine import describe
from slackwater.lbengine.backends.haproxy import answers
from slackwater.lbengine.backends.haproxy.haproxy import HAProxy
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.backends.haproxy.site import SiteConfiguration
from slackwater.lbengine.backends.haproxy.survey import backends_of
from slackwater.lbengine.backends.ipvs import table
from slackwater.lbengine.backends.keepalived import conf
from slackwater.lbengine.balancer import BalancerError, Snapshot
from slackwater.lbengine.decision.state import PoolState, PoolView
from slackwater.lbengine.decision.step import step
from slackwater.web import create_app
from slackwater.web.users import Users

ROOT = Path(__file__).resolve().parent.parent.parent
SEPARATOR = b"\0"
"""Between the parts of an input that has several."""


@dataclass(frozen=True)
class Target:
    """A decoder: what is called with an input, and words that its inputs are made of."""

    run: Callable[[bytes], None]
    words: Callable[[], Iterable[str]]
    is_json: bool = False


def expect(error: Exception, start: str) -> None:
    """An error's text begins with the place that it is about."""
    if re.match(start, str(error)) is None:
        raise AssertionError(f"expected {start!r} in front of: {error}")


# --- messages --------------------------------------------------------------------------------------------------


def message(data: bytes) -> None:
    """Samples, Verdicts, Orders, Weights, Changes, Cycles and Knobs."""
    for kind in messages.KINDS:
        try:
            decoded = messages.decode(kind, data)
        except MessageError as error:
            expect(error, f"{kind}: ")
            continue
        again = messages.encode(decoded)
        assert messages.encode(messages.decode(kind, again)) == again, "what is encoded is read as the same"
        assert all(map(math.isfinite, numbers(msgspec.to_builtins(decoded)))), "JSON has no other numbers"
    try:
        sample_decoder.decode(data)
    except MessageError as error:
        expect(error, "sample: ")


def numbers(value: object) -> Iterator[float]:
    """Those within a value, however deep."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for nested in value:
            yield from numbers(nested)
    elif isinstance(value, float):
        yield value


def message_words() -> set[str]:
    schemas = (ROOT / "schema").glob("*.json")
    keys = {key for file in schemas for key in names(msgspec.json.decode(file.read_bytes()))}
    return {f'"{key}":' for key in keys}


def names(schema: object) -> Iterator[str]:
    """The properties that a JSON schema names."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for nested in schema.values():
            yield from names(nested)
    elif isinstance(schema, list):
        for nested in schema:
            yield from names(nested)


# --- balancers -------------------------------------------------------------------------------------------------


class Wire(socket.socket):
    """A connection on which this comes, in pieces of 1 to 256 bytes, whatever is said."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._left = io.BytesIO(data)
        self._piece = 1 + (data[-1] if data else 0)

    def settimeout(self, value: float | None, /) -> None:
        """No time passes here."""

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        """Nobody listens."""

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:  # noqa: ARG002
        return self._left.read(min(self._piece, bufsize))


class WiredHAProxy(HAProxy):
    """Whatever it is asked, these bytes come."""

    def __init__(self, data: bytes) -> None:
        super().__init__("a socket", "web", 60.0)
        self._data = data

    def _connect(self) -> socket.socket:
        return Wire(self._data)


def haproxy_socket(data: bytes) -> None:
    """What comes on HAProxy's admin socket: answers to what is shown, to changes, and to many of them at once."""
    balancer = WiredHAProxy(data)
    uses: list[Callable[[], object]] = [
        lambda: published(balancer.read()),
        lambda: balancer.set_weights({"web1": 7}),
        lambda: balancer.set_maxconns({"web1": 7}),
        lambda: balancer.ask(*MANY_COMMANDS),
        lambda: surveyed(*balancer.ask("show stat", "show servers state")),
    ]
    for use in uses:
        try:
            use()
        except BalancerError as error:
            expect(error, "a socket: ")


MANY_COMMANDS = ["set server web/web1 weight 7"] * 300
"""More than fit into one line."""
POOL = HAProxyPool(name="web", backend="web", socket="/s")


def surveyed(stats: str, state: str) -> None:
    """As `slackwater init` reads them."""
    for _, _, servers in backends_of(stats, state, SiteConfiguration()):
        assert all(server.name for server in servers)


def published(snapshot: Snapshot) -> None:
    """An engine decides on what was read, and others can read the Cycle that it makes of it."""
    names = [server.name for server in snapshot.servers]
    assert len(set(names)) == len(names), "each server once"
    assert all(0 <= server.weight <= snapshot.most_weight for server in snapshot.servers)
    view = PoolView(now_s=1.0, snapshot=snapshot, verdicts={})
    state, actions = step(PoolState("acting"), view, POOL, config.LbengineSettings())
    sentence = describe.cycle(
        "web", state, snapshot, actions.decisions, [], actions.findings.remarks, {}, observing=False
    )
    cycle = Cycle(1, "web", 1.0, "act", False, snapshot.balance, "optimal", messages.shortened(sentence), [])
    cycle.servers = describe.servers(snapshot, actions.decisions, state, {}, {})
    for payload in payloads(cycle, "web", MAX_PAYLOAD_BYTES):
        messages.decode("cycle", payload)


def haproxy_words() -> list[str]:
    columns = [*answers.COLUMNS, *answers.STATE_COLUMNS]
    return [
        "# ",
        "\n\n",
        "> ",
        "type",
        "Pid: 1\n",
        "Uptime_sec: 1\n",
        "Stopping: 1\n",
        "BACKEND",
        "roundrobin",
        "1\n# ",
        *columns,
    ]


def ipvs_table(data: bytes) -> None:
    """What `ipvsadm` prints: `-Sn`, `-Ln --thresholds`, `-Ln --stats --exact`."""
    save, thresholds, stats, *_ = [*data.decode("utf-8", "replace").split("\0"), "", "", ""]
    try:
        entries = table.parse_save(save)
    except table.TableError:
        return
    for entry in entries:
        try:
            limits = table.parse_thresholds(thresholds, entry.service)
            table.parse_connections(stats, entry.service)
            table.parse_service_connections(stats, entry.service)
        except table.TableError:
            continue
        for destination in entry.destinations:
            none = table.Thresholds(0, 0, 0, 0)
            line = table.edit_line(entry.service, destination, limits.get(destination.address, none), 7)
            assert "\n" not in line, "one line for one real server"
            added = f"-A {entry.service}\n-a {line.removeprefix('-e ')}"
            (changed,) = table.parse_save(added)[0].destinations
            assert (changed.address, changed.weight) == (destination.address, 7)
            assert changed.options == destination.options


def ipvs_words() -> list[str]:
    listed = ["-A ", "-a ", "\n  -> RemoteAddress:Port", "\n  -> ", "TCP  10.0.0.1:80", "10.0.0.1:80", "rr", "\0"]
    return [*listed, *(f"{option} " for option in table.TAKE_A_VALUE), "FWM  7 IPv6", "-6"]


def keepalived_configuration(data: bytes) -> None:
    """keepalived.conf with what it includes."""
    first, second, *_ = [*data.decode("utf-8", "replace").split("\0"), ""]
    files = {"/etc/keepalived/keepalived.conf": first, "/etc/keepalived/other.conf": second}
    try:
        texts = conf.gather("/etc/keepalived/keepalived.conf", files.get, lambda path: [path] if path in files else [])
        conf.virtual_servers(texts)
    except conf.ConfigurationError as error:
        expect(error, "/etc/keepalived/")


def keepalived_words() -> list[str]:
    blocks = ["virtual_server", "virtual_server_group", "real_server", "track_file", "FILE_CHECK", "MISC_CHECK"]
    lines = ["include other.conf", "weight 1 reverse", "quorum 2", "protocol UDP", "ip_family inet6", "misc_dynamic"]
    parts = [
        "{",
        "}",
        "\n",
        "group ",
        "fwmark 7",
        "file /f",
        "10.0.0.1 80",
        "$A=",
        "${A}",
        "$A ",
        "@one ",
        "\\\n",
        "~SEQ(A,3) ",
    ]
    return [*(f"{block} a {{\n" for block in blocks), *lines, *parts]


# --- what people write -----------------------------------------------------------------------------------------


def configuration(data: bytes) -> None:
    """The controller's file."""
    try:
        config.parse(data.decode("utf-8", "replace"), "controller.toml")
    except config.ConfigError as error:
        expect(error, r"controller\.toml:[1-9][0-9]*: ")


def configuration_words() -> set[str]:
    sections = {f"[{name.rpartition('.')[0]}]\n" for name, *_ in config.describe()}
    return sections | {f"{name.rpartition('.')[2]} = " for name, *_ in config.describe()} | {"[[pool]]\n"}


@cache
def site() -> tuple[FlaskClient, str, list[str]]:
    """A dashboard over an empty journal, an operator's token, the paths that it serves."""
    folder = Path(tempfile.mkdtemp(prefix="slackwater-fuzz."))
    settings = config.parse(
        f'state_dir = "{folder}"\n[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/s"\n[web]\n', "fuzz"
    )
    token = Users(folder).add_token("fuzz", "operator")
    app = create_app(settings, clock=lambda: 1e9, send=lambda *_: "done")
    app.config["PROPAGATE_EXCEPTIONS"] = True
    logging.disable(logging.ERROR)
    return app.test_client(), token, [rule.rule for rule in app.url_map.iter_rules()]


def api(data: bytes) -> None:
    """A request to the dashboard: `METHOD PATH`, a NUL, the body."""
    line, _, body = data.partition(SEPARATOR)
    method, _, path = line.decode("latin-1").partition(" ")
    if method not in ("GET", "POST", "PUT", "DELETE", "HEAD") or not path.startswith("/") or path.startswith("//"):
        return
    if set(path) & set("\t\r\n"):
        return  # An HTTP server refuses them, and the client here would leave them out.
    client, token, _ = site()
    bearer = {"Authorization": f"Bearer {token}"}
    with client.open(path, method=method, data=body, content_type="application/json", headers=bearer) as answer:
        assert answer.status_code != 500, f"{method} {path}"
        if path.startswith("/api/v1/") and answer.is_json:
            msgspec.json.decode(answer.get_data())


def api_words() -> list[str]:
    _, _, paths = site()
    whole = [path.replace("<pool>", "web").replace("<node>", "web1") for path in paths]
    return [*(f"{method} {path}" for path in whole for method in ("GET", "POST")), "?pool=web", "&from=", "\0{", "%00"]


TARGETS = {
    "bus": Target(bus_socket, bus_words),
    "messages": Target(message, message_words, is_json=True),
    "haproxy": Target(haproxy_socket, haproxy_words),
    "ipvs": Target(ipvs_table, ipvs_words),
    "keepalived": Target(keepalived_configuration, keepalived_words),
    "configuration": Target(configuration, configuration_words),
    "api": Target(api, api_words),
}
