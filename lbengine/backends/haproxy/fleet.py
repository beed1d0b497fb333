"""Several HAProxies with the same backend, driven as one: several processes, or several hosts in front of one pool.

Each sends its share of the traffic, so load is summed over them and every one gets the same weights. One that does not
answer is left out, reported, and asked again now and then; when it is back it gets the weights of the others.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lbengine.backends.haproxy.haproxy import HAProxy
from lbengine.balancer import Balancer, BalancerError, BalancerUnreachable, Server, Snapshot

ASK_AGAIN_S = 2.0
"""A member that does not answer costs a timeout: it is asked this seldom."""
Result = TypeVar("Result")


class Fleet(Balancer):
    """HAProxies as one balancer. `clock` is monotonic."""

    def __init__(self, members: Sequence[HAProxy], clock: Callable[[], float] = time.monotonic) -> None:
        self.members = members
        self._clock = clock
        self._asking = ThreadPoolExecutor(len(members), thread_name_prefix="fleet")
        self._last: dict[int, Snapshot] = {}
        """By member, what it showed last."""
        self._away: dict[int, tuple[float, BalancerError]] = {}
        """By member that does not answer: when it was asked, and what happened."""
        self._generation = 0
        self._weights: dict[str, int] = {}
        """What all should show: sent last, or seen alike on all. What differs from it is what is worth telling."""
        self._maxconns: dict[str, int] = {}
        """The same for `maxconn`."""

    def read(self) -> Snapshot:
        """All that answer as one; one that refuses is left out too. Raises BalancerError when none is left."""
        due = [
            n
            for n in range(len(self.members))
            if n not in self._away or self._clock() >= self._away[n][0] + ASK_AGAIN_S
        ]
        due = due or list(range(len(self.members)))
        answers = dict(zip(due, self._asking.map(lambda n: _attempt(self.members[n].read), due), strict=True))
        returned = False
        for n, answer in answers.items():
            if isinstance(answer, Snapshot):
                was_away, anew = self._away.pop(n, None) is not None, answer.restarted_since(self._last.get(n))
                if was_away or anew or n not in self._last:
                    self._generation += 1
                returned = returned or (was_away and not anew)
                self._last[n] = answer
            else:
                self._away[n] = (self._clock(), answer)
        answering = self._answering()
        if not answering:
            raise _together([error for _, error in self._away.values()])
        found = _by_name([self._last[n] for n in answering])
        for name, servers in found.items():
            if len({server.weight for server in servers}) == 1:
                self._weights.setdefault(name, servers[0].weight)
        first, *others = (self._last[n] for n in answering)
        return dataclasses.replace(
            first,
            connections=sum(snapshot.connections for snapshot in (first, *others)),
            cookie=next((snapshot.cookie for snapshot in (first, *others) if snapshot.cookie), ""),
            servers=tuple(
                _one(servers, self._weights.get(name), self._maxconns.get(name)) for name, servers in found.items()
            ),
            generation=self._generation,
            absent=tuple(str(error) for _, error in self._away.values()),
            unreadable={name: why for one in (*others[::-1], first) for name, why in one.unreadable.items()},
            trouble=tuple(dict.fromkeys(words for one in (first, *others) for words in one.trouble)),
            returned=returned,
        )

    def expect(self, weights: Mapping[str, int]) -> None:
        """What all are about to show, whoever sets it."""
        self._weights |= weights

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """To each that answered last, of the servers that it has. Raises BalancerError after all were tried."""
        self.expect(weights)
        self._each(lambda member, names: member.set_weights({name: weights[name] for name in names}), weights)

    def set_maxconns(self, maxconns: Mapping[str, int]) -> None:
        """As `set_weights`."""
        self._maxconns |= maxconns
        self._each(lambda member, names: member.set_maxconns({name: maxconns[name] for name in names}), maxconns)

    def _answering(self) -> list[int]:
        return sorted(self._last.keys() - self._away.keys())

    def _each(self, work: Callable[[HAProxy, list[str]], None], values: Mapping[str, int]) -> None:
        def of(n: int) -> BalancerError | None:
            names = [server.name for server in self._last[n].servers if server.name in values]
            answer = _attempt(lambda: work(self.members[n], names)) if names else None
            return answer if isinstance(answer, BalancerError) else None

        errors = [error for error in self._asking.map(of, self._answering()) if error is not None]
        if errors:
            raise _together(errors)


def _together(errors: Sequence[BalancerError]) -> BalancerError:
    kind = BalancerUnreachable if all(isinstance(error, BalancerUnreachable) for error in errors) else BalancerError
    return kind("; ".join(map(str, errors)))


def _attempt(work: Callable[[], Result]) -> Result | BalancerError:
    try:
        return work()
    except BalancerError as error:
        return error


def _by_name(snapshots: Sequence[Snapshot]) -> dict[str, list[Server]]:
    """Each server as all that have it show it, in the order of the first."""
    found: dict[str, list[Server]] = {}
    for snapshot in snapshots:
        for server in snapshot.servers:
            found.setdefault(server.name, []).append(server)
    return found


def _one(found: Sequence[Server], weight: int | None, maxconn: int | None) -> Server:
    """Several HAProxies' view of one server as one; `weight` and `maxconn` are what all should show, if known."""
    usable = [server for server in found if server.available]
    limits = [server.maxconn for server in found if server.maxconn is not None]
    return dataclasses.replace(
        (usable or found)[0],
        weight=_differing([server.weight for server in found], weight),
        in_flight=sum(server.in_flight for server in found),
        queued=sum(server.queued for server in found),
        requests=sum(server.requests for server in found),
        errors=sum(server.errors for server in found),
        rt_mean_ms=_mean([(server.rt_mean_ms, server.requests) for server in found]),
        queue_mean_ms=_mean([(server.queue_mean_ms, server.requests) for server in found]),
        uncounted=next((server.uncounted for server in found if server.uncounted), ""),
        agent_check=any(server.agent_check for server in found),
        srv_record=any(server.srv_record for server in found),
        cookie=next((server.cookie for server in found if server.cookie), ""),
        maxconn=_differing(limits, maxconn) if limits else None,
        slow_start=any(server.slow_start for server in found),
    )


def _differing(values: Sequence[int], expected: int | None) -> int:
    """One that is not as expected, if there is one; with nothing expected the lowest: what we leave behind is low."""
    if expected is None:
        return min(values)
    return next((value for value in values if value != expected), expected)


def _mean(values: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in values if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def haproxy_of(backend: str, sockets: Sequence[str], timeout_s: float) -> HAProxy | Fleet:
    """The HAProxy, or HAProxies, behind these admin sockets."""
    members = [HAProxy(path, backend, timeout_s) for path in sockets]
    return members[0] if len(members) == 1 else Fleet(members)
