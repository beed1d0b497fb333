"""How long lbengine may fail before the supervisor sets the baseline weights itself."""

from __future__ import annotations

from slackwater.controller.supervise.children import Death


class Outage:
    """Decides when lbengine has failed for too long to leave its weights in place. Pure: it is given the deaths."""

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self._since_s: float | None = None
        self._handled = True

    def died(self, death: Death) -> None:
        """Notes a death. A life of a lease or longer ends a row of deaths: in it lbengine read the balancer and set it
        right. A process that hung has used up its time already.
        """
        if death.hung:
            self._since_s = death.at_s - self.lease_s
        elif self._since_s is None or death.alive_s >= self.lease_s:
            self._since_s = death.at_s
        self._handled = False

    def is_overdue(self, now_s: float, works: bool) -> bool:
        """True once after each death, when the row of deaths is a lease old; `works`: lbengine makes progress again."""
        if self._handled or works or self._since_s is None or now_s - self._since_s < self.lease_s:
            return False
        self._handled = True
        return True
