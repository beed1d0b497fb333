"""Power models with three voltage curves. A claim must keep its sign on all three; energies of different models never
share a column.

P = base + sum over enabled cores of [ idle V/Vmax + busy share x busy (f/fmax) (V/Vmax)^2 ]. A machine's clocks are
laid over a curve's by their share of the highest clock.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slackwater.governor.types import Hardware

CURVES: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "a72": (
        (408, 600, 816, 1008, 1200, 1416, 1608, 1800, 2016),
        (0.80, 0.80, 0.825, 0.85, 0.90, 0.975, 1.05, 1.15, 1.25),
    ),
    "flat": ((100, 1700), (0.83, 0.83)),
    "steep": ((600, 800, 1000, 1200, 1400, 1600), (0.956, 1.036, 1.164, 1.276, 1.420, 1.484)),
}
"""Clock in MHz, volts. `a72`: Linux's device trees of the RK3399 (Cortex-A72). `flat`: Renesas RZ/G2N (Cortex-A57), one
voltage for all clocks: a lower bound of what a clock saves. `steep`: Pentium M, Linux's speedstep-centrino."""
DEFAULT = "a72"
STATIC_OF_PEAK = 0.22
"""Static power over peak power of a server that draws 30% of its peak at 10% load (Heimdall, p. 2)."""


def volts(curve: str, shares: Sequence[float]) -> list[float]:
    """V/Vmax at each share of the highest clock; below the lowest point of the curve the voltage stays."""
    mhz, values = CURVES[curve]
    return [float(level) for level in np.interp(np.asarray(shares) * mhz[-1], mhz, values) / values[-1]]


def hardware(
    curve: str,
    cores: int,
    clocks_mhz: Sequence[float],
    *,
    busy_w: float,
    base_w: float,
    idle_w: float,
    turbo: bool = False,
    smt_gain: float = 1.0,
) -> Hardware:
    """A machine; `busy_w` and `idle_w` are a core's at the highest clock, in W. Raises KeyError for another curve."""
    shares = [clock_mhz / clocks_mhz[-1] for clock_mhz in clocks_mhz]
    levels = volts(curve, shares)
    return Hardware(
        cores,
        tuple(clocks_mhz),
        base_w,
        tuple(idle_w * level for level in levels),
        tuple(busy_w * share * level**2 for share, level in zip(shares, levels, strict=True)),
        turbo,
        smt_gain,
    )
