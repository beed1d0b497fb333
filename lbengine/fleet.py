"""Several HAProxies with the same backend, driven as one: several processes, or several hosts in front of one pool.

Each sends its share of the traffic, so load is summed over them and every one gets the same weights. One that does not
answer is left out, said so, and asked again now and then; when it is back it gets the weights of the others.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lbengine.haproxy import BalancerError, BalancerUnreachable, HAProxy, Server, Snapshot
from lbengine.reconcile import restarted

ASK_AGAIN_S = 2.0
"""A member that does not answer costs a timeout: it is asked this seldom."""
Result = TypeVar("Result")


class Fleet:
    """HAProxies as one balancer. `clock` is monotonic."""

    def __init__(self, members: Sequence[HAProxy], clock: Callable[[], float] = time.monotonic) -> None:
        self.members = members
        self._clock = clock
        self._asking = ThreadPoolExecutor(len(members), thread_name_prefix="fleet")
        self._last: dict[int, Snapshot] = {}
        """By member, as long as it answers."""
        self._away: dict[int, tuple[float, str]] = {}
        """By member that does not: when it was asked, and what happened."""
        self._generation = 0
        self._set: dict[str, int] = {}
        """Weights that were sent last: what differs from them is what is worth telling."""

    def read(self) -> Snapshot:
        """All that answer as one. Raises BalancerError when none does, or one is no such backend."""
        due = [
            n
            for n in range(len(self.members))
            if n not in self._away or self._clock() >= self._away[n][0] + ASK_AGAIN_S
        ]
        due = due or list(range(len(self.members)))
        answers = dict(zip(due, self._asking.map(lambda n: _attempt(self.members[n].read), due), strict=True))
        for n, answer in answers.items():
            if isinstance(answer, Snapshot) and not answer.stopping:
                if n not in self._last or restarted(self._last[n], answer):
                    self._generation += 1
                self._last[n] = answer
                self._away.pop(n, None)
            elif isinstance(answer, (Snapshot, BalancerUnreachable)):
                self._last.pop(n, None)
                why = f"{self.members[n].path}: HAProxy is stopping" if isinstance(answer, Snapshot) else str(answer)
                self._away[n] = (self._clock(), why)
            else:
                raise answer
        if not self._last:
            raise BalancerUnreachable("; ".join(why for _, why in self._away.values()))
        return merged(
            [self._last[n] for n in sorted(self._last)],
            self._set,
            self._generation,
            tuple(f"left out: {why}" for _, why in self._away.values()),
        )

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """To each that answered last, of the servers that it has. Raises BalancerError after all were tried."""
        self._set |= weights
        self._each(lambda member, names: member.set_weights({name: weights[name] for name in names}), weights)

    def set_maxconns(self, maxconns: Mapping[str, int]) -> None:
        """As `set_weights`."""
        self._each(lambda member, names: member.set_maxconns({name: maxconns[name] for name in names}), maxconns)

    def _each(self, work: Callable[[HAProxy, list[str]], None], values: Mapping[str, int]) -> None:
        def of(n: int) -> BalancerError | None:
            names = [server.name for server in self._last[n].servers if server.name in values]
            answer = _attempt(lambda: work(self.members[n], names)) if names else None
            return answer if isinstance(answer, BalancerError) else None

        errors = [error for error in self._asking.map(of, sorted(self._last)) if error is not None]
        if errors:
            kind = BalancerUnreachable if all(isinstance(error, BalancerUnreachable) for error in errors) else None
            raise (kind or BalancerError)("; ".join(str(error) for error in errors))


def _attempt(work: Callable[[], Result]) -> Result | BalancerError:
    try:
        return work()
    except BalancerError as error:
        return error


def merged(
    snapshots: Sequence[Snapshot], expected: Mapping[str, int], generation: int, trouble: tuple[str, ...] = ()
) -> Snapshot:
    """Several HAProxies' view of one pool as one. Where one shows another weight than `expected`, that one counts."""
    names = list(dict.fromkeys(server.name for snapshot in snapshots for server in snapshot.servers))
    servers = []
    for name in names:
        found = [server for snapshot in snapshots for server in snapshot.servers if server.name == name]
        servers.append(_one(found, expected.get(name, found[0].weight)))
    return dataclasses.replace(
        snapshots[0],
        connections=sum(snapshot.connections for snapshot in snapshots),
        cookie=next((snapshot.cookie for snapshot in snapshots if snapshot.cookie), ""),
        servers=tuple(servers),
        generation=generation,
        trouble=trouble,
    )


def _one(found: Sequence[Server], expected: int) -> Server:
    usable = [server for server in found if server.available]
    shown = next((server for server in usable or found if server.weight != expected), (usable or found)[0])
    limits = [server.maxconn for server in found if server.maxconn is not None]
    return dataclasses.replace(
        shown,
        in_flight=sum(server.in_flight for server in found),
        queued=sum(server.queued for server in found),
        requests=sum(server.requests for server in found),
        errors=sum(server.errors for server in found),
        rt_mean_ms=_mean([(server.rt_mean_ms, server.requests) for server in found]),
        queue_mean_ms=_mean([(server.queue_mean_ms, server.requests) for server in found]),
        agent_check=any(server.agent_check for server in found),
        srv_record=any(server.srv_record for server in found),
        cookie=next((server.cookie for server in found if server.cookie), ""),
        maxconn=min(limits) if limits else None,
        slow_start=any(server.slow_start for server in found),
    )


def _mean(values: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in values if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def haproxy_of(backend: str, sockets: Sequence[str], timeout_s: float) -> HAProxy | Fleet:
    """The HAProxy, or HAProxies, behind these admin sockets."""
    members = [HAProxy(path, backend, timeout_s) for path in sockets]
    return members[0] if len(members) == 1 else Fleet(members)
