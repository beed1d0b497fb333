"""Samples in, Verdicts out: which web server waits for a neighbour, and how much of its capacity is left."""
