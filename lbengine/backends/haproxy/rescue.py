"""HAProxy's own retry of a slow GET or HEAD on another server, and the lines of its configuration that it takes.

HAProxy chooses the server after its `http-request` rules, so the time-out (`http-request set-timeout server`) holds for
all GET and HEAD requests of the backend while it is armed, not only for those to one server. Who arms it is an entry of
a stick table: 0 is off. HAProxy forgets an entry that nobody has set for `KEPT_S`, whoever has died. The budget is
counted in the same table, so it holds without anybody looking on.

HAProxy Configuration Manual: sections 4.2 (`retry-on`, `retries`, `option redispatch`), 4.3 (`disable-l7-retry`,
`set-timeout`, `track-sc`, `sc-inc-gpc0`) and 11.1 (`stick-table`); Management Guide, section 9.3 (`set table`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lbengine.backends.haproxy.answers import count_of, facts_of, rows_of
from lbengine.balancer import BalancerError, RescueCounts

TABLE = "slackwater-rescue"
KEPT_S = 10
"""Also the time over which the budget is counted."""
OLDEST = (3, 0)
"""Before, the time-out cannot be taken back when the response begins, so a pause in its body would cut it off."""
ONE_IN = 50
"""At most one request of so many is sent twice."""


class Asks(Protocol):
    """An admin socket."""

    path: str
    backend: str

    def ask(self, *commands: str) -> list[str]: ...


TABLE_SECTION = (
    f"backend {TABLE}",
    f"    stick-table type string len 128 size 64 expire {KEPT_S}s store gpt0,conn_cur,gpc0_rate({KEPT_S}s)",
)
"""Of haproxy.cfg, once for all backends."""


def backend_lines(backend: str) -> list[str]:
    """What haproxy.cfg needs in the section of a backend."""
    table, sent = f"({TABLE})", f"str({backend}.sent)"
    return [
        "    option redispatch 1",
        "    retries 1",
        "    retry-on conn-failure response-timeout",
        "    acl rescue var(txn.rescue_left) -m int gt 0",
        f"    http-request set-var(txn.rescue_ms) str({backend}),table_gpt0{table} if METH_GET {{ nbsrv gt 1 }}",
        f"    http-request set-var(txn.rescue_sent) {sent},table_gpc0_rate{table}",
        f"    http-request set-var(txn.rescue_open) {sent},table_conn_cur{table}",
        f"    http-request set-var(txn.rescue_left) be_sess_rate,mul({KEPT_S}),div({ONE_IN}),sub(txn.rescue_sent),"
        "sub(txn.rescue_open) if { var(txn.rescue_ms) -m int gt 0 }",
        "    http-request disable-l7-retry unless rescue",
        f"    http-request track-sc2 {sent} table {TABLE} if rescue",
        "    http-request set-timeout server var(txn.rescue_ms) if rescue",
        "    http-response set-timeout server be_server_timeout if rescue",
        "    http-after-response sc-inc-gpc0(2) if rescue { txn.conn_retries gt 0 }",
    ]


def lines(backend: str) -> list[str]:
    """Both, as they are in haproxy.cfg."""
    return [*TABLE_SECTION, f"backend {backend}", *backend_lines(backend)]


def arm(haproxy: Asks, timeout_ms: int) -> RescueCounts:
    """Sets the time-out until it is set again, at most `KEPT_S`; 0: none. Raises BalancerError."""
    where = f"{haproxy.path}: backend `{haproxy.backend}`"
    answer, stat = haproxy.ask(
        f"set table {TABLE} key {haproxy.backend} data.gpt0 {timeout_ms}", f"show stat {haproxy.backend} 2 -1"
    )
    if answer.strip() and timeout_ms:
        raise BalancerError(f"{where}: the rescue is not armed: {answer.strip()}")
    rows = rows_of(stat, where)
    if not rows:
        raise BalancerError(f"{where}: expected its line of `show stat`, got {stat[:80]!r}")
    return RescueCounts(*(count_of(rows[0], column, where) for column in ("wretr", "eresp")))


def lacks(haproxy: Asks) -> list[str]:
    """What HAProxy lacks for it, in words with the lines to add; whether the backend has its lines it does not show.

    Raises BalancerError.
    """
    info, table = haproxy.ask("show info", f"show table {TABLE}")
    where = f"{haproxy.path}: backend `{haproxy.backend}`"
    version = facts_of(info, where).get("Version", "")
    if not _is_new(version):
        oldest = ".".join(map(str, OLDEST))
        return [
            f"{where}: `rescue` needs HAProxy {oldest}, this is {version or '?'}: it would cut off responses that pause"
            " in their body"
        ]
    if f"table: {TABLE}, type: string" not in table:
        added = "\n".join(lines(haproxy.backend))
        return [f"{where}: `rescue` needs these lines in HAProxy's configuration, the first two once:\n{added}"]
    return []


def _is_new(version: str) -> bool:
    numbers = version.split("-")[0].split(".")[:2]
    return all(one.isdecimal() for one in numbers) and tuple(map(int, numbers)) >= OLDEST


def summed(counts: Sequence[RescueCounts]) -> RescueCounts:
    """Of several HAProxies."""
    return RescueCounts(sum(one.sent_twice for one in counts), sum(one.failed for one in counts))
