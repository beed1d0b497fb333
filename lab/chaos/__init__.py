"""Chaos: random faults in a lab cluster under load, and what must hold meanwhile."""
