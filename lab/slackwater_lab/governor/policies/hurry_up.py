"""`hurry-up`: a clock for each core, by whether its thread is in the application's hot function, and how long.

Source: "Hurry-up" (thesis, algorithms 1 and 2, pages 16 to 20, final constants p. 33): every 50 ms the events of the
hot function are consumed; a core in it runs at the mid clock, for 450 ms or longer at the high clock until it leaves,
and at the low clock outside. The mid clock is the one at which a light request uses the least energy, which is
measured. With two states there is no mid clock and no age. The first event of an unknown core counts as one that
enters.
"""

from __future__ import annotations

from slackwater.governor.types import Action, Hardware, Observation

PERIOD_S, THRESHOLD_S = 0.05, 0.45
FIRST_PERIOD_S, FIRST_THRESHOLD_S = 0.01, 0.35
"""Period and threshold of the thesis's first experiment (p. 26)."""


class HurryUp:
    def __init__(
        self,
        hardware: Hardware,
        low_mhz: float,
        mid_mhz: float | None,
        high_mhz: float,
        *,
        period_s: float = PERIOD_S,
        threshold_s: float = THRESHOLD_S,
    ) -> None:
        """Without `mid_mhz`: two states, low and high."""
        self.name = "hurry-up" if mid_mhz is not None else f"two states, {high_mhz:g} MHz"
        self.period_s = period_s
        self._low_mhz, self._mid_mhz, self._high_mhz, self._threshold_s = low_mhz, mid_mhz, high_mhz, threshold_s
        self._cores = tuple(range(hardware.cores))
        self._entered_s: dict[int, float | None] = {}
        """Core -> when its thread entered the hot function; None: it is outside."""

    def start(self) -> Action:
        return Action(self._cores, (self._low_mhz,) * len(self._cores))

    def decide(self, seen: Observation) -> Action:
        for event in seen.events:
            enters = event.entered or event.core not in self._entered_s
            self._entered_s[event.core] = event.time_s if enters else None
        return Action(self._cores, tuple(self._clock_mhz(core, seen.time_s) for core in self._cores))

    def _clock_mhz(self, core: int, now_s: float) -> float:
        entered_s = self._entered_s.get(core)
        if entered_s is None:
            return self._low_mhz
        if self._mid_mhz is None or now_s - entered_s >= self._threshold_s:
            return self._high_mhz
        return self._mid_mhz
