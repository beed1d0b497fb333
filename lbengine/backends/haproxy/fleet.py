"""Several HAProxies with the same backend, driven as one: several processes, or several hosts in front of one pool.

Each HAProxy sends its share of the traffic, so load is summed over them, and all get the same weights. An HAProxy that
does not answer is left out, reported, and asked again now and then. When it is back it gets the weights of the others.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from slackwater.lbengine.backends.haproxy.haproxy import HAProxy
from slackwater.lbengine.balancer import Balancer, BalancerError, BalancerUnreachable, Server, Snapshot

ASK_AGAIN_S = 2.0
"""Time after which a member that does not answer is asked again. Each time costs a timeout."""
Result = TypeVar("Result")


class HAProxies(Balancer):
    """HAProxies as one balancer. `clock` is monotonic."""

    def __init__(self, members: Sequence[HAProxy], clock: Callable[[], float] = time.monotonic) -> None:
        self.members = members
        self._clock = clock
        self._asking = ThreadPoolExecutor(len(members), thread_name_prefix="fleet")
        self._last: dict[int, Snapshot] = {}
        """The last snapshot, by member."""
        self._away: dict[int, tuple[float, BalancerError]] = {}
        """Members that do not answer: (time when last asked, error)."""
        self._generation = 0
        self._weights: dict[str, int] = {}
        """The weights that all members should show: sent last, or seen alike on all. A server's weight that differs on
        any member is the one in the snapshot."""
        self._maxconns: dict[str, int] = {}
        """The `maxconn`s that all members should show, sent last or seen alike on all."""

    def read(self) -> Snapshot:
        """The members that answer as one balancer; a member that refuses is left out too.

        Raises BalancerError when none is left.
        """
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
        views = _by_name([self._last[n] for n in answering])
        for name, servers in views.items():
            if len({server.weight for server in servers}) == 1:
                self._weights.setdefault(name, servers[0].weight)
        first, *others = (self._last[n] for n in answering)
        return dataclasses.replace(
            first,
            connections=sum(snapshot.connections for snapshot in (first, *others)),
            cookie=next((snapshot.cookie for snapshot in (first, *others) if snapshot.cookie), ""),
            servers=tuple(
                _combined(servers, self._weights.get(name), self._maxconns.get(name)) for name, servers in views.items()
            ),
            generation=self._generation,
            absent=tuple(str(error) for _, error in self._away.values()),
            unreadable={name: why for member in (*others[::-1], first) for name, why in member.unreadable.items()},
            trouble=tuple(dict.fromkeys(words for member in (first, *others) for words in member.trouble)),
            returned=returned,
        )

    def expect(self, weights: Mapping[str, int]) -> None:
        """Announces weights that all members will show soon, whoever sets them."""
        self._weights |= weights

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """Sets the weights on each member that answered last, of the servers that it has.

        Raises BalancerError after all members were tried.
        """
        self.expect(weights)
        self._each(lambda member, names: member.set_weights({name: weights[name] for name in names}), weights)

    def set_maxconns(self, maxconns: Mapping[str, int]) -> None:
        """Does what `set_weights` does, for the most requests that a server gets at a time."""
        self._maxconns |= maxconns
        self._each(lambda member, names: member.set_maxconns({name: maxconns[name] for name in names}), maxconns)

    def _answering(self) -> list[int]:
        return sorted(self._last.keys() - self._away.keys())

    def _each(self, work: Callable[[HAProxy, list[str]], None], values: Mapping[str, int]) -> None:
        def attempt(n: int) -> BalancerError | None:
            names = [server.name for server in self._last[n].servers if server.name in values]
            answer = _attempt(lambda: work(self.members[n], names)) if names else None
            return answer if isinstance(answer, BalancerError) else None

        errors = [error for error in self._asking.map(attempt, self._answering()) if error is not None]
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
    """All views of each server, by its name, in the order of the first snapshot."""
    by_name: dict[str, list[Server]] = {}
    for snapshot in snapshots:
        for server in snapshot.servers:
            by_name.setdefault(server.name, []).append(server)
    return by_name


def _combined(views: Sequence[Server], weight: int | None, maxconn: int | None) -> Server:
    """The views that several HAProxies have of a server, combined into one.

    `weight`, `maxconn`: the values that all should show; None: not known.
    """
    usable = [server for server in views if server.available]
    limits = [server.maxconn for server in views if server.maxconn is not None]
    return dataclasses.replace(
        (usable or views)[0],
        weight=_differing([server.weight for server in views], weight),
        in_flight=sum(server.in_flight for server in views),
        queued=sum(server.queued for server in views),
        requests=sum(server.requests for server in views),
        errors=sum(server.errors for server in views),
        unanswered=sum(server.unanswered for server in views),
        rt_mean_ms=_mean([(server.rt_mean_ms, server.requests) for server in views]),
        queue_mean_ms=_mean([(server.queue_mean_ms, server.requests) for server in views]),
        uncounted=next((server.uncounted for server in views if server.uncounted), ""),
        agent_check=any(server.agent_check for server in views),
        srv_record=any(server.srv_record for server in views),
        cookie=next((server.cookie for server in views if server.cookie), ""),
        maxconn=_differing(limits, maxconn) if limits else None,
        slow_start=any(server.slow_start for server in views),
    )


def _differing(values: Sequence[int], expected: int | None) -> int:
    """The first value that is not as expected, or the expected one; with nothing expected the lowest.

    The lowest may be a weight that we have left behind.
    """
    if expected is None:
        return min(values)
    return next((value for value in values if value != expected), expected)


def _mean(values: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in values if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def haproxy_of(backend: str, sockets: Sequence[str], timeout_s: float) -> HAProxy | HAProxies:
    """The HAProxy, or HAProxies, behind these admin sockets."""
    members = [HAProxy(path, backend, timeout_s) for path in sockets]
    return members[0] if len(members) == 1 else HAProxies(members)
