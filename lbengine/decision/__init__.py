"""From Verdicts to weights: law, choice, position, guard. No I/O."""
