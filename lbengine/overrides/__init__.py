"""Overrides of configuration and Verdicts, by operators and by the second stage."""
