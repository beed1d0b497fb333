"""From Verdicts to weights: law, limits, guard, ramp. No I/O."""
