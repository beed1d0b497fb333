"""The effect of weights under each of IPVS's schedulers.

Each row was shown by traffic through a real scheduler (Linux 6.1) in tests/lbengine/test_ipvs_traffic.py;
docs/reference/balancing-lvs.md has the split of each run.
"""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.core.messages import WeightsMean

SH_BUCKETS = 256
"""Size of `sh`'s table (IP_VS_SH_TAB_SIZE)."""


@dataclass(frozen=True)
class Scheduler:
    """A scheduler of IPVS."""

    weights_mean: WeightsMean
    """share: of new connections. concurrency: of the connections held at a time. keys: of the hash table's keys."""
    refused: str = ""
    """Why it cannot be driven, in words; empty where it can."""
    fallback: str = ""
    """The flag without which a server of weight 0 still owns keys, and refuses their connections."""
    port_flag: str = ""
    """The flag that makes the client's port part of the key."""
    most_weights: int | None = None
    """The highest sum of the weights; None: no limit."""
    serves_in_runs: bool = False
    """A lowered server gets no connections for a while, then its full share. The runs are longer the larger the weights
    are."""


SCHEDULERS = {
    "wrr": Scheduler("share", serves_in_runs=True),
    "wlc": Scheduler("concurrency"),
    "sed": Scheduler("concurrency"),
    "nq": Scheduler("concurrency"),
    "sh": Scheduler("keys", fallback="sh-fallback", port_flag="sh-port", most_weights=SH_BUCKETS),
    "mh": Scheduler("keys", fallback="mh-fallback", port_flag="mh-port"),
    "rr": Scheduler("none", "it ignores every weight but 0; use `wrr`"),
    "lc": Scheduler("none", "it ignores every weight but 0; use `wlc`"),
    "dh": Scheduler("none", "it chooses by the virtual address and ignores weights; use `mh` or `wrr`"),
    "fo": Scheduler("none", "it sends everything to the highest weight, so a small change moves all; use `wrr`"),
    "ovf": Scheduler("none", "its weights are limits of connections, the rest of which it refuses; use `wlc`"),
    "lblc": Scheduler("none", "it keeps each virtual address on one server, whatever the weights; use `wlc`"),
    "lblcr": Scheduler("none", "it keeps each virtual address on one server, whatever the weights; use `wlc`"),
}


def refusal(scheduler: str, flags: frozenset[str], weights: int) -> str:
    """Why a service cannot be driven, in words; empty when it can. `weights`: sum of its servers' weights."""
    row = SCHEDULERS.get(scheduler)
    if row is None:
        driven = ", ".join(name for name, known in SCHEDULERS.items() if not known.refused)
        return f"scheduler `{scheduler}` is not known here; expected one of {driven}"
    if row.refused:
        return f"scheduler `{scheduler}` cannot be driven: {row.refused}"
    if row.fallback and row.fallback not in flags:
        return (
            f"scheduler `{scheduler}` without `{row.fallback}` refuses the connections of a server at weight 0; add it"
            f" (`ipvsadm -E ... -s {scheduler} -b {','.join(sorted({*flags, row.fallback}))}`)"
        )
    if row.most_weights is not None and weights > row.most_weights:
        return (
            f"scheduler `{scheduler}` has a table of {row.most_weights} places, which weights that sum up to {weights}"
            f" overflow: the last servers get less than their share; use smaller weights, as 20 for each"
        )
    return ""


def warnings(scheduler: str, flags: frozenset[str], persistent_s: int | None, quiescent_expire: bool) -> list[str]:
    """Reasons in words why less load moves than the weights say."""
    row = SCHEDULERS[scheduler]
    limits = []
    if row.weights_mean == "keys":
        moved = "sh moves keys between all servers when a weight changes" if scheduler == "sh" else ""
        key = "connections" if row.port_flag in flags else f"clients (without `{row.port_flag}`)"
        limits.append(
            f"with scheduler `{scheduler}`, weights move a share of the {key}"
            + (f"; {moved}, `mh` only to or from the changed one" if moved else "")
        )
    if persistent_s is not None:
        limits.append(
            f"persistence keeps known clients on their server for {persistent_s} s after their last connection, so"
            " less load moves"
        )
        if not quiescent_expire:
            limits.append(
                "a server at weight 0 keeps its known clients; set `sysctl net.ipv4.vs.expire_quiescent_template=1`"
            )
    return limits
