"""The laws: how many requests per second each server should get. Pure functions of numbers, no servers or weights here.

`optimal` is the square-root rule for processor-sharing queues; `ice` is the rule of Maji, Mitra and Bagchi (ICAC 2015);
`equalise`, which fills all servers alike, is what `optimal` comes to in a full pool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def check_capacities(capacity_rps: Sequence[float]) -> float:
    """The sum of the capacities. Raises ValueError when no server has any capacity, or one is below 0."""
    full_rps = math.fsum(capacity_rps)
    if full_rps <= 0.0 or min(capacity_rps) < 0.0:
        raise ValueError(f"capacities must be 0 or more with a positive sum, got {list(capacity_rps)}")
    return full_rps


def equalise(capacity_rps: Sequence[float], total_rps: float) -> list[float]:
    """The split that fills every server to the same share of its capacity, in requests per second.

    Weights in proportion to capacity do that: the textbook's static optimum for the least highest utilisation (Tantawi
    and Towsley, J. ACM 32(2), 1985, compare theirs with it). Raises ValueError when no server has any capacity.
    """
    full_rps = check_capacities(capacity_rps)
    return [total_rps * capacity / full_rps for capacity in capacity_rps]


def optimal(capacity_rps: Sequence[float], total_rps: float, u_threshold: float = 1.0) -> list[float]:
    """The split of `total_rps` with the least mean response time, in requests per second, one for each capacity.

    A processor-sharing server of capacity μ that gets r answers in 1/(μ - r) on average, so the mean over requests is
    Σ r/(μ - r) / R. Lagrange's condition μ/(μ - r)² = const gives r = μ - √μ·k over the servers for which that is
    positive, with k = (Σμ - R)/Σ√μ over these; the others get nothing. (Bell and Stidham, "Individual versus social
    optimization in the allocation of customers to alternative servers", Management Science 29(7), 1983; Tantawi and
    Towsley, J. ACM 32(2), 1985.) No server is filled above `u_threshold` of its capacity.

    When the pool cannot carry `total_rps` below that threshold, every server is filled alike, in proportion to its
    capacity: the split that joins the capped one without a jump, and the one that fills the fullest server least.
    Raises ValueError when no server has any capacity.
    """
    full_rps = check_capacities(capacity_rps)
    if total_rps >= u_threshold * full_rps:
        return equalise(capacity_rps, total_rps)
    roots = [math.sqrt(capacity) for capacity in capacity_rps]

    def split(k: float) -> list[float]:
        return [
            min(max(capacity - root * k, 0.0), u_threshold * capacity)
            for capacity, root in zip(capacity_rps, roots, strict=True)
        ]

    # The sum over `split(k)` falls with k, in straight pieces: their ends are where a server leaves its cap or gets
    # nothing any more. So the right k lies on a line between two neighbouring ends.
    knees = sorted({end for root in roots for end in ((1.0 - u_threshold) * root, root)})
    low, high = 0, len(knees) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if math.fsum(split(knees[middle])) >= total_rps:
            low = middle
        else:
            high = middle
    above, below = math.fsum(split(knees[low])), math.fsum(split(knees[high]))
    along = 0.0 if above <= below else (above - total_rps) / (above - below)
    return split(knees[low] + (knees[high] - knees[low]) * along)


def ice(
    capacity_rps: float, cpu_predicted: float | None, rps: float | None, fair_rps: float, u_threshold: float
) -> float:
    """The most requests per second, up to `fair_rps`, at which this server's predicted CPU stays below `u_threshold`.

    ICE predicts CPU by a linear model, cpu = a·old_cpu + b·rps + c·cpi + d, and when the prediction crosses U_thres
    lowers the server's weight in proportion to the rate that does not (A. K. Maji, S. Mitra, S. Bagchi: "ICE: An
    Integrated Configuration Engine for Interference Mitigation in Cloud Services", ICAC 2015). Of that line two points
    are known here: `cpu_predicted` at `rps`, and 1.0 at `capacity_rps`. Where they don't make a rising line, it goes
    through the origin. `fair_rps` is what the server gets at its baseline weight: judged at that rate, not at the
    present one, the answer stays the same after it was followed.
    """
    slope = 0.0
    if cpu_predicted is not None and rps is not None and rps < capacity_rps:
        slope = (1.0 - cpu_predicted) / (capacity_rps - rps)
    if slope <= 0.0:
        slope = 1.0 / max(capacity_rps, 1e-9)
    return min(max(capacity_rps - (1.0 - u_threshold) / slope, 0.0), fair_rps)
