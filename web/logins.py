"""Checks names and passwords: a few at a time, and no more tries than may be.

Checking a password takes 33 MB and a core for some 60 ms, on purpose (scrypt). So a try is counted before it is
checked, strangers' tries are checked one after the other, and those of clients that are known for a name in a lane of
their own. Known is a browser with the cookie of an earlier login under that name, and an address from which somebody
logged in under it. Strangers' wrong tries lock out strangers only
(https://owasp.org/www-community/Slow_Down_Online_Guessing_Attacks_with_Device_Cookies).
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from dataclasses import dataclass

from slackwater.web.lanes import BusyError, Lane
from slackwater.web.users import User, Users

PLACES = 1 << 16
KNOWN_ADDRESSES = 1000
"""Most addresses from which somebody logged in: the latest are kept, until the dashboard's process ends."""
WAITING = 4


@dataclass(frozen=True)
class Client:
    """Who tries to log in."""

    address: str
    """An IPv4 address, or the /64 of an IPv6 address: that much everybody has."""
    device: str = ""
    """The device in the cookie of an earlier login under the same name; empty: there is none."""


class Tries:
    """Counts the tries of each key within `window_s`; takes the same memory however many keys there are.

    Keys whose hashes meet share a count; which ones do is another in each process.
    """

    def __init__(self, most: int, window_s: float, clock: Callable[[], float]) -> None:
        self._most = most
        self._window_s = window_s
        self._clock = clock
        self._since_s = array("d", bytes(8 * PLACES))
        self._counts = array("H", bytes(2 * PLACES))

    def take(self, key: Hashable) -> bool:
        """Counts a try; False, and not counted, where there were too many."""
        place, now_s = hash(key) % PLACES, self._clock()
        if not 0.0 <= now_s - self._since_s[place] < self._window_s:
            self._since_s[place], self._counts[place] = now_s, 0
        if self._counts[place] >= self._most:
            return False
        self._counts[place] += 1
        return True

    def give_back(self, key: Hashable) -> None:
        """Has a try that was counted not count."""
        place = hash(key) % PLACES
        self._counts[place] = max(0, self._counts[place] - 1)


class Logins:
    """The tries of one application. May be used from several threads."""

    def __init__(self, users: Users, clock: Callable[[], float] = time.monotonic) -> None:
        self._users = users
        self._lock = threading.Lock()
        self._of_address = Tries(120, 60.0, clock)
        self._of_client = Tries(10, 60.0, clock)
        self._of_name = Tries(100, 900.0, clock)
        self._known_lane, self._strangers_lane = Lane(1, WAITING), Lane(1, WAITING)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def user(self, name: str, password: str, client: Client) -> User | None:
        """The user, if the password is theirs. Raises BusyError where there were too many tries, or too many at once,
        and UsersError."""
        who = (client.device or client.address, name)
        known = bool(client.device) or (name, client.address) in self._known
        counted: list[tuple[Tries, Hashable]] = [(self._of_client, who), (self._of_name, who if known else name)]
        if not known:
            counted.insert(0, (self._of_address, client.address))
        with ExitStack() as not_wrong:
            self._take(counted, not_wrong)
            with self._known_lane.turn() if known else self._strangers_lane.turn():
                user = self._users.login(name, password)
            if user is None:
                not_wrong.pop_all()
            else:
                self._remember(user.name, client.address)
            return user

    def _take(self, counted: list[tuple[Tries, Hashable]], not_wrong: ExitStack) -> None:
        with self._lock:
            for tries, key in counted:
                if not tries.take(key):
                    raise BusyError("Too many tries. Wait a few minutes.")
                not_wrong.callback(self._give_back, tries, key)

    def _give_back(self, tries: Tries, key: Hashable) -> None:
        with self._lock:
            tries.give_back(key)

    def _remember(self, name: str, address: str) -> None:
        with self._lock:
            self._known[name, address] = None
            self._known.move_to_end((name, address))
            if len(self._known) > KNOWN_ADDRESSES:
                self._known.popitem(last=False)
