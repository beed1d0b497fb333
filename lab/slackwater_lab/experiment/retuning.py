"""The policies in the lab that retune web servers, through a real wsengine in each host."""

from __future__ import annotations

import json

from slackwater.core.config import Law
from slackwater.core.messages import WSENGINE, Change, Mode
from slackwater_lab.cluster.bus import POOL, forget
from slackwater_lab.cluster.bus_listener import BusListener
from slackwater_lab.cluster.controller import CONTROLLER_FILE, Controller
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.load import Demand
from slackwater_lab.cluster.retunable import KEY_FILE, make_keys, start_wsengines
from slackwater_lab.experiment.policy_runners import MONITOR, PolicyRunner
from slackwater_lab.experiment.steady import WARM_UP_S, stop_programs

PROGRAM_OF = "slackwater-wsengine of "
RESTORE_S = 25.0
"""A wsengine that is stopped puts everything back first."""
BOUNDS = {
    "php_fpm": {"max_children": "[1, 64]"},
    "apache": {"max_request_workers": "[64, 512]", "keepalive_timeout": "[1, 120]"},
}
LEAVE_AFTER_S = 5.0
MANY = 1_000_000
LONG_AFTER_S = 5.0
"""`ice` enters its second stage after this time, so that it also shows in scenarios of 10 s."""


class RetuningController(Controller):
    """The controller in `act` mode, with the second stage; it enters after the phase without it has been measured."""

    def __init__(self, lab: Lab, no_room_after_s: float, law: Law = "optimal", **settings: str | float) -> None:
        """`settings` are further ones of `[retune]`."""
        rows: dict[str, str | float] = {
            "mode": "act",
            "order_key": str(KEY_FILE),
            "no_room_after_s": no_room_after_s,
            "long_after_s": no_room_after_s,
            "leave_after_s": LEAVE_AFTER_S,
            "lease_s": 20.0,
            "reload_min_interval_s": 3.0,
            **settings,
        }
        self._retune = "\n[retune]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in rows.items())
        super().__init__(lab, "act", law)

    def write(self, mode: Mode) -> None:
        super().write(mode)
        with CONTROLLER_FILE.open("a") as file:
            file.write(self._retune)

    def knob_changes(self, since_unix_s: float) -> dict[str, Change]:
        """The last Change of each node's wsengine since then."""
        if self.journal is None:
            return {}
        changes = reversed(self.journal.changes(POOL, MANY, since_unix_s))
        return {change.target: change for change in changes if change.by == WSENGINE and change.applied}

    def orders(self, since_unix_s: float) -> list[Change]:
        """The second stage's Orders since then, the first one first."""
        if self.journal is None:
            return []
        changes = reversed(self.journal.changes(POOL, MANY, since_unix_s))
        return [change for change in changes if change.by == "retune" and change.what.startswith("order ")]


class TwoStageRunner(PolicyRunner):
    """ICE: the real controller with the threshold law, and the second stage with its knowledge base."""

    learns = True

    def learn_s(self, _demand: Demand) -> float:
        return WARM_UP_S

    def begin(self) -> None:
        forget()
        make_keys()
        controller = RetuningController(self.lab, LONG_AFTER_S, law="ice")
        self.stack.callback(stop_programs, self.lab, MONITOR)
        self.stack.callback(controller.stop)
        controller.start()
        self.stack.callback(stop_programs, self.lab, PROGRAM_OF, RESTORE_S)
        start_wsengines(self.lab, POOL, BOUNDS)
        self.listen()
        self.changes = self.stack.enter_context(BusListener("change"))
