"""HAProxy's own retry of a slow GET or HEAD on another server, and the lines of its configuration that it takes.

HAProxy chooses the server after its `http-request` rules, so the time-out (`http-request set-timeout server`) holds for
all GET and HEAD requests of the backend while it is armed, not only for those to one server. Who arms it is an entry of
a stick table: 0 is off. HAProxy forgets an entry that nobody has set for `KEPT_S`, whoever has died. The budget is
counted in the same table, so it holds without anybody looking on. HAProxy has one number of retries for all reasons: a
request that may be sent again takes all of them out of the budget until it is answered, and then those that it needed.

HAProxy Configuration Manual: sections 4.2 (`retry-on`, `retries`, `option redispatch`), 4.3 (`disable-l7-retry`,
`set-timeout`, `track-sc`, `sc-add-gpc`), 7.3 (`cur_server_timeout`: 0 until somebody sets it) and 11.1 (`stick-table`);
Management Guide, section 9.3 (`set table`).
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
"""At most one attempt for so many requests is a further one."""
RETRIES = 3
"""Further attempts that a request may have, whatever for; HAProxy's own default."""
RETRY_ON = ("conn-failure", "empty-response", "response-timeout")


class Asks(Protocol):
    """An admin socket."""

    path: str
    backend: str
    proxy: str
    """What `show stat` finds the backend by."""

    def ask(self, *commands: str) -> list[str]: ...


TABLE_SECTION = (
    f"backend {TABLE}",
    f"    stick-table type string len 128 size 64 expire {KEPT_S}s store gpt0,conn_cur,gpc(1),gpc_rate(1,{KEPT_S}s)",
)
"""Of haproxy.cfg, once for all backends."""


def backend_lines(backend: str, own_retry_on: Sequence[str] = ()) -> list[str]:
    """What haproxy.cfg needs in the section of a backend.

    `own_retry_on`: the words of the `retry-on` that holds there already. Its retries go on for every GET and HEAD
    without a body, and then such a request is also sent again when the site's own time-out is over.
    """
    table, sent = f"({TABLE})", f"str({backend}.sent)"
    chunked = "{ req.hdr(transfer-encoding) -m found }"
    never = f"if !METH_GET or {{ req.body_size gt 0 }} or {chunked}" if own_retry_on else "unless rescue"
    return [
        "    option redispatch 1",
        f"    retries {RETRIES}",
        f"    retry-on {' '.join(dict.fromkeys((*own_retry_on, *RETRY_ON)))}",
        f"    acl rescue var(txn.rescue_left) -m int ge {RETRIES}",
        f"    http-request set-var(txn.rescue_ms) str({backend}),table_gpt0{table} if METH_GET {{ req.body_size eq 0 }}"
        f" !{chunked} {{ nbsrv gt 1 }}",
        "    http-request set-var(txn.rescue_own_ms) be_server_timeout",
        "    http-request set-var(txn.rescue_own_ms) cur_server_timeout if { cur_server_timeout gt 0 }",
        f"    http-request set-var(txn.rescue_sent) {sent},table_gpc_rate(0,{TABLE})",
        f"    http-request set-var(txn.rescue_open) {sent},table_conn_cur{table},mul({RETRIES})",
        f"    http-request set-var(txn.rescue_left) be_sess_rate,mul({KEPT_S}),div({ONE_IN}),sub(txn.rescue_sent),"
        "sub(txn.rescue_open) if { var(txn.rescue_ms) -m int gt 0 }"
        " { var(txn.rescue_own_ms),sub(txn.rescue_ms) -m int gt 0 }",
        f"    http-request disable-l7-retry {never}",
        f"    http-request track-sc2 {sent} table {TABLE} if rescue",
        "    http-request set-timeout server var(txn.rescue_ms) if rescue",
        "    http-response set-timeout server var(txn.rescue_own_ms) if rescue",
        "    http-after-response sc-add-gpc(0,2) txn.conn_retries if rescue",
    ]


MERGE = "    # Where a retry-on of your own holds: docs/reference/rescue.md says which two lines to merge with it."


def lines(backend: str) -> list[str]:
    """Both, as they are in haproxy.cfg."""
    return [*TABLE_SECTION, f"backend {backend}", MERGE, *backend_lines(backend)]


def arm(haproxy: Asks, timeout_ms: int) -> RescueCounts:
    """Sets the time-out until it is set again, at most `KEPT_S`; 0: none. Raises BalancerError."""
    where = f"{haproxy.path}: backend `{haproxy.backend}`"
    answer, stat = haproxy.ask(
        f"set table {TABLE} key {haproxy.backend} data.gpt0 {timeout_ms}", f"show stat {haproxy.proxy} 2 -1"
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
