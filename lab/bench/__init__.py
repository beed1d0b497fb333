"""Benchmarks of the parts."""
