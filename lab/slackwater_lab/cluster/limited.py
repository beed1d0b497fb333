"""A limit of a host's own: it gets a lower quota for a while, or what its credits allow. Nobody else is there.

A comparison begins and ends it as a neighbour, so it has a process of the same life. A guest sees nothing of the quota;
a host of this machine's kernel reads it.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from slackwater_lab.cluster.background import Background
from slackwater_lab.cluster.hosts import Host
from slackwater_lab.cluster.noise import Noise, Removable
from slackwater_lab.cluster.paths import system_program

LIMIT, CREDITS = "limit", "credits"
KINDS = (LIMIT, CREDITS)
LOOK_S = 0.1
BUCKET_S = 0.5
"""CPU seconds of credits that a bucket holds. It is full at the begin."""


@dataclass
class Lowered:
    """A quota that is the usual one again after `cleanup`."""

    restore: Callable[[], None]

    def cleanup(self) -> None:
        self.restore()


class Bucket(Background):
    """Credits are earned at the rate `cores`, and what is used costs them. Without any the host gets `cores` and no
    more, until the bucket has enough for `LOOK_S` again."""

    def __init__(self, cores: float, used_s: Callable[[], float], lower: Callable[[bool], None]) -> None:
        super().__init__("credits")
        self._cores, self._used_s, self._lower = cores, used_s, lower

    def _run(self) -> None:
        credit_s, is_low = BUCKET_S, False
        at_s, used_s = time.monotonic(), self._used_s()
        while not self._end.wait(LOOK_S):
            now_s, now_used_s = time.monotonic(), self._used_s()
            credit_s = min(BUCKET_S, credit_s + self._cores * (now_s - at_s) - (now_used_s - used_s))
            at_s, used_s = now_s, now_used_s
            if (credit_s <= 0.0) != is_low and (credit_s <= 0.0 or credit_s >= LOOK_S):
                is_low = not is_low
                self._lower(is_low)

    def cleanup(self) -> None:
        self.__exit__()
        self._lower(False)


def start(
    host: Host,
    kind: str,
    share: float,
    seconds: float,
    set_share: Callable[[float], None],
    used_cores: tuple[float, Callable[[], float]],
) -> Noise:
    """Limits a host to this share of its quota; it is limited when this returns, with credits once these are spent.

    `set_share` sets the share of its usual quota; `used_cores`: that quota, and the CPU seconds used so far.
    """
    argv = [system_program("setpriv"), "--pdeathsig", "KILL", "sleep", f"{seconds:g}"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
    limit: Removable
    if kind == CREDITS:
        cores, used_s = used_cores
        limit = Bucket(share * cores, used_s, lambda is_low: set_share(share if is_low else 1.0))
        limit.__enter__()
    else:
        set_share(share)
        limit = Lowered(lambda: set_share(1.0))
    return Noise(host.name, kind, share, process, time.monotonic(), time.time(), files=limit)
